"""Two-way Fed-EF: the server compresses its step with error feedback, and all clients have the same model.

[E] is Li and Li (2023), Algorithm 3, as its proof requires: with s the optimizer's step, H = C(s + phi); phi += s - H;
server and clients add H.

A client that was absent catches up in the cheapest of three forms: every missed packet in order, the current values of all
entries that have changed, or the whole model. Values replace entries instead of being added, so both sides agree bit by bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST, BroadcastModel, ClientModelVersion, Downlink, LostState
from laconic.algorithms.downlinks.catch_up import MOST_STEPS, CatchUpForm, frame, read
from laconic.algorithms.link import CompressedLink
from laconic.compression import decode_body, encode_sparse
from laconic.compression.packet import Body
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import BOUNDED, State, part
from laconic.core.randomness import Draw


@part("downlink", "broadcast")
class Broadcast(CompressedLink, Downlink):
    """With s the optimizer's step and phi the server's error memory: H = C(s + phi); phi += s - H; all add H.

    This is [E, Algorithm 3]. Server and clients add H to their models.
    """

    sensitivity = BOUNDED

    def __post_init__(self) -> None:
        self.compressor.scaled_for_feedback()  # rejects a compressor that cannot contract

    def init(self, model: Tensor) -> State:
        changed = torch.zeros(model.shape, dtype=torch.int32, device=model.device)
        return {"phi": torch.zeros_like(model), "version": torch.tensor(0), "changed": changed}

    def version(self, state: State) -> int:
        """The number of steps so far."""
        return int(state["version"])

    def advance(self, model: Tensor, step: Tensor, state: State, context: RoundContext) -> tuple[Tensor, State]:
        target = step + state["phi"]
        draws = context.generator(Draw.DOWNLINK)
        body = self.compression.scaled_for_feedback().encode(target, context.layout, draws, context.invited)
        payload = decode_body(body, context.layout)
        payload.add_to(target, -1.0)
        new_model = model.clone()
        payload.add_to(new_model, 1.0)
        log = self.logged(state, body, model)
        changed = state["changed"].clone()
        places = slice(None) if payload.positions is None else payload.positions.to(changed.device)
        changed[places] = self.version(log)
        return new_model, {"phi": target, "changed": changed, **log}

    def logged(self, state: State, body: Body, model: Tensor) -> State:
        """The next version, and the steps of this and earlier rounds, for clients that were absent."""
        version = self.version(state) + 1
        log = {name: value for name, value in state.items() if name.startswith("step/")}
        log[f"step/{version}"] = body.to_tensor()
        # Keep steps while all of them are cheaper to send than the model.
        size = sum(value.numel() for value in log.values())
        for name in sorted(log, key=lambda name: int(name.removeprefix("step/"))):
            if size <= model.numel() * model.element_size() and len(log) <= MOST_STEPS:
                break
            size -= log.pop(name).numel()
        return {"version": torch.tensor(version), **log}

    def send(self, broadcast: BroadcastModel, client: ClientModelVersion, context: RoundContext) -> Body:
        return broadcast.for_version(client.version, lambda: self._cheapest(broadcast, client.version))

    def _cheapest(self, broadcast: BroadcastModel, since: int) -> Body:
        now = self.version(broadcast.state)
        forms = [self.whole(broadcast)]
        names = [f"step/{number}" for number in range(since + 1, now + 1)]
        if since != LOST and all(name in broadcast.state for name in names):
            steps = [Body.from_tensor(broadcast.state[name]) for name in names]
            forms.append(frame(since, now, CatchUpForm.STEPS, steps))
        if since != LOST and now - since > 1 and "changed" in broadcast.state:
            positions = (broadcast.state["changed"] > since).nonzero().flatten().cpu()
            if len(positions) < broadcast.layout.size:
                values = encode_sparse(positions, broadcast.model.cpu()[positions], broadcast.layout)
                forms.append(frame(since, now, CatchUpForm.VALUES, [values]))
        return min(forms, key=lambda body: len(body.data))

    def whole(self, broadcast: BroadcastModel) -> Body:
        """What a client needs that has nothing, or has missed too much."""
        return frame(0, self.version(broadcast.state), CatchUpForm.WHOLE, [broadcast.whole])

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        since, now, form, items = read(body, layout)
        version = int(state["version"]) if "version" in state else 0
        if form == CatchUpForm.WHOLE:
            model = decode_body(items[0], layout).dense()
        elif form == CatchUpForm.ACCELERATED:
            raise PacketError("form", "a broadcast has no accelerated steps")
        elif version != since:
            raise LostState
        else:
            model = state["model"].clone() if "model" in state else initial.clone()
            for item in items:
                payload = body.memo.get("step") or decode_body(item, layout)
                if len(items) == 1:
                    # Most clients in one process share this body. A client that missed more steps has its own.
                    body.memo["step"] = payload
                if form == CatchUpForm.STEPS:
                    payload.add_to(model, 1.0)
                else:
                    payload.write_to(model)
        return model, {"model": model, "version": torch.tensor(now)}

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count per step; 64 per value with its position; 32 d for the whole model."""
        _, _, form, items = read(body, layout)
        if form == CatchUpForm.STEPS:
            return sum(self.compression.paper_bits(layout, item) for item in items)
        if form == CatchUpForm.VALUES:
            positions = decode_body(items[0], layout).positions
            return 32 * layout.size if positions is None else 64 * positions.numel()
        return 32 * layout.size
