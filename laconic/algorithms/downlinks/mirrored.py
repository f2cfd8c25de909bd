"""A compressed downlink with one mirror per client. [B] is FedBNLACA and FedBACA, Algorithm 2.

The server keeps its exact model w and, for every client that it has heard from, the model v_i that this client has. It sends
C(w - v_i), and both add what was decoded. v_i starts at the initial model, which follows from the seed, and advances when
the client's reply is folded in.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST, BroadcastModel, ClientModelVersion, Downlink, LostState
from laconic.algorithms.downlinks.catch_up import Form, frame, read
from laconic.algorithms.link import CompressedLink
from laconic.compression import Codec, decode_body
from laconic.compression.packet import Body
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import State, part
from laconic.core.randomness import Draw


@part("downlink", "mirrored")
class Mirrored(CompressedLink, Downlink):
    """C(w - v_i); skipped when ||C(w - v_i)|| <= threshold ||v_i||.

    `literal=True` compresses the model itself, with error memory, as [B] prints it: v_i = C(w + E_i), E_i += w - v_i. That
    makes the time average right, not each model, and is expected to train badly.
    """

    threshold: Annotated[float, Field(ge=0)] | None = None
    literal: bool = False

    def __post_init__(self) -> None:
        self.compressor.scaled_for_feedback()  # refuses what cannot contract, before any work

    def init(self, model: Tensor) -> State:
        """Where every mirror starts."""
        return {"initial": model.clone()}

    def send(self, publication: BroadcastModel, held: ClientModelVersion, context: RoundContext) -> Body:
        """The compressed difference, a skip, or for a client that has lost its state the whole model."""
        if held.version == LOST:
            return frame(0, 0, Form.WHOLE, [publication.whole])
        mirror, model = self._mirror(publication, held), publication.model.cpu()
        target = model - mirror
        if self.literal:
            target = model + held.peer["error"] if "error" in held.peer else model
        # w - v is an error memory in all but name, so C must contract here too.
        body = self.compression.scaled_for_feedback().encode(target, context.layout, context.generator(Draw.DOWNLINK))
        if self.threshold is not None:
            change = decode_body(body, context.layout).dense()
            change = change - mirror if self.literal else change
            if torch.linalg.vector_norm(change) <= self.threshold * torch.linalg.vector_norm(mirror):
                return Body(Codec.SKIP)
        return body

    def confirmed(self, publication: BroadcastModel, held: ClientModelVersion, body: Body) -> State:
        """The mirror, moved as the client has moved."""
        moved = self._move(body, self._mirror(publication, held), publication.layout)
        if not self.literal:
            return {"mirror": moved}
        error = held.peer.get("error", torch.zeros_like(moved))
        return {"mirror": moved, "error": publication.model.cpu() + error - moved}

    def _mirror(self, publication: BroadcastModel, held: ClientModelVersion) -> Tensor:
        # Mirrors are many: they live with the host, wherever the model is.
        return held.peer.get("mirror", publication.state["initial"].cpu())

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        """V_i, as the server mirrors it."""
        if lost and body.codec != Codec.CATCH_UP:
            raise LostState
        model = self._move(body, state.get("model", initial), layout)
        return model, {"model": model.clone()}

    def _move(self, body: Body, before: Tensor, layout: Layout) -> Tensor:
        if body.codec == Codec.SKIP:
            return before.clone()
        if body.codec == Codec.CATCH_UP:
            _, _, form, items = read(body, layout)
            if form != Form.WHOLE:
                raise PacketError("form", "a mirrored model comes whole or as a difference")
            return decode_body(items[0], layout).dense()
        payload = decode_body(body, layout)
        if self.literal:
            return payload.dense()
        moved = before.clone()
        payload.add_to(moved, 1.0)
        return moved

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count; a skip is a flag of one bit."""
        if body.codec == Codec.CATCH_UP:
            return 32 * layout.size
        return 1 if body.codec == Codec.SKIP else self.compression.paper_bits(layout)
