"""How the mean update moves the server's model (algorithms.md, "Optimizers").

An optimizer is `init(model) -> state` and `step(mean, state) -> (step, state)`; the server *adds* the step. The mean
update y plays the part of a negative gradient: y = mean of (end - start).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from laconic.core.part import Part, State
from laconic.core.schedules import LARGEST, Schedule

Rate = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Part):
    """Base of the optimizers; `server_lr` is the server's learning rate, b."""

    server_lr: Rate
    server_schedule: Schedule
    """What the server's rate is multiplied with as rounds go by."""

    @property
    def linear(self) -> bool:
        """Whether every step is `server_lr` times the mean, so that whoever knows the mean can repeat it."""
        return False

    def init(self, model: Tensor) -> State:
        """The state before round 0."""
        raise NotImplementedError

    def step(self, mean: Tensor, state: State) -> tuple[Tensor, State]:
        """What to add to the model, and the new state."""
        raise NotImplementedError

    def scheduled(self, step: Tensor, round: int) -> Tensor:
        """A step, with the rate that the round has: every step here is in proportion to it."""
        factor = self.server_schedule.factor(round)
        return step if factor == 1 else factor * step
