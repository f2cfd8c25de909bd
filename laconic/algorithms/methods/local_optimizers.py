"""Optimizers of local steps, as in torch.optim, for a cohort: every vector is a row of a matrix [C, d]."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PlainSerializer, PlainValidator
from pydantic.dataclasses import dataclass
from torch import Tensor

from laconic.core.part import State
from laconic.core.spelling import Choice, choose

Decay = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
COUNT = "count"
"""The state entry with the number of steps that each client has taken, [C, 1]."""


@dataclass(frozen=True)
class LocalOptimizer(Choice):
    """SGD: W -= a (g + weight_decay W). Subclasses replace `direction`."""

    name: ClassVar[str] = "sgd"
    # In order, the number in adam:0.001 would be the weight decay, not the rate that its author means.
    named: ClassVar[str] = "settings have names, and the rate is local_lr"
    vectors: ClassVar[tuple[str, ...]] = ()
    """The names of its state's vectors, each [C, d]."""
    weight_decay: NotNegative = 0.0

    @property
    def plain(self) -> bool:
        """Whether a step is W -= a g."""
        return type(self) is LocalOptimizer and not self.weight_decay

    def step(self, models: Tensor, gradients: Tensor, rate: float, state: State, working: Tensor) -> None:
        """Move `models` [C, d] in place. `working` [C, 1] is 0 for a client that has finished, which must not move."""
        state[COUNT] = state[COUNT] + working
        if self.weight_decay:
            gradients = gradients + self.weight_decay * models
        models.sub_(self.direction(gradients, state, working) * working, alpha=rate)

    def direction(self, gradients: Tensor, state: State, working: Tensor) -> Tensor:
        """The step for a rate of 1. Updates the vectors of clients that have not finished."""
        return gradients


@dataclass(frozen=True)
class Momentum(LocalOptimizer):
    """m = momentum m + g; W -= a m."""

    name: ClassVar[str] = "momentum"
    vectors: ClassVar[tuple[str, ...]] = ("first_moment",)
    weight_decay: NotNegative = 0.0
    momentum: Decay = 0.9

    def direction(self, gradients: Tensor, state: State, working: Tensor) -> Tensor:
        moment = self.momentum * state["first_moment"] + gradients
        state["first_moment"] = torch.where(working > 0, moment, state["first_moment"])
        return moment


@dataclass(frozen=True)
class Nesterov(Momentum):
    """m = momentum m + g; W -= a (g + momentum m)."""

    name: ClassVar[str] = "nesterov"

    def direction(self, gradients: Tensor, state: State, working: Tensor) -> Tensor:
        return gradients + self.momentum * super().direction(gradients, state, working)


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; W -= a mhat / (sqrt(vhat) + eps), with bias correction."""

    name: ClassVar[str] = "adam"
    vectors: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    weight_decay: NotNegative = 0.0
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8

    def direction(self, gradients: Tensor, state: State, working: Tensor) -> Tensor:
        first = torch.lerp(gradients, state["first_moment"], self.beta1)
        second = torch.lerp(gradients.square(), state["second_moment"], self.beta2)
        for name, moment in (("first_moment", first), ("second_moment", second)):
            state[name] = torch.where(working > 0, moment, state[name])
        count = state[COUNT].clamp(min=1)
        corrected = second.div_(1 - self.beta2**count).sqrt_().add_(self.epsilon)
        return first.div(1 - self.beta1**count).div_(corrected)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: W *= 1 - a weight_decay before each step."""

    name: ClassVar[str] = "adamw"
    weight_decay: NotNegative = 0.01

    def step(self, models: Tensor, gradients: Tensor, rate: float, state: State, working: Tensor) -> None:
        state[COUNT] = state[COUNT] + working
        models.mul_(1 - rate * self.weight_decay * working)
        models.sub_(self.direction(gradients, state, working) * working, alpha=rate)


LOCAL_OPTIMIZERS = {cls.name: cls for cls in (LocalOptimizer, Momentum, Nesterov, Adam, AdamW)}


def parse_local_optimizer(text: Any) -> LocalOptimizer:
    """Parse `sgd`, `momentum`, `nesterov`, `adam` or `adamw`, with their settings: `adamw:weight_decay=0.1,beta2=0.95`."""
    return text if isinstance(text, LocalOptimizer) else choose(str(text), LOCAL_OPTIMIZERS)


AnyLocalOptimizer = Annotated[LocalOptimizer, PlainValidator(parse_local_optimizer), PlainSerializer(str)]
