"""Two-way Fed-EF: the server compresses its own step with error memory, and all clients share one model.

[E] is Li and Li (2023), Algorithm 3, in the reading that its proof needs: with s the optimizer's step, H = C(s + phi);
phi += s - H; server and clients add H.

Clients that were away get what they missed in the cheapest form: the packets one after the other, one packet with the
server's present values wherever anything has changed, or the whole model. Values replace, they are not added, so that both
sides agree to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST, BroadcastModel, ClientModelVersion, Downlink, LostState
from laconic.algorithms.downlinks.catch_up import MOST_STEPS, Form, frame, read
from laconic.algorithms.link import CompressedLink
from laconic.compression import decode_body, encode_sparse
from laconic.compression.packet import Body
from laconic.core.layout import Layout
from laconic.core.part import State, part
from laconic.core.randomness import Draw


@part("downlink", "broadcast")
class Broadcast(CompressedLink, Downlink):
    """H = C(s + phi); phi += s - H; everybody adds H [E, Algorithm 3]."""

    def __post_init__(self) -> None:
        self.compressor.scaled_for_feedback()  # refuses what cannot contract, before any work

    def init(self, model: Tensor) -> State:
        """phi_0 = 0; the initial model is version 0."""
        changed = torch.zeros(model.shape, dtype=torch.int32, device=model.device)
        return {"phi": torch.zeros_like(model), "version": torch.tensor(0), "changed": changed}

    def version(self, state: State) -> int:
        """How many steps were broadcast."""
        return int(state["version"])

    def advance(self, model: Tensor, step: Tensor, state: State, context: RoundContext) -> tuple[Tensor, State]:
        """One step, kept for those who are away as long as the whole model would cost more."""
        target = step + state["phi"]
        body = self.compression.scaled_for_feedback().encode(target, context.layout, context.generator(Draw.DOWNLINK))
        payload = decode_body(body, context.layout)
        payload.add_to(target, -1.0)
        new_model = model.clone()
        payload.add_to(new_model, 1.0)
        version = self.version(state) + 1
        changed = state["changed"].clone()
        changed[slice(None) if payload.positions is None else payload.positions.to(changed.device)] = version
        log = {name: value for name, value in state.items() if name.startswith("step/")}
        log[f"step/{version}"] = body.to_tensor()
        # A client that missed more than a whole model's worth of steps, or too many, is sent the model: older ones can go.
        size = sum(value.numel() for value in log.values())
        for name in sorted(log, key=_number):
            if size <= model.numel() * model.element_size() and len(log) <= MOST_STEPS:
                break
            size -= log.pop(name).numel()
        return new_model, {"phi": target, "version": torch.tensor(version), "changed": changed, **log}

    def send(self, publication: BroadcastModel, held: ClientModelVersion, context: RoundContext) -> Body:
        """The cheapest of the three forms."""
        if held.version not in publication.by_version:
            publication.by_version[held.version] = self._cheapest(publication, held.version)
        return publication.by_version[held.version]

    def _cheapest(self, publication: BroadcastModel, since: int) -> Body:
        now = self.version(publication.state)
        forms = [frame(0, now, Form.WHOLE, [publication.whole])]
        names = [f"step/{number}" for number in range(since + 1, now + 1)]
        if since != LOST and all(name in publication.state for name in names):
            steps = [Body.from_tensor(publication.state[name]) for name in names]
            forms.append(frame(since, now, Form.STEPS, steps))
        if since != LOST and now - since > 1:
            positions = (publication.state["changed"] > since).nonzero().flatten().cpu()
            if len(positions) < publication.layout.size:
                values = encode_sparse(positions, publication.model.cpu()[positions], publication.layout)
                forms.append(frame(since, now, Form.VALUES, [values]))
        return min(forms, key=lambda body: len(body.data))

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        """The server's model, to the bit."""
        since, now, form, items = read(body, layout)
        have = int(state["version"]) if "version" in state else 0
        if form == Form.WHOLE:
            model = decode_body(items[0], layout).dense()
        elif have != since:
            raise LostState
        else:
            model = state["model"].clone() if "model" in state else initial.clone()
            for item in items:
                payload = decode_body(item, layout)
                if form == Form.STEPS:
                    payload.add_to(model, 1.0)
                else:
                    payload.write_to(model)
        return model, {"model": model.clone(), "version": torch.tensor(now)}

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count for every step; 64 per value with its position; 32 d for the whole."""
        _, _, form, items = read(body, layout)
        if form == Form.STEPS:
            return sum(self.compression.paper_bits(layout) for item in items)
        if form == Form.VALUES:
            positions = decode_body(items[0], layout).positions
            return 32 * layout.size if positions is None else 64 * positions.numel()
        return 32 * layout.size


def _number(name: str) -> int:
    return int(name.removeprefix("step/"))
