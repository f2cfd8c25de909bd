"""SGD on the server, optionally with momentum, heavy-ball or Nesterov's, or with a limit on the noise of its steps."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.optimizers.base import Decay, Optimizer, Rate, Window
from laconic.core.errors import ConfigError
from laconic.core.part import State, part
from laconic.core.schedules import RateSchedule, Schedule


@part("optimizer", "sgd")
class SGD(Optimizer):
    """w += b y; with heavy-ball momentum: u = momentum u + y, w += b u.

    With `nesterov`: u = momentum u + y, w += b (momentum u + y), as in torch.optim.SGD and DiLoCo.
    """

    server_lr: Rate = 1.0
    """b, the server's learning rate."""
    momentum: Decay = 0.0
    """The decay of the momentum u; 0 is plain SGD."""
    nesterov: bool = False
    """Nesterov's momentum instead of heavy-ball momentum."""
    server_schedule: Schedule = RateSchedule()
    """The factor on `server_lr` in each round."""
    average: Window = 1
    """Evaluate and save an average of the model over this number of rounds; below 1, this share of the rounds so far."""
    noise_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Shorten a step s = b y so that ||s||^2 / (4 b r) is at most this; r is the sum of a client's local rates in the round.

    s / (b r) estimates the negative gradient. If s is mostly noise, SGD with such steps ends about ||s||^2 / (4 b r) above
    the smallest loss (on a quadratic, for any curvature). No effect if local steps are not plain gradient steps.
    """
    stretch: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Multiplies b wherever `noise_limit` has an effect."""

    def __post_init__(self) -> None:
        if self.noise_limit is not None and self.momentum:
            raise ConfigError(
                f"optimizer.noise_limit = {self.noise_limit:g}: not with momentum, which adds up old noise"
            )

    @property
    def linear(self) -> bool:
        return not self.momentum and self.server_schedule.name == "constant" and self.noise_limit is None

    @property
    def needs_path(self) -> bool:
        return self.noise_limit is not None

    def init(self, model: Tensor) -> State:
        return {"momentum": torch.zeros_like(model)} if self.momentum else {}

    def step(self, mean: Tensor, state: State) -> tuple[Tensor, State]:
        if not self.momentum:
            return self.server_lr * mean, state
        velocity = self.momentum * state["momentum"] + mean
        step = self.momentum * velocity + mean if self.nesterov else velocity
        return self.server_lr * step, {"momentum": velocity}

    def scheduled(self, step: Tensor, round: int, path: float | None = None) -> Tensor:
        step = super().scheduled(step, round)
        rate = self.stretch * self.server_lr * self.server_schedule.factor(round) * (path or 0.0)
        if self.noise_limit is None or not rate:
            return step
        norm = self.stretch * float(torch.linalg.vector_norm(step))
        excess = norm * norm / (4 * rate)  # a huge norm gives infinity, where norm**2 raises
        factor = self.stretch * math.sqrt(self.noise_limit / max(excess, self.noise_limit))
        return step.mul(factor)
