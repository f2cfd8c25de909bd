"""A compressed downlink with one mirror per client. [B] is the paper of FedBNLACA and FedBACA, Algorithm 2.

The server keeps its exact model w and, for every client that has taken part, a copy z_i of that client's model (the mirror).
It sends C(w - z_i), and both sides add the decoded difference. z_i starts at the initial model, which follows from the seed,
and advances once the client's reply is used.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST, BroadcastModel, ClientModelVersion, Downlink, LostState
from laconic.algorithms.downlinks.catch_up import CatchUpForm, frame, read
from laconic.algorithms.link import CompressedLink
from laconic.algorithms.threshold import RelativeThreshold
from laconic.compression import Codec, decode_body, is_zero
from laconic.compression.packet import Body
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import STATEFUL, State, part
from laconic.core.randomness import Draw


@part("downlink", "mirrored")
class Mirrored(RelativeThreshold, CompressedLink, Downlink):
    """y = C(w - z_i), z_i += y. With a threshold, ||y|| <= threshold ||z_i|| makes the link lazy or accelerated.

    - lazy, NLA [B, Example 3]: y is not sent, and the client keeps z_i.
    - accelerated, AA [B, Example 6]: z_i += r + y, with r the last difference sent, 0 at first. [B] adds models, z_i +
      (z_i + y), which doubles the weights; `literal=True` does that.

    The threshold is a number, or `constant` / (alpha n) for n participants. Without a threshold, every y is sent and added
    once, whatever `aggregation` is.

    `literal=True` compresses the model itself with error feedback, as [B] prints it: z_i = C(w + E_i), E_i += w - z_i; the
    test is ||C(w + E_i) - z_i|| <= threshold ||z_i||. Only the average of z_i over time is then close to w. Training
    may suffer.
    """

    aggregation: Literal["lazy", "accelerated"] = "lazy"
    """What happens below the threshold."""
    mirror_start: Literal["model", "zero"] = "model"
    """The first z_i: the initial model, or 0 as [B, Algorithm 2] prints it."""
    literal: bool = False
    """Compress the model itself, as the paper prints it, instead of the difference from the mirror."""
    sensitivity = STATEFUL

    def __post_init__(self) -> None:
        self.compressor.scaled_for_feedback()  # rejects a compressor that cannot contract

    @property
    def _accelerates(self) -> bool:
        return self.aggregation == "accelerated" and not (self.threshold is None and self.constant is None)

    def init(self, model: Tensor) -> State:
        return {"initial": self._first(model)}

    @property
    def encodes_per_client(self) -> bool:
        return True

    def _first(self, initial: Tensor) -> Tensor:
        """z_i before the first round of a client."""
        return initial if self.mirror_start == "model" else torch.zeros_like(initial)

    def send(self, broadcast: BroadcastModel, client: ClientModelVersion, context: RoundContext) -> Body:
        if client.version == LOST:
            return frame(0, 0, CatchUpForm.WHOLE, [broadcast.whole])
        mirror, model = self._mirror(broadcast, client), broadcast.model.cpu()
        target = model - mirror
        if self.literal:
            target = model + client.peer["error"] if "error" in client.peer else model
        # w - z_i accumulates compression errors like an error memory, so C must be contractive.
        draws = context.generator(Draw.DOWNLINK)
        body = self.compression.scaled_for_feedback().encode(target, context.layout, draws, context.invited)
        limit = self.limit(context)
        if limit is None or not self._is_small(body, mirror, limit, context.layout):
            return body
        return Body(Codec.SKIP) if self.aggregation == "lazy" else frame(0, 1, CatchUpForm.ACCELERATED, [body])

    def _is_small(self, body: Body, mirror: Tensor, limit: float, layout: Layout) -> bool:
        """Whether ||y|| <= limit ||z_i||."""
        if not limit and not self.literal:
            return is_zero(body, layout)
        change = decode_body(body, layout).dense()
        change = change - mirror if self.literal else change
        return bool(torch.linalg.vector_norm(change) <= limit * torch.linalg.vector_norm(mirror))

    def confirmed(self, broadcast: BroadcastModel, client: ClientModelVersion, body: Body) -> State:
        mirror = self._mirror(broadcast, client)
        plain = not self._accelerates and not self.literal and body.codec not in (Codec.SKIP, Codec.CATCH_UP)
        if plain and "mirror" in client.peer:
            decode_body(body, broadcast.layout).add_to(mirror, 1.0)
            return {"mirror": mirror}
        moved = self._move(body, {"model": mirror, **client.peer}, broadcast.layout)
        state = {"mirror": moved.pop("model"), **moved}
        if self.literal:
            error = client.peer.get("error", torch.zeros_like(state["mirror"]))
            state["error"] = broadcast.model.cpu() + error - state["mirror"]
        return state

    def _mirror(self, broadcast: BroadcastModel, client: ClientModelVersion) -> Tensor:
        # There is one mirror per client, so they stay in host memory.
        return client.peer.get("mirror", broadcast.state["initial"].cpu())

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        form = read(body, layout)[2] if body.codec == Codec.CATCH_UP else None
        if lost and form in (None, CatchUpForm.ACCELERATED):
            raise LostState
        moved = self._move(body, {"model": self._first(initial), **state}, layout, keep=True)
        return moved["model"], moved

    def _move(self, body: Body, before: State, layout: Layout, *, keep: bool = False) -> State:
        """z_i and the last difference sent, after `body`. z_i is a new tensor, or the one before.

        `before` has those before it. With `keep`, the decoded body is kept: the other side moves its copy by the same.
        """
        if body.codec == Codec.SKIP:
            return {"model": before["model"]}
        accelerated = False
        if body.codec == Codec.CATCH_UP:
            _, _, form, items = read(body, layout)
            if form == CatchUpForm.WHOLE:
                return {"model": decode_body(items[0], layout).dense()}
            if form != CatchUpForm.ACCELERATED or not self._accelerates:
                raise PacketError("form", "a mirrored model comes whole or as a difference")
            body, accelerated = items[0], True
        moved, last = before["model"].clone(), before.get("difference")
        payload = decode_body(body, layout, keep=keep)
        if self.literal:
            return {"model": moved + payload.dense() if accelerated else payload.dense()}
        payload.add_to(moved, 1.0)
        if accelerated and last is not None:
            decode_body(Body.from_tensor(last), layout).add_to(moved, 1.0)
        return {"model": moved} | ({"difference": body.to_tensor()} if self._accelerates else {})

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count; a skip counts as one bit."""
        if body.codec == Codec.CATCH_UP:
            _, _, form, items = read(body, layout)
            if form == CatchUpForm.WHOLE:
                return 32 * layout.size
            body = items[0]
        return 1 if body.codec == Codec.SKIP else self.compression.paper_bits(layout, body)
