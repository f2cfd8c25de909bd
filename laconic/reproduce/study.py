"""Studies: the runs behind a table or figure of a paper, their measures, and the paper's numbers and claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from laconic.reproduce.claims import Comparable
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import Measure

Axis = Literal["round", "bytes", "bytes_up", "paper_bits_up", "gradients"]
Mode = Literal["short", "full", "quick"]
"""Shortened runs, the paper's runs, or a check on digits that takes seconds."""


@dataclass(frozen=True)
class Short:
    """The extent of the shortened form of a study that takes more than an hour on two cores."""

    rounds: int | None = None
    labels: tuple[str, ...] = ()
    """Labels of the included runs; all if empty."""
    rates: tuple[str, ...] = ()
    trial: int | None = None
    left_out: bool = False
    """Whether only `--full` runs the study."""


FULL_ONLY = Short(left_out=True)
"""The shortened form of a study that only `--full` runs."""


@dataclass(frozen=True)
class Study:
    """One table: runs or a computation, and the paper's numbers and claims."""

    title: str
    experiment: Experiment | None = None
    compute: Callable[[Mode, int], dict[str, dict[str, float | None]]] | None = None
    """Returns the numbers of each row from a mode and a seed, for a study without training."""
    exact: bool = False
    """Whether `compute` draws no random numbers, so that one seed is enough."""
    trials: Mapping[Mode, int] = field(default_factory=dict)
    """Independent trials of `compute` by mode, if it has any."""
    measures: tuple[Measure, ...] = ()
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's numbers by label and measure."""
    claims: Mapping[str, Comparable] = field(default_factory=dict)
    """Claims by the paper's statement, with its location in the paper."""
    beside: str = ""
    """The name of a study whose runs the claims also compare, if any."""
    learned: float = 0.0
    """The accuracy, in %, that one of a claim's runs must reach at the end. A claim about runs that failed is not judged."""
    against: Axis = "round"
    """The figure's horizontal axis."""
    drawn: str = "accuracy"
    """The figure's vertical axis."""
    second: tuple[str, Axis] | None = None
    """The vertical and the horizontal axis of a second figure, if any."""
    seeds: int = 1
    """Number of seeds in the paper."""
    short: Short | None = None
    quick: tuple[str, ...] = ()
    """Labels of the runs of `--quick`; the first four if empty."""
    folder: str = ""
    """The name of the study whose run directories this one shares, if any."""
    needs_gpu: bool = False
    references: tuple[str, ...] = ()
    """Labels of dense runs. The best of them sets the accuracies to which all runs are measured (`reproduce.frontier`)."""
    goals: tuple[float, ...] = ()
    """Further accuracies to which all runs are measured."""
    chance: float = 0.0
    """The accuracy of guessing, where the gain of `references` begins."""

    def figures(self, name: str) -> dict[str, Study]:
        """Return the file name of each figure, and the study with its axes."""
        figures = {f"{name}.svg": self}
        if self.second is not None:
            drawn, against = self.second
            figures[f"{name}-second.svg"] = replace(self, drawn=drawn, against=against)
        return figures


@dataclass(frozen=True)
class Reproduction:
    """One or more related studies, run by `laconic reproduce NAME`."""

    what: str
    paper: str
    studies: Mapping[str, Study]
    """Studies by name. The name is also that of the data in docs/data and of the runs in runs/reproduce."""
