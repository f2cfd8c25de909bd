"""Clients that hear the mean of a round repeat the server's step themselves. FedGATE [G, Algorithm 3, Option I].

[G] is Haddadpour et al. (2021). With all clients in every round the mean is then all that ever comes down; with few, a
client that was in the last round needs no model in the next.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import BroadcastModel, ClientModelVersion, Downlink, LostState
from laconic.algorithms.optimizers.base import Optimizer
from laconic.compression import DENSE, Codec, decode_body
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import State, part


@part("downlink", "repeated")
class Repeated(Downlink):
    """Both sides add b q, with q the mean that a method sends back; the whole model to whoever has missed a step."""

    server_lr: float | None = None
    """b; when not given it is that of the server's SGD."""

    def fitted(self, optimizer: Optimizer, sends_mean: bool) -> Repeated:
        """With the server's rate; refused where clients could not repeat the step."""
        if not optimizer.linear:
            raise ConfigError("downlink = 'repeated': clients can repeat only plain SGD with a constant rate")
        if not sends_mean:
            raise ConfigError(
                "downlink = 'repeated': needs a method that sends the mean back, such as gradient_tracking"
            )
        return self.replace(server_lr=optimizer.server_lr)

    def init(self, model: Tensor) -> State:
        """The initial model is version 0."""
        return {"version": torch.tensor(0)}

    def advance(self, model: Tensor, step: Tensor, state: State, context: RoundContext) -> tuple[Tensor, State]:
        """One step more."""
        return model + step, {"version": state["version"] + 1}

    def version(self, state: State) -> int:
        """How many steps there were."""
        return int(state["version"])

    def send(self, publication: BroadcastModel, held: ClientModelVersion, context: RoundContext) -> Body:
        """Nothing to a client that has the model already."""
        return Body(Codec.SKIP) if held.version == self.version(publication.state) else publication.whole

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        """The model as sent, or the one that the client has."""
        if body.codec != Codec.SKIP:
            model = decode_body(body, layout).dense()
        elif lost:
            raise LostState
        else:
            model = state.get("model", initial)
        return model, {"model": model.clone()}

    def repeat(self, state: State, mean: Tensor) -> State:
        """The server's step, on the client."""
        assert self.server_lr is not None
        return {"model": state["model"] + self.server_lr * mean}

    def repeated_version(self, version: int) -> int:
        """A client that has the mean has the next model."""
        return version + 1

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """32 d, or nothing."""
        return 0 if body.codec == Codec.SKIP else DENSE.paper_bits(layout)
