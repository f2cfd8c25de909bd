"""A compressed downlink with one mirror per client. [B] is the paper of FedBNLACA and FedBACA, Algorithm 2.

The server keeps its exact model w and, for every client that has taken part, a copy v_i of that client's model (the mirror).
It sends C(w - v_i), and both sides add the decoded difference. v_i starts at the initial model, which follows from the seed,
and advances once the client's reply is used.
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
from laconic.compression import Codec, decode_body, is_zero
from laconic.compression.packet import Body
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import STATEFUL, State, part
from laconic.core.randomness import Draw


@part("downlink", "mirrored")
class Mirrored(CompressedLink, Downlink):
    """C(w - v_i); skipped when ||C(w - v_i)|| <= threshold ||v_i||.

    `literal=True` compresses the model itself with error feedback, as [B] prints it: v_i = C(w + E_i), E_i += w - v_i. Only
    the average of v_i over time is then close to w, so training suffers.
    """

    threshold: Annotated[float, Field(ge=0)] | None = None
    literal: bool = False
    sensitivity = STATEFUL

    def __post_init__(self) -> None:
        self.compressor.scaled_for_feedback()  # rejects a compressor that cannot contract

    def init(self, model: Tensor) -> State:
        return {"initial": model}

    @property
    def encodes_per_client(self) -> bool:
        return True

    def send(self, broadcast: BroadcastModel, client: ClientModelVersion, context: RoundContext) -> Body:
        if client.version == LOST:
            return frame(0, 0, Form.WHOLE, [broadcast.whole])
        mirror, model = self._mirror(broadcast, client), broadcast.model.cpu()
        target = model - mirror
        if self.literal:
            target = model + client.peer["error"] if "error" in client.peer else model
        # w - v_i accumulates compression errors like an error memory, so C must be contractive.
        draws = context.generator(Draw.DOWNLINK)
        body = self.compression.scaled_for_feedback().encode(target, context.layout, draws, context.invited)
        if self.threshold is not None and self._is_small(body, mirror, context.layout):
            return Body(Codec.SKIP)
        return body

    def _is_small(self, body: Body, mirror: Tensor, layout: Layout) -> bool:
        """Whether ||C(w - v_i)|| <= threshold ||v_i||."""
        if not self.threshold and not self.literal:
            return is_zero(body, layout)
        change = decode_body(body, layout).dense()
        change = change - mirror if self.literal else change
        norms = torch.linalg.vector_norm(change), torch.linalg.vector_norm(mirror)
        return bool(norms[0] <= self.threshold * norms[1])

    def confirmed(self, broadcast: BroadcastModel, client: ClientModelVersion, body: Body) -> State:
        mirror = self._mirror(broadcast, client)
        if not self.literal and "mirror" in client.peer and body.codec not in (Codec.SKIP, Codec.CATCH_UP):
            decode_body(body, broadcast.layout).add_to(mirror, 1.0)
            return {"mirror": mirror}
        moved = self._move(body, mirror, broadcast.layout)
        if not self.literal:
            return {"mirror": moved}
        error = client.peer.get("error", torch.zeros_like(moved))
        return {"mirror": moved, "error": broadcast.model.cpu() + error - moved}

    def _mirror(self, broadcast: BroadcastModel, client: ClientModelVersion) -> Tensor:
        # There is one mirror per client, so they stay in host memory.
        return client.peer.get("mirror", broadcast.state["initial"].cpu())

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        if lost and body.codec != Codec.CATCH_UP:
            raise LostState
        model = self._move(body, state.get("model", initial), layout, keep=True)
        return model, {"model": model}

    def _move(self, body: Body, before: Tensor, layout: Layout, *, keep: bool = False) -> Tensor:
        """The model after a body, in a new tensor or the one before. `keep`: the other side moves its copy by the same."""
        if body.codec == Codec.SKIP:
            return before
        if body.codec == Codec.CATCH_UP:
            _, _, form, items = read(body, layout)
            if form != Form.WHOLE:
                raise PacketError("form", "a mirrored model comes whole or as a difference")
            return decode_body(items[0], layout).dense()
        payload = decode_body(body, layout, keep=keep)
        if self.literal:
            return payload.dense()
        moved = before.clone()
        payload.add_to(moved, 1.0)
        return moved

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count; a skip counts as one bit."""
        if body.codec == Codec.CATCH_UP:
            return 32 * layout.size
        return 1 if body.codec == Codec.SKIP else self.compression.paper_bits(layout)
