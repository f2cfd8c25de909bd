"""Clients that receive the mean of a round repeat the server's step. FedGATE [G, Algorithm 3, Option I].

[G] is Haddadpour et al. (2021). A client that took part in the last round needs no model in the next one. With full
participation the server only ever sends means.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import BroadcastModel, ClientModelVersion, Downlink, LostState
from laconic.algorithms.optimizers.base import Optimizer
from laconic.compression import Codec, decode_body
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import BOUNDED, State, part


@part("downlink", "repeated")
class Repeated(Downlink):
    """Server and clients add b q, with q the mean of the round. A client that missed a step gets the whole model."""

    server_lr: float | None = None
    """b; by default that of the server's SGD."""
    sensitivity = BOUNDED

    def resolve(self, optimizer: Optimizer, sends_mean: bool) -> Repeated:
        if not optimizer.linear:
            raise ConfigError("downlink = 'repeated': clients can repeat only plain SGD with a constant rate")
        if not sends_mean:
            raise ConfigError(
                "downlink = 'repeated': needs a method that sends the mean back, such as gradient_tracking"
            )
        return self.replace(server_lr=optimizer.server_lr)

    def init(self, model: Tensor) -> State:
        return {"version": torch.tensor(0)}

    def advance(self, model: Tensor, step: Tensor, state: State, context: RoundContext) -> tuple[Tensor, State]:
        return model + step, {"version": state["version"] + 1}

    def version(self, state: State) -> int:
        """The number of steps so far."""
        return int(state["version"])

    def send(self, broadcast: BroadcastModel, client: ClientModelVersion, context: RoundContext) -> Body:
        return Body(Codec.SKIP) if client.version == self.version(broadcast.state) else broadcast.whole

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        if body.codec != Codec.SKIP:
            model = decode_body(body, layout).dense()
        elif lost:
            raise LostState
        else:
            model = state.get("model", initial)
        return model, {"model": model}

    def repeat(self, state: State, mean: Tensor) -> State:
        assert self.server_lr is not None
        return {"model": state["model"] + self.server_lr * mean}

    def repeated_version(self, version: int) -> int:
        return version + 1

    def paper_bits(self, body: Body, layout: Layout) -> int:
        return 0 if body.codec == Codec.SKIP else super().paper_bits(body, layout)
