"""Settings of the simulated network, the injected faults and Ray.

Importable without torch: the command line reads its options from them.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from laconic.core.spelling import convert, parse

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_UNITS = {
    # "Mb" is ambiguous: it means bits to some and bytes to others.
    "bandwidth": {
        f"{scale}{unit}": bits * factor
        for scale, factor in _SCALES.items()
        for unit, bits in (("bit", 1), ("bps", 1), ("B", 8))
    },
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
}
_EXAMPLES = {
    "bandwidth": "1Mbit or 500kB (a second), or lognormal:1Mbit,0.5",
    "latency": "50ms or 0.2s, or lognormal:50ms,0.5",
}
_Deviation = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_NUMBER = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zA-Z]*)(?:/s)?\s*")


def quantity(text: str, kind: str) -> float:
    """Parse a bandwidth (in bits per second) or a latency (in seconds).

    >>> quantity("1Mbit", "bandwidth"), quantity("500 kB/s", "bandwidth"), quantity("50ms", "latency")
    (1000000.0, 4000000.0, 0.05)
    """
    match = _NUMBER.fullmatch(text)
    units = _UNITS[kind] | ({"mbit": 1e6, "gbit": 1e9, "Kbit": 1e3, "KB": 8e3} if kind == "bandwidth" else {"": 1.0})
    if match is None or match[2] not in units:
        raise ValueError(f"not a {kind}; write it as in {_EXAMPLES[kind]}")
    value = float(match[1]) * units[match[2]]
    if not (math.isfinite(value) and (value > 0 or kind == "latency")):
        raise ValueError(f"not a {kind}: it must be above 0")
    return value


class Spread(NamedTuple):
    """A lognormal distribution over clients: its median, and the standard deviation of the logarithm (0: constant)."""

    median: float
    deviation: float = 0.0

    @classmethod
    def parse(cls, text: str, kind: str) -> Spread:
        """Parse `1Mbit` or `lognormal:1Mbit,0.5`."""
        spelling = parse(text)
        if spelling.name != "lognormal":
            return cls(quantity(text, kind))
        try:
            median, deviation = spelling.positional()
            return cls(quantity(median, kind), convert(deviation, _Deviation))
        except ValueError:
            raise ValueError(f"write lognormal:MEDIAN,SIGMA, as in {_EXAMPLES[kind].rpartition(' ')[2]}") from None


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return quantity(value, "latency")
    except ValueError:
        raise ValueError("a time is allowed, as in 30, 30s or 500ms") from None


class Network(BaseModel):
    """The simulated connections of the clients. Only the deadline changes the result of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    bandwidth_up: str | None = None
    """Simulated upload bandwidth, as in 1Mbit or lognormal:1Mbit,0.5 (median, sigma); unlimited by default."""
    bandwidth_down: str | None = None
    """Simulated download bandwidth, in the same form."""
    latency: str = "0s"
    """Simulated one-way latency, as in 50ms or lognormal:50ms,0.5."""
    compute: Annotated[float, Field(ge=0)] = 0.0
    """Simulated seconds for the gradient of one example."""
    deadline: Annotated[float, BeforeValidator(_seconds), Field(gt=0)] | None = None
    """Simulated duration after which a round ends, as in 30 or 500ms; later replies are dropped."""
    trace: str | None = None
    """CSV file of measured connections: columns up, down, latency, client, and round (the first that a row applies to)."""

    @field_validator("bandwidth_up", "bandwidth_down", "latency")
    @classmethod
    def _readable(cls, text: str | None, info: Any) -> str | None:
        if text is not None:
            Spread.parse(text, info.field_name.partition("_")[0])
        return text

    @model_validator(mode="after")
    def _complete(self) -> Network:
        timed = self.bandwidth_up or self.bandwidth_down or self.trace or self.compute or self.latency != "0s"
        if self.deadline is not None and not timed:
            raise ValueError("a deadline needs simulated durations: set bandwidth_up, bandwidth_down or latency")
        return self

    def any(self) -> bool:
        """Whether a network is simulated."""
        return self != Network()


Chance = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Faults(BaseModel):
    """The probability of each fault per client and round, and the number of attackers."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    drop: Chance = 0.0
    """Probability that an update is lost."""
    late: Chance = 0.0
    """Probability that an update arrives after its round has ended."""
    duplicate: Chance = 0.0
    """Probability that an update arrives twice."""
    crash: Chance = 0.0
    """Probability that a client crashes at a random moment of its round."""
    lose_state: Chance = 0.0
    """Probability that a client loses its state."""
    not_finite: Count = 0
    """Number of attackers that send NaN."""
    boosted: Count = 0
    """Number of attackers that multiply their vectors by `boost`."""
    boost: Annotated[float, Field(allow_inf_nan=False)] = 1000.0
    """Factor of the boosted attackers."""

    def any(self) -> bool:
        """Whether any fault can happen."""
        return any(getattr(self, name) > 0 for name in type(self).model_fields if name != "boost")


class RaySettings(BaseModel):
    """Settings of the Ray engine. They do not change the result, unless a worker dies."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    workers: Annotated[int, Field(ge=1)] | None = None
    """With the engine ray: number of worker processes; one per core by default."""
    address: str | None = None
    """With the engine ray: address of a running cluster (host:port or auto); by default Ray starts on this machine."""
    repeat: bool = False
    """Whether to run the clients of a dead worker again; otherwise the round continues without them."""
    folder: str | None = None
    """Folder for client states on each worker's machine; by default in the run's directory."""
