"""A table or figure of a paper: which runs it takes, what is measured of them, what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from laconic.reproduce.claims import Claim
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import Measure

Mode = Literal["short", "full", "quick"]
"""What a person without time gets, what the paper did, or a minute's check that everything works (on digits)."""


@dataclass(frozen=True)
class Short:
    """What is left out where the whole would take more than an hour on two cores."""

    rounds: int | None = None
    labels: tuple[str, ...] = ()
    """The runs that are made; all when empty."""
    rates: tuple[str, ...] = ()
    trial: int | None = None
    left_out: bool = False
    """The whole study is for `--full` only."""


@dataclass(frozen=True)
class Study:
    """One table: runs or a computation, and the paper's word on it."""

    title: str
    experiment: Experiment | None = None
    compute: Callable[[Mode], dict[str, dict[str, float | None]]] | None = None
    """Where there is nothing to train: the numbers of each row."""
    measures: tuple[Measure, ...] = ()
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's numbers: by label and measure."""
    claims: tuple[Claim, ...] = ()
    against: Literal["round", "bytes", "bytes_up"] = "round"
    """The picture's horizontal axis; `bytes_up` where the paper's is the uplink alone."""
    drawn: str = "accuracy"
    seeds: int = 1
    """How many the paper has."""
    short: Short | None = None
    quick: tuple[str, ...] = ()
    """The runs of `--quick`; the first four when empty."""
    folder: str = ""
    """Whose runs these are, if another study of the same setting has them too."""
    needs_gpu: bool = False
    note: str = ""
    """What came out, and why."""


@dataclass(frozen=True)
class Reproduction:
    """What `laconic reproduce NAME` runs: one or more studies that belong together."""

    what: str
    paper: str
    studies: Mapping[str, Study]
    """By the name that their data have below docs/data, and their runs below runs/reproduce."""
