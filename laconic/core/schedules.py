"""Learning rates that change over the rounds, and gradients that are kept from being too long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import PlainSerializer, PlainValidator
from torch import Tensor

LARGEST = 3.4e38
"""The largest number that float32 has, nearly: what a rate is multiplied with is of that type."""
SPELLINGS = "constant, step:ROUNDS:FACTOR, inverse_sqrt or cosine:ROUNDS"


@dataclass(frozen=True)
class RateSchedule:
    """What a learning rate is multiplied with in each round.

    >>> halving = parse_schedule("step:100:0.5")
    >>> halving.factor(99), halving.factor(100), halving.factor(250)
    (1.0, 0.5, 0.25)
    >>> parse_schedule("cosine:200").factor(100)
    0.5
    """

    name: str = "constant"
    rounds: int = 0
    """`step`: how long the rate stays as it is. `cosine`: the round in which it is nothing."""
    by: float = 1.0

    def factor(self, round: int) -> float:
        """The factor in that round; 1 in round 0."""
        if self.name == "step":
            return float(self.by ** (round // self.rounds))
        if self.name == "inverse_sqrt":
            return 1 / math.sqrt(round + 1)
        if self.name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(round / self.rounds, 1.0)))
        return 1.0

    def __str__(self) -> str:
        """As it is written in a config."""
        if self.name == "step":
            return f"step:{self.rounds}:{self.by}"
        return f"cosine:{self.rounds}" if self.name == "cosine" else self.name


def parse_schedule(text: Any) -> RateSchedule:
    """Read a schedule as people write it."""
    if isinstance(text, RateSchedule):
        return text
    name, *numbers = str(text).split(":")
    wanted = {"constant": 0, "step": 2, "inverse_sqrt": 0, "cosine": 1}
    try:
        if wanted[name] != len(numbers):
            raise ValueError
        rounds = int(numbers[0]) if numbers else 0
        by = float(numbers[1]) if len(numbers) > 1 else 1.0
        if numbers and (rounds < 1 or not 0 < by < math.inf):
            raise ValueError
    except (KeyError, ValueError):
        raise ValueError(f"must be {SPELLINGS}") from None
    return RateSchedule(name, rounds, by)


Schedule = Annotated[RateSchedule, PlainValidator(parse_schedule), PlainSerializer(str)]


def clipped(vectors: Tensor, norm: float | None) -> Tensor:
    """Rows that are longer than `norm`, brought to that length; in place."""
    if norm is None:
        return vectors
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors.mul_((norm / lengths.clamp(min=torch.finfo(vectors.dtype).tiny)).clamp(max=1.0))
