"""The extent of a study in a mode, and whether published data have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from laconic.reproduce.experiments import Experiment
from laconic.reproduce.study import Mode, Short, Study
from laconic.run import WINDOW

Data = dict[str, Any]
"""The data of a study: date and environment, and the curves of its runs or the computed rows."""


@dataclass(frozen=True)
class Plan:
    """The extent of a study in a mode."""

    mode: Mode
    rounds: int | None
    """Rounds of each run; None if the options specify them."""
    seeds: int
    labels: tuple[str, ...]
    rates: tuple[str, ...]
    server_rates: tuple[str, ...]
    trial: int
    long_trial: int
    metrics: frozenset[str] = frozenset()
    """The metrics that runs need for the study's measures."""


def plan(study: Study, experiment: Experiment, mode: Mode, seeds: int | None = None) -> Plan:
    """Return the extent of a study in a mode."""
    everything = tuple(experiment.runs)
    short = study.short if mode == "short" and study.short else Short()
    if mode == "quick":
        return Plan(mode, None, 1, study.quick or everything[:4], experiment.rates[:1], (), 1, 1)
    return Plan(
        mode,
        short.rounds or experiment.rounds or None,
        seeds or (study.seeds if mode == "full" else 1),
        short.labels or everything,
        short.rates or experiment.rates,
        experiment.server_rates if mode == "full" else (),
        short.trial or experiment.trial,
        short.trial or 100,
        frozenset({measure.metric for measure in study.measures} - {""}),
    )


def evaluated_every(stated: int, rounds: int) -> int:
    """Return the rounds between evaluations: those in the options, or fewer, because a mean needs five evaluations."""
    return min(stated, max(1, rounds // WINDOW))


def same_form(stored: Data, experiment: Experiment, wanted: Plan) -> bool:
    """Whether published data have the mode, the rounds, the common options and the rates of today's study.

    Data whose options were not recorded do not.
    """
    rates = {"rates": [*wanted.rates], "server_rates": [*wanted.server_rates]}
    tried = {"server_rates": []} | stored.get("tried", rates)
    form = (stored["mode"], stored.get("rounds"), stored.get("setting"))
    same = form == (wanted.mode, wanted.rounds, experiment.common)
    return same and all(tried[name] == values for name, values in rates.items())


def unchanged(stored: Data, experiment: Experiment, wanted: Plan) -> dict[str, Data]:
    """Return the published runs that need not be run again.

    Others are known to have options of their own that are not today's, or lack a metric that the study needs.
    """
    return {
        label: run
        for label, run in stored["runs"].items()
        if not other_options(run, experiment, label) and all(has(run, metric) for metric in wanted.metrics)
    }


def other_options(run: Data, experiment: Experiment, label: str) -> bool:
    """Whether a published run recorded options of its own that are not those of today's study."""
    return run.get("options") not in (None, experiment.runs.get(label))


def has(run: Data, metric: str) -> bool:
    """Whether all seeds of a published run have a metric. A run that diverged may lack some."""
    return "diverged" in run or all(metric in columns for columns in run["curves"])
