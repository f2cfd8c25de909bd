"""The settings of this room. Importable without torch: the command line reads its options from them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_UNITS = {
    # "Mb" is left out: some mean bits by it, some bytes.
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
_NUMBER = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zA-Z]*)(?:/s)?\s*")


def quantity(text: str, kind: str) -> float:
    """Bits a second, or seconds.

    >>> quantity("1Mbit", "bandwidth"), quantity("500 kB/s", "bandwidth"), quantity("50ms", "latency")
    (1000000.0, 4000000.0, 0.05)
    """
    found = _NUMBER.fullmatch(text)
    units = _UNITS[kind] | ({"mbit": 1e6, "gbit": 1e9, "Kbit": 1e3, "KB": 8e3} if kind == "bandwidth" else {"": 1.0})
    if found is None or found[2] not in units:
        raise ValueError(f"no {kind}; write it as in {_EXAMPLES[kind]}")
    value = float(found[1]) * units[found[2]]
    if not (math.isfinite(value) and (value > 0 or kind == "latency")):
        raise ValueError(f"no {kind}: it must be above 0")
    return value


class Spread(NamedTuple):
    """The same for everybody, or lognormal over clients: the median, and the standard deviation of the logarithm."""

    median: float
    deviation: float = 0.0

    @classmethod
    def parse(cls, text: str, kind: str) -> Spread:
        """`1Mbit`, or `lognormal:1Mbit,0.5`."""
        if not text.startswith("lognormal:"):
            return cls(quantity(text, kind))
        median, _, deviation = text.removeprefix("lognormal:").partition(",")
        try:
            spread = cls(quantity(median, kind), float(deviation))
        except ValueError:
            spread = cls(1.0, -1.0)
        if not 0 <= spread.deviation < math.inf:
            raise ValueError(f"write lognormal:MEDIAN,SIGMA, as in {_EXAMPLES[kind].rpartition(' ')[2]}")
        return spread


def _seconds(value: Any) -> Any:
    """A number, or text with a unit."""
    if not isinstance(value, str):
        return value
    try:
        return quantity(value, "latency")
    except ValueError:
        raise ValueError("seconds are allowed, as in 30, 30s or 500ms") from None


class Network(BaseModel):
    """What clients' connections are like. Nothing here changes what is computed, but for the deadline."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bandwidth_up: str | None = None
    """From the client: 1Mbit, or lognormal:1Mbit,0.5 (median, and spread over clients). Infinite when not given."""
    bandwidth_down: str | None = None
    """To the client, likewise."""
    latency: str = "0s"
    """On the way, in each direction: 50ms, or lognormal:50ms,0.5."""
    compute: Annotated[float, Field(ge=0)] = 0.0
    """Seconds that a client takes for the gradient of one example."""
    deadline: Annotated[float, BeforeValidator(_seconds), Field(gt=0)] | None = None
    """Simulated seconds after which a round is closed, or 30s; who is later is cut off."""
    trace: str | None = None
    """A CSV file with columns up, down, latency, and client or round: a client's row, and from which round on it holds."""

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
            raise ValueError(
                "a deadline needs to know how long messages take: give bandwidth_up, bandwidth_down or latency"
            )
        return self

    def any(self) -> bool:
        """Whether seconds are simulated at all."""
        return self != Network()


Chance = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Faults(BaseModel):
    """How likely each fault is, per client and round, and how many clients mean harm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    drop: Chance = 0.0
    """The update is lost on the way."""
    late: Chance = 0.0
    """The update arrives after its round has closed."""
    duplicate: Chance = 0.0
    """The update arrives twice."""
    crash: Chance = 0.0
    """The client dies at a random moment of its round."""
    lose_state: Chance = 0.0
    """The client comes back with nothing."""
    not_finite: Count = 0
    """How many clients, always the same ones, send NaN."""
    boosted: Count = 0
    """How many clients, always the same ones, send their vectors `boost` times as long."""
    boost: Annotated[float, Field(allow_inf_nan=False)] = 1000.0

    def any(self) -> bool:
        """Whether anything can happen at all."""
        return any(getattr(self, name) > 0 for name in type(self).model_fields if name != "boost")


class RaySettings(BaseModel):
    """How many workers, and where. Nothing here changes the result, unless a worker dies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes over clients, each with a shard of them; one per core when not given."""
    address: str | None = None
    """Of a cluster that runs already, as `ray start` prints it, or "auto"; without one, Ray is started on this machine."""
    repeat: bool = False
    """Whether clients whose worker died are asked again; if not, the round goes on without them."""
    folder: str | None = None
    """Where each worker's machine keeps the states of its clients; below the run's directory when not given."""
