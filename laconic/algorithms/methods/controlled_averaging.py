"""SCALLION and SCAFCOM: SCAFFOLD with compression, and one vector up instead of two.

[H] is Huang, Li and Li, "Stochastic Controlled Averaging for Federated Learning with Communication Compression", ICLR 2024.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Self

import numpy as np
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import method
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.control_variates import ControlVariates
from laconic.algorithms.methods.exchange import TRAIN, UPDATE, Answer, Exchange, Phase
from laconic.algorithms.methods.received import Received
from laconic.algorithms.methods.shared_state import SharedState
from laconic.algorithms.uplinks.base import Uplink
from laconic.core.errors import ConfigError
from laconic.core.part import State, checked

Share = Annotated[float, Field(gt=0, le=1)]


@checked
class ControlledAveraging(ControlVariates):
    """SCAFFOLD's local steps; a client sends only the change d_i of its control variate, which contains the update.

    The server: w -= b a K (mean d_i + c), then c += sum(d_i) / N. Without compression both methods are SCAFFOLD.

    On failure: a lost difference changes neither c nor c_i. A client that loses its state restarts with c_i = 0; its earlier
    c_i remains in c.
    """

    sensitivity = "its stream 'control' has neither clip nor noise"

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        train, first = super().phases(uplink)
        return replace(train, up=tuple(stream for stream in train.up if stream is not UPDATE)), first

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        mean = received.mean(self.control.name)
        moved = super().gather(exchange, state, received, context)
        if mean is None or exchange.phase != TRAIN:
            return moved
        distance = self.rate(context.round) * (self.local_steps or 0)
        return moved | {"step": -distance * (mean + state[self.control.name])}  # c from before this round

    def update(self, received: Received, state: State) -> Tensor | None:
        return state.get("step") if self.control.name in received.arrived else None

    def check(self, sizes: np.ndarray, weighting: str) -> None:
        super().check(sizes, weighting)
        if self.local_steps is None:
            given = f"method.local_epochs = {self.local_epochs}"
            raise ConfigError(f"{given}: the server of {self.name} must know the number of steps; use local_steps")


@method("scallion")
class SCALLION(ControlledAveraging):
    """d_i = Q(alpha (gbar_i - c_i)), Q unbiased, with gbar_i the mean local gradient; c_i += d_i [H, Algorithm 2]."""

    control = SharedState(down=True, contractive=False, draw="CONTROL")
    alpha: Share = 0.1
    """The weight of a new gradient in c_i. The noisier the compressor, the smaller it should be."""
    sensitivity = ControlledAveraging.sensitivity

    def resolve(self, uplink: Uplink) -> Self:
        uplink.unbiased_compression(self.name)
        return self

    def local(self, cohort: Cohort) -> Answer:
        return Answer(control=self.alpha * super().local(cohort).vectors[self.control.name])


@method("scafcom")
class SCAFCOM(ControlledAveraging):
    """v_i = (1 - r) v_i + r gbar_i; d_i = C(v_i - c_i), C contractive; c_i += d_i [H, Algorithm 3].

    gbar_i is the mean local gradient. A client's first v_i is its gbar_i.
    """

    momentum_rate: Share = 0.2
    """r, the weight of a new gradient in the average (beta in the paper)."""
    sensitivity = ControlledAveraging.sensitivity

    def local(self, cohort: Cohort) -> Answer:
        own = cohort.state.control
        gradients = super().local(cohort).vectors[self.control.name] + own
        return Answer(control=cohort.moving_average("average", gradients, self.momentum_rate) - own)
