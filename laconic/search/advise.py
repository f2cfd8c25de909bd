"""Recommend algorithm, compressor and rates for a network by successive halving."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from laconic.core import counted
from laconic.data import ClientData
from laconic.run import WINDOW, Callback, RunConfig, RunRecords, load_config, run_or_resume
from laconic.search.score import Score, final, score
from laconic.search.space import spelled

LOCAL_RATES = (0.03, 0.1, 0.3)
ADAPTIVE_RATES = (0.01, 0.03, 0.1)
REDUCTION = 3
"""Each rung keeps one in `REDUCTION` candidates and runs them `REDUCTION` times as long."""
MIN_ROUNDS = 2 * WINDOW
"""Minimum rounds of a rung, so that the mean of five evaluations is meaningful."""

_BOTH = {"uplink.compressor": "top_k:1/8+qsgd:5", "downlink.compressor": "top_k:1/8+qsgd:5"}
ARMS: tuple[dict[str, Any], ...] = (
    {"algorithm": "fed_avg"},
    {"algorithm": "fed_com"},
    {"algorithm": "fed_ef_sgd", "compressor": "sign"},
    {"algorithm": "fed_ef_sgd", "compressor": "heavy_sign:1/16"},
    {"algorithm": "fed_ef_sgd", "compressor": "heavy_sign:1/16", "downlink": "mirrored"},
    {"algorithm": "fed_ams"},
    {"algorithm": "fed_cams", "compressor": "sign"},
    {"algorithm": "fed_cams", "compressor": "top_k:1/64"},
    {"algorithm": "fed_bnlaca", **_BOTH},
    {"algorithm": "fed_laconic"},
)
"""Recipes with their compressors, from no compression to strong compression."""

Make = Callable[[dict[str, Any]], RunConfig]


def candidates(arms: Sequence[dict[str, Any]] = ARMS) -> list[dict[str, Any]]:
    """Return every arm with every combination of rates. A rate that an arm sets is kept."""
    settings = []
    for arm in arms:
        adaptive = load_config(None, arm).build_algorithm().optimizer.adaptive
        for local in (arm["local_lr"],) if "local_lr" in arm else LOCAL_RATES:
            for server in (arm["server_lr"],) if "server_lr" in arm else ADAPTIVE_RATES if adaptive else (1.0,):
                settings.append({**arm, "local_lr": local, "server_lr": server})
    return settings


@dataclass(frozen=True)
class Candidate:
    """A setting and its run so far."""

    settings: dict[str, Any]
    directory: Path
    run: RunRecords

    @property
    def label(self) -> str:
        """The setting as an argument of `laconic compare`."""
        return label_of(self.settings)


def label_of(settings: dict[str, Any]) -> str:
    """Format a setting as an argument of `laconic compare`."""
    rest = {key: value for key, value in settings.items() if key != "algorithm"}
    return f"{settings['algorithm']}:{spelled(rest)}"


class SearchCallback(Callback):
    """Base class of callbacks of a search and all its runs. Its methods do nothing."""

    def on_search_start(self, rounds: int) -> None:
        """Called before the search. `rounds` is the total of all its runs."""

    def on_message(self, text: str) -> None:
        """Called with a line of progress for the user."""

    def on_trial_start(self, label: str, ended: int, own: int) -> None:
        """Called before a run. The search has completed `ended` rounds, this run itself `own` in earlier rungs."""


@dataclass(frozen=True)
class Advice:
    """The result of a search."""

    ranked: list[Candidate]
    """The candidates of the last rung, best first."""
    scores: list[Score]
    target: float
    """The accuracy whose simulated time ranks the candidates."""
    rungs: list[tuple[int, int]]
    """Number of candidates and rounds of each rung."""
    left: list[Candidate]
    """The best candidate of every arm that is not in the last rung."""
    rates: dict[str, list[float]]
    """The rates that were tried for the recommended arm."""


def advise(
    make: Make, settings: list[dict[str, Any]], directory: Path, callback: SearchCallback, *, target: float | None
) -> Advice:
    """Run successive halving: each rung runs three times as long and keeps the best third.

    A rung ranks candidates by the simulated time to its median accuracy; the last rung, by the time to the target. The
    default target is one point below the median accuracy of the last rung: with a higher target, the number of rounds
    would decide, and uncompressed algorithms would win.
    """
    most = make(settings[0]).rounds
    data: ClientData = make(settings[0]).load_data()
    plan = _plan(most, len(settings))
    best_of_arm: dict[str, Candidate] = {}
    running = [(setting, directory / f"{number:03d}-{setting['algorithm']}") for number, setting in enumerate(settings)]
    callback.on_search_start(sum(count * (rounds - before) for count, rounds, before in plan))
    ended = 0
    for rung, (count, rounds, before) in enumerate(plan, 1):
        callback.on_message(f"rung {rung} of {len(plan)}: {counted(count, 'setting')}, {counted(rounds, 'round')} each")
        trials = []
        for number, (setting, path) in enumerate(running, 1):
            callback.on_trial_start(f"{number}/{count} {label_of(setting)}", ended, before)
            config = make(setting | {"rounds": rounds, "eval_every": 1})
            trials.append(Candidate(setting, path, run_or_resume(config, path, [callback], path.name, data)))
            ended += rounds - before
        if rounds < most:
            ranked = rank(trials, median_accuracy(trials))
            callback.on_message(f"  ahead: {ranked[0].label}, accuracy {100 * final_accuracy(ranked[0]):.2f} %")
            best_of_arm |= {_arm(candidate.settings): candidate for candidate in reversed(ranked)}
            running = [(candidate.settings, candidate.directory) for candidate in ranked[: plan[rung][0]]]
    rungs = [(count, rounds) for count, rounds, _ in plan]
    return _conclude(trials, median_accuracy(trials) - 0.01 if target is None else target, rungs, best_of_arm, settings)


def _conclude(
    trials: Sequence[Candidate],
    target: float,
    rungs: list[tuple[int, int]],
    best_of_arm: dict[str, Candidate],
    settings: list[dict[str, Any]],
) -> Advice:
    """The ranking of the last rung, with the arms that were eliminated earlier."""
    ranked = rank(trials, target)
    scores = [score(candidate.run, target, "simulated_seconds") for candidate in ranked]
    last_arms = {_arm(candidate.settings) for candidate in ranked}
    eliminated = [candidate for arm, candidate in best_of_arm.items() if arm not in last_arms]
    tried = [setting for setting in settings if _arm(setting) == _arm(ranked[0].settings)]
    rates = {key: sorted({setting[key] for setting in tried}) for key in RATES}
    return Advice(ranked, scores, target, rungs, eliminated, rates)


RATES = ("local_lr", "server_lr")


def _arm(settings: dict[str, Any]) -> str:
    """Return a setting without its rates, as text."""
    return spelled({key: value for key, value in settings.items() if key not in RATES})


def _plan(most: int, count: int) -> list[tuple[int, int, int]]:
    """Return (number of candidates, last round, rounds already run) of each rung.

    >>> _plan(90, 42), _plan(12, 42), _plan(90, 3)
    ([(42, 10, 0), (14, 30, 10), (5, 90, 30)], [(42, 12, 0)], [(3, 30, 0), (1, 90, 30)])
    """
    lengths = [most]
    while lengths[0] // REDUCTION >= MIN_ROUNDS and REDUCTION ** len(lengths) <= count:
        lengths.insert(0, lengths[0] // REDUCTION)
    counts = [count]
    while len(counts) < len(lengths):
        counts.append(math.ceil(counts[-1] / REDUCTION))
    return [*zip(counts, lengths, [0, *lengths[:-1]], strict=True)]


def median_accuracy(candidates: Sequence[Candidate]) -> float:
    """Return the median of the final accuracies."""
    return median(map(final_accuracy, candidates))


def final_accuracy(candidate: Candidate) -> float:
    """Return the mean accuracy of the last five evaluations, or 0 if the run diverged."""
    return 0.0 if candidate.run.diverged else final(candidate.run.records, "accuracy") or 0.0


def rank(candidates: Sequence[Candidate], accuracy: float) -> list[Candidate]:
    """Sort by simulated time to an accuracy, then, for candidates that did not reach it, by final accuracy."""
    return sorted(candidates, key=lambda candidate: score(candidate.run, accuracy, "simulated_seconds").order)
