"""Settings of sampling, aggregation and defenses.

Importable without torch: the command line reads its options from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field

from laconic.core.spelling import convert, parse

Sampling = Literal["uniform", "weighted", "poisson"]
Weighting = Literal["uniform", "size"]


def _probabilities(value: Any) -> Any:
    """A text such as 0.1,0.5 as a list."""
    if isinstance(value, str) and "," not in value and value not in get_args(Sampling):
        raise ValueError("must be 'uniform', 'weighted' or 'poisson', or a probability for each client")
    return value.split(",") if isinstance(value, str) and "," in value else value


AnySampling = Annotated[Sampling | tuple[Annotated[float, Field(ge=0, le=1)], ...], BeforeValidator(_probabilities)]
"""A kind of sampling, or the probability of each client with which it takes part in a round."""
_Share = Annotated[float, Field(gt=0, lt=0.5)]


def _valid_aggregate(text: str) -> str:
    if text != "auto":
        share(text)
    return text


def share(aggregate: str) -> float | None:
    """The share of values that is trimmed on each side; None for the plain mean.

    >>> share("mean"), share("trimmed_mean:0.1"), share("median")
    (None, 0.1, 0.5)
    """
    if aggregate in ("mean", "median"):
        return None if aggregate == "mean" else 0.5
    try:
        spelling = parse(aggregate)
        (number,) = spelling.positional() if spelling.name == "trimmed_mean" else ()
        return float(convert(number, _Share))
    except ValueError:
        allowed = "mean, median, trimmed_mean:SHARE (with a share between 0 and 0.5 for each side) or auto is allowed"
        raise ValueError(allowed) from None


def median_multiple(clip: float | str) -> float | None:
    """The multiple of the median norm to which updates are clipped; None for a fixed norm.

    >>> median_multiple("median"), median_multiple("median:3"), median_multiple(2.0)
    (1.0, 3.0, None)
    """
    if not isinstance(clip, str):
        return None
    spelling = parse(clip)
    (number,) = (spelling.positional() or ("1",)) if spelling.name == "median" else ()
    return _norm(number, "a multiple above 0 is allowed")


def _clip(value: Any) -> Any:
    if value is None or value in ("auto", "none"):
        return None if value == "none" else value
    try:
        if median_multiple(value) is not None:
            return value
    except ValueError:
        pass  # a number as text, or misspelled
    return _norm(value, "a norm above 0, median, median:MULTIPLE, auto or none is allowed")


def _refuse(value: Any) -> Any:
    if value is None or value in ("auto", "none"):
        return None if value == "none" else value
    return _norm(value, "a norm above 0, auto or none is allowed")


def _norm(value: Any, allowed: str) -> float:
    try:
        norm = float(value)
    except (TypeError, ValueError):
        norm = -1.0
    if not 0 < norm < float("inf"):
        raise ValueError(allowed)
    return norm


class Defenses(BaseModel):
    """Robust aggregation against malicious clients, and differential privacy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    aggregate: Annotated[str, AfterValidator(_valid_aggregate)] = "mean"
    """Aggregation: mean, coordinate-wise median or trimmed_mean:SHARE; auto: trimmed_mean:0.2 for sign packets."""
    clip: Annotated[float | Literal["median", "auto"] | str | None, BeforeValidator(_clip)] = None
    """Scale updates down to at most this norm; median:2: twice the round's median norm; auto: median:2, where possible."""
    refuse: Annotated[float | Literal["auto"] | None, BeforeValidator(_refuse)] = None
    """Refuse updates with a norm above this; auto: compare norms and directions with those of other clients."""
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Differential privacy: standard deviation of the noise, as a multiple of the clipping norm."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Differential privacy: the delta for which epsilon is reported."""
    memory: Annotated[ByteSize, Field(gt=0)] = ByteSize(4_000_000_000)
    """Bytes that the updates of a round may occupy, where all of them are needed at once (as for the median)."""

    def any(self) -> bool:
        """Whether aggregation differs from the plain mean."""
        return self.aggregate != "mean" or self.clip is not None or self.noise > 0

    def needs_norms(self) -> bool:
        """Whether a norm decides what happens with a reply."""
        return self.clip is not None or self.refuse is not None

    def compares_norms(self) -> bool:
        """Whether the norms of a round are compared with each other, for which replies wait until all are there."""
        return self.refuse == "auto" or isinstance(self.clip, str)
