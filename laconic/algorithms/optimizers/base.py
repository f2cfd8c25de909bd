"""The base of server optimizers: `init(model) -> state` and `step(mean, state) -> (step, state)`.

The server *adds* the step. The mean update y = mean(end - start) takes the role of the negative gradient.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from laconic.core.errors import ConfigError
from laconic.core.part import BOUNDED, Part, State
from laconic.core.schedules import LARGEST, RateSchedule, Schedule

Rate = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Window = PositiveInt | Annotated[float, Field(gt=0, lt=1)]
"""A number of rounds, or a share of the rounds so far."""


def zeros_like(model: Tensor) -> Tensor:
    """Zeros whose memory is taken only when they are first written."""
    return torch.from_numpy(np.zeros(model.shape, torch.empty(0, dtype=model.dtype).numpy().dtype)).to(model.device)


class Optimizer(Part):
    """Base of the server optimizers; `server_lr` is b, the server's learning rate."""

    server_lr: Rate
    """b, the server's learning rate."""
    server_schedule: Schedule = RateSchedule()
    """The factor on `server_lr` in each round."""
    average: Window = 1
    """Evaluate and save a moving average of the model over about this number of rounds. Clients get the model itself.

    A value below 1 is a share of the rounds so far: with 1/8, the average of round 400 is that of about 50 rounds.
    """
    sensitivity = BOUNDED  # of every optimizer: it sees only the mean, which has the noise already

    @property
    def linear(self) -> bool:
        """Whether every step is `server_lr` times the mean, so that a client that knows the mean can repeat it."""
        return False

    @property
    def adaptive(self) -> bool:
        """Whether steps are scaled entry by entry, as in Adam, so that the best `server_lr` must be searched for."""
        return False

    @property
    def needs_path(self) -> bool:
        """Whether `scheduled` needs the path of the method's local steps."""
        return False

    def init(self, model: Tensor) -> State:
        """The state before round 0, a dict of tensors; by default empty."""
        return {}

    def step(self, mean: Tensor, state: State) -> tuple[Tensor, State]:
        """The step, which `Downlink.advance` adds to the model, and the new state, which may overwrite the old one."""
        raise ConfigError(
            f"optimizer '{self.name}': define `step(self, mean, state)`, which returns the step and the state"
        )

    def average_weight(self, rounds: int) -> float:
        """The weight of the newest model in the average after t rounds.

        2 / (t + 1), at least 1 / `average`; for a share 1 / m of the rounds m / (t + m - 1), the polynomial decay of
        Shamir and Zhang (ICML 2013).
        """
        if self.average < 1:
            return 1 / (1 + self.average * (rounds - 1))
        return max(2 / (rounds + 1), 1 / self.average)

    def scheduled(self, step: Tensor, round: int, path: float | None = None) -> Tensor:
        """The step times the schedule's factor for the round. Every step is proportional to `server_lr`.

        `path` is the sum of a client's local rates in the round (`Method.path`), if the optimizer `needs_path`.
        """
        factor = self.server_schedule.factor(round)
        return step if factor == 1 else factor * step
