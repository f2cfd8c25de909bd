"""Adaptive server optimizers: Adagrad, Adam, Yogi, AMSGrad and AMS.

[C] is FedAMS/FedCAMS (Wang, Lin and Chen, 2022), [R] Adaptive Federated Optimization (Reddi et al., 2021),
[E] Fed-EF (Li and Li, 2023).
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.optimizers.base import Decay, Optimizer, Rate, Window, zeros_like
from laconic.core.part import State, checked, part
from laconic.core.schedules import RateSchedule, Schedule

_BLOCK = 1 << 16
"""Entries per step, so that temporaries fit into the cache and take no memory of the model's size."""


@checked
class Adaptive(Optimizer):
    """m = b1 m + (1 - b1) y; v follows the subclass; the step is b m / (sqrt(v) + eps).

    The papers use no bias correction; the authors' code of [C] does: `bias_correction=True`.
    """

    server_lr: Rate = 0.03
    """b, the server's learning rate."""
    beta1: Decay = 0.9
    """b1, the decay of m."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    """eps. It bounds the step of entries whose v is small."""
    bias_correction: bool = False
    """Divide m by 1 - b1^t and v by 1 - b2^t in step t, as Adam does."""
    server_schedule: Schedule = RateSchedule()
    """The factor on `server_lr` in each round."""
    average: Window = 1
    """Evaluate and save an average of the model over this number of rounds; below 1, this share of the rounds so far."""

    @property
    def adaptive(self) -> bool:
        return True

    def init(self, model: Tensor) -> State:
        state = {"m": zeros_like(model), "v": zeros_like(model)}
        if self.bias_correction:
            state["t"] = torch.zeros((), dtype=torch.int64)
        return state

    def step(self, mean: Tensor, state: State) -> tuple[Tensor, State]:
        """The step in a new tensor; the vectors of the state are overwritten, block by block."""
        rate, correction = self.server_lr, 1.0
        vectors, rest = {name: value for name, value in state.items() if name != "t"}, {}
        if self.bias_correction:
            rest = {"t": state["t"] + 1}
            rate /= 1 - self.beta1 ** int(rest["t"])
            correction = (1 - self.second_decay ** int(rest["t"])) ** -0.5
        step = torch.empty_like(mean)
        for start in range(0, len(mean), _BLOCK):
            block = {name: value[start : start + _BLOCK] for name, value in vectors.items()}
            y, m = mean[start : start + _BLOCK], block["m"]
            torch.lerp(y, m, self.beta1, out=m)
            self.second_moment(block["v"], y)
            torch.mul(m, rate, out=step[start : start + _BLOCK]).div_(self.denominator(block, correction))
        return step, vectors | rest

    @property
    def second_decay(self) -> float:
        """b2, for bias correction; 0 for Adagrad, whose v is a sum."""
        return 0.0

    def second_moment(self, v: Tensor, mean: Tensor) -> None:
        """Replace v by the new one, in place."""
        raise NotImplementedError

    def denominator(self, state: State, correction: float) -> Tensor:
        """sqrt(v) + eps in a new tensor; subclasses that use a running maximum update it in `state`, in place."""
        return state["v"].sqrt().mul_(correction).add_(self.epsilon)


@part("optimizer", "adagrad")
class Adagrad(Adaptive):
    """FedAdagrad [R, Algorithm 2]: v += y^2."""

    def second_moment(self, v: Tensor, mean: Tensor) -> None:
        v.add_(mean.square())


@part("optimizer", "adam")
class Adam(Adaptive):
    """FedAdam [R, Algorithm 2]: v = b2 v + (1 - b2) y^2."""

    beta2: Decay = 0.99
    """b2, the decay of v."""

    @property
    def second_decay(self) -> float:
        return self.beta2

    def second_moment(self, v: Tensor, mean: Tensor) -> None:
        torch.lerp(mean.square(), v, self.beta2, out=v)


@part("optimizer", "yogi")
class Yogi(Adam):
    """FedYogi [R, Algorithm 2]: v -= (1 - b2) sign(v - y^2) y^2."""

    def second_moment(self, v: Tensor, mean: Tensor) -> None:
        square = mean.square()
        v.sub_((1 - self.beta2) * torch.sign(v - square) * square)

    def denominator(self, state: State, correction: float) -> Tensor:
        # The authors' code of [C] applies the correction to the sum, not to the root alone.
        return state["v"].sqrt().add_(self.epsilon).mul_(correction)


@part("optimizer", "amsgrad")
class AMSGrad(Adam):
    """FedAMSGrad [C, Algorithm 1, option 2]: vhat = max(vhat, v), step b m / (sqrt(vhat) + eps).

    Fed-EF-AMS [E, Algorithm 1] puts eps inside the root: `epsilon_inside=True`.
    """

    epsilon_inside: bool = False
    """The denominator is sqrt(vhat + eps) instead of sqrt(vhat) + eps."""

    def init(self, model: Tensor) -> State:
        return super().init(model) | {"vhat": torch.zeros_like(model)}

    def denominator(self, state: State, correction: float) -> Tensor:
        largest = torch.maximum(state["vhat"], state["v"], out=state["vhat"])
        if self.epsilon_inside:
            return (largest + self.epsilon).sqrt_().mul_(correction)
        return largest.sqrt().mul_(correction).add_(self.epsilon)


@part("optimizer", "ams")
class AMS(Adam):
    """FedAMS [C, Algorithm 1, option 1], max stabilization: vhat = max(vhat, v, eps), step b m / sqrt(vhat)."""

    def init(self, model: Tensor) -> State:
        # vhat never decreases, so starting at eps is the same as max(vhat, v, eps) in every step.
        return super().init(model) | {"vhat": torch.full_like(model, self.epsilon)}

    def denominator(self, state: State, correction: float) -> Tensor:
        return torch.maximum(state["vhat"], state["v"], out=state["vhat"]).sqrt().mul_(correction)
