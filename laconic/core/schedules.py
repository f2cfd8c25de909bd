"""Learning-rate schedules and gradient clipping."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PlainSerializer, PlainValidator, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from laconic.core.spelling import Choice, choose

LARGEST = 3.4e38
"""About the largest float32. Learning rates are multiplied with float32 tensors."""


@dataclass(frozen=True)
class RateSchedule(Choice):
    """The factor on a learning rate in each round. The base class is constant.

    >>> halving = parse_schedule("step:100:0.5")
    >>> halving.factor(99), halving.factor(100), halving.factor(250)
    (1.0, 0.5, 0.25)
    >>> parse_schedule("cosine:200").factor(100)
    0.5
    """

    name: ClassVar[str] = "constant"

    def factor(self, round: int) -> float:
        """The factor in a round; 1 in round 0."""
        return 1.0


@dataclass(frozen=True)
class Step(RateSchedule):
    """decay^floor(t / rounds)."""

    name: ClassVar[str] = "step"
    rounds: PositiveInt
    decay: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def factor(self, round: int) -> float:
        return float(self.decay ** (round // self.rounds))


@dataclass(frozen=True)
class InverseSqrt(RateSchedule):
    """1 / sqrt(1 + t / rounds): about 1 for the first `rounds` rounds. It does not depend on the length of the run."""

    name: ClassVar[str] = "inverse_sqrt"
    rounds: PositiveInt = 1

    def factor(self, round: int) -> float:
        return 1 / math.sqrt(1 + round / self.rounds)


@dataclass(frozen=True)
class Cosine(RateSchedule):
    """(1 + cos(pi t / rounds)) / 2; 0 after `rounds`."""

    name: ClassVar[str] = "cosine"
    rounds: PositiveInt

    def factor(self, round: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(round / self.rounds, 1.0)))


@dataclass(frozen=True)
class WarmUp(RateSchedule):
    """(t + 1) / rounds; 1 after `rounds`."""

    name: ClassVar[str] = "warmup"
    rounds: PositiveInt

    def factor(self, round: int) -> float:
        return min((round + 1) / self.rounds, 1.0)


SCHEDULES = {cls.name: cls for cls in (RateSchedule, Step, InverseSqrt, Cosine, WarmUp)}


def parse_schedule(text: Any) -> RateSchedule:
    """Parse `constant`, `step:ROUNDS:DECAY`, `inverse_sqrt:ROUNDS`, `cosine:ROUNDS` or `warmup:ROUNDS`."""
    return text if isinstance(text, RateSchedule) else choose(str(text), SCHEDULES)


def parse_step_schedule(text: Any) -> RateSchedule:
    """Parse a schedule within a round, which counts steps."""
    try:
        return parse_schedule(text)
    except ValueError as error:
        raise ValueError(str(error).replace("ROUNDS", "STEPS").replace("rounds", "steps")) from None


StepSchedule = Annotated[RateSchedule, PlainValidator(parse_step_schedule), PlainSerializer(str)]
Schedule = Annotated[RateSchedule, PlainValidator(parse_schedule), PlainSerializer(str)]


def clipped(vectors: Tensor, norm: float | None) -> Tensor:
    """Scale rows with a larger norm down to `norm`, in place."""
    if norm is None:
        return vectors
    norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors.mul_((norm / norms.clamp(min=torch.finfo(vectors.dtype).tiny)).clamp(max=1.0))
