"""A probability for every round: a list that repeats, or a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator

from laconic.core.errors import ConfigError
from laconic.core.user_code import is_own, load_function


@dataclass(frozen=True)
class ProbabilitySequence:
    """p_t of every round t: a list that starts again at its end, or a function of t.

    >>> sequence = parse_probabilities("1,0,0.5")
    >>> [sequence.at(round) for round in range(4)]
    [1.0, 0.0, 0.5, 1.0]
    >>> parse_probabilities(lambda round: 1 / (round + 1)).at(3)
    0.25
    """

    values: tuple[float, ...] = ()
    function: Callable[[int], float] | None = None
    spelling: str = ""
    """In a config: `1,0,0`, or `path/to/file.py:function`."""

    def at(self, round: int) -> float:
        """p in a round, from 0."""
        if self.function is None:
            return self.values[round % len(self.values)]
        value = float(self.function(round))
        if not 0 <= value <= 1:
            raise ConfigError(f"method.probability = {self.spelling}: {value} in round {round}: must be from 0 to 1")
        return value

    def __str__(self) -> str:
        return self.spelling


def parse_probabilities(value: Any) -> ProbabilitySequence:
    """Read a list of numbers, a function of the round, or the spelling of either."""
    if isinstance(value, ProbabilitySequence):
        return value
    if callable(value):
        spelling = f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
        return ProbabilitySequence(function=value, spelling=spelling)
    if isinstance(value, str) and is_own(value):
        return ProbabilitySequence(function=load_function(value, "method.probability"), spelling=value)
    try:
        numbers = tuple(float(number) for number in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(0 <= number <= 1 for number in numbers):
        raise ValueError("a list such as 1,0,0 that repeats, or a function of the round")
    return ProbabilitySequence(numbers, spelling=",".join(f"{number:g}" for number in numbers))


AnyProbabilities = Annotated[ProbabilitySequence, PlainValidator(parse_probabilities)]
