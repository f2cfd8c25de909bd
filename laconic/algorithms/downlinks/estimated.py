"""EF21-BC's downlink: the server compresses the change of its step, and all clients have the same model.

[W] is Fatkhullin, Sokolov, Gorbunov, Li and Richtarik, "EF21 with Bells & Whistles" (2021), Algorithm 5. With s the
optimizer's step, here a rate times the estimate of the gradient: b = C(s - g); g += b; server and clients add g.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import BroadcastModel, LostState
from laconic.algorithms.downlinks.broadcast import Broadcast
from laconic.algorithms.downlinks.catch_up import CatchUpForm, frame, read
from laconic.compression import decode_body, encode_dense
from laconic.compression.packet import Body
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import BOUNDED, State, part
from laconic.core.randomness import Draw


@part("downlink", "estimated")
class Estimated(Broadcast):
    """With s the optimizer's step and g its estimate, which both sides have: y = C(s - g); g += y; all add g.

    This is [W, Algorithm 5]. The models of server and clients move by the whole of g in every round, though only the change
    y is sent. A client that was absent gets every missed y, or the whole model and g.
    """

    sensitivity = BOUNDED

    def init(self, model: Tensor) -> State:
        return {"estimate": torch.zeros_like(model), "version": torch.tensor(0)}

    def advance(self, model: Tensor, step: Tensor, state: State, context: RoundContext) -> tuple[Tensor, State]:
        compression, rng = self.compression.scaled_for_feedback(), context.generator(Draw.DOWNLINK)
        body = compression.encode(step - state["estimate"], context.layout, rng)
        estimate = state["estimate"].clone()
        decode_body(body, context.layout).add_to(estimate, 1.0)
        return model + estimate, {"estimate": estimate, **self.logged(state, body, model)}

    def whole(self, broadcast: BroadcastModel) -> Body:
        items = [broadcast.whole, encode_dense(broadcast.state["estimate"])]
        return frame(0, self.version(broadcast.state), CatchUpForm.WHOLE, items)

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        since, now, form, items = read(body, layout, wholes=2)
        version = int(state["version"]) if "version" in state else 0
        if form == CatchUpForm.WHOLE:
            model, estimate = (decode_body(item, layout).dense() for item in items)
        elif form != CatchUpForm.STEPS:
            raise PacketError("form", "an estimated step comes as a change, or whole with its model")
        elif version != since:
            raise LostState
        else:
            model = state.get("model", initial)
            estimate = state["estimate"].clone() if "estimate" in state else torch.zeros_like(initial)
            for item in items:
                decode_body(item, layout).add_to(estimate, 1.0)
                model = model + estimate
        return model, {"model": model, "estimate": estimate, "version": torch.tensor(now)}

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count per step; 64 d for the whole model and g."""
        _, _, form, items = read(body, layout, wholes=2)
        if form == CatchUpForm.WHOLE:
            return 64 * layout.size
        return sum(self.compression.paper_bits(layout, item) for item in items)
