"""SGD on the server, optionally with momentum, heavy-ball or Nesterov's."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.algorithms.optimizers.base import Decay, Optimizer, Rate, Window
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

    @property
    def linear(self) -> bool:
        return not self.momentum and self.server_schedule.name == "constant"

    def init(self, model: Tensor) -> State:
        return {"momentum": torch.zeros_like(model)} if self.momentum else {}

    def step(self, mean: Tensor, state: State) -> tuple[Tensor, State]:
        if not self.momentum:
            return self.server_lr * mean, state
        velocity = self.momentum * state["momentum"] + mean
        step = self.momentum * velocity + mean if self.nesterov else velocity
        return self.server_lr * step, {"momentum": velocity}
