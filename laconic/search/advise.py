"""Which algorithm, compressor and rates a network calls for: short trials of many, longer ones of the best (halving)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from laconic import SGD
from laconic.data import ClientData
from laconic.run import WINDOW, Callback, RunConfig, RunRecords, load_config, run_or_resume
from laconic.search.score import Score, final, score
from laconic.search.space import spelled

LOCAL_RATES = (0.03, 0.1, 0.3)
ADAPTIVE_RATES = (0.01, 0.03, 0.1)
FEWER = 3
"""Of so many candidates one goes on to a run that is so many times as long."""
ROUNDS_AT_LEAST = 2 * WINDOW
"""A shorter run has no mean of five evaluations to speak of."""

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
"""Recipes with their compressors, from sending everything to sending next to nothing."""

Make = Callable[[dict[str, Any]], RunConfig]


def candidates(arms: Sequence[dict[str, Any]] = ARMS) -> list[dict[str, Any]]:
    """Every recipe at every rate that it does not have already."""
    found = []
    for arm in arms:
        adaptive = not isinstance(load_config(None, {"algorithm": arm["algorithm"]}).build_algorithm().optimizer, SGD)
        for local in (arm["local_lr"],) if "local_lr" in arm else LOCAL_RATES:
            for server in (arm["server_lr"],) if "server_lr" in arm else ADAPTIVE_RATES if adaptive else (1.0,):
                found.append({**arm, "local_lr": local, "server_lr": server})
    return found


@dataclass(frozen=True)
class Candidate:
    """A setting, its run so far, and how it did."""

    settings: dict[str, Any]
    directory: Path
    run: RunRecords

    @property
    def label(self) -> str:
        """The setting as `laconic compare` writes it."""
        return label_of(self.settings)


def label_of(settings: dict[str, Any]) -> str:
    """A setting as `laconic compare` writes it."""
    rest = {key: value for key, value in settings.items() if key != "algorithm"}
    return f"{settings['algorithm']}:{spelled(rest)}"


class SearchCallback(Callback):
    """A callback of all runs of a search, which is also told about the search itself. Its methods do nothing."""

    def on_search_start(self, rounds: int) -> None:
        """The search is about to start; all its runs together have so many rounds."""

    def on_message(self, text: str) -> None:
        """There is a line for people."""

    def on_trial_start(self, label: str, ended: int, own: int) -> None:
        """A run is next, which is called `label`. `ended` rounds of the search are over; `own` of them are this run's."""


@dataclass(frozen=True)
class Advice:
    """What came out: the last rung, best first, and the accuracy that it is ranked by."""

    ranked: list[Candidate]
    scores: list[Score]
    target: float
    rungs: list[tuple[int, int]]
    """How many candidates were run for how many rounds."""
    left: list[Candidate]
    """Of every algorithm that is not in the last rung the candidate that came furthest, for the evidence."""
    rates: dict[str, list[float]]
    """The rates that the recommended algorithm was tried at."""


def advise(
    make: Make,
    settings: list[dict[str, Any]],
    directory: Path,
    callback: SearchCallback,
    *,
    target: float | None,
) -> Advice:
    """Successive halving: at each rung the runs go on three times as long, and the better third of them is kept.

    Better is who is sooner, in simulated seconds, at the accuracy that half of a rung reaches; at the last rung, at the
    target. Without one it is a point below what half of the last rung reaches: a higher one would be a contest of rounds,
    which those who send everything win.
    """
    most = make(settings[0]).rounds
    data: ClientData = make(settings[0]).load_data()
    plan = _plan(most, len(settings))
    furthest: dict[str, Candidate] = {}
    running = [(each, directory / f"{number:03d}-{each['algorithm']}") for number, each in enumerate(settings)]
    callback.on_search_start(sum(count * (rounds - before) for count, rounds, before in plan))
    ended = 0
    for place, (count, rounds, before) in enumerate(plan, 1):
        callback.on_message(f"rung {place} of {len(plan)}: {count} settings, {rounds} rounds each")
        found = []
        for number, (each, path) in enumerate(running, 1):
            callback.on_trial_start(f"{number}/{count} {label_of(each)}", ended, before)
            config = make(each | {"rounds": rounds, "eval_every": 1})
            found.append(Candidate(each, path, run_or_resume(config, path, [callback], path.name, data)))
            ended += rounds - before
        if rounds < most:
            ranked = rank(found, level(found))
            callback.on_message(f"  ahead: {ranked[0].label}, accuracy {100 * best_accuracy(ranked[:1]):.2f} %")
            furthest |= {_arm(each.settings): each for each in reversed(ranked)}
            running = [(each.settings, each.directory) for each in ranked[: plan[place][0]]]
    rungs = [(count, rounds) for count, rounds, _ in plan]
    return _conclude(found, level(found) - 0.01 if target is None else target, rungs, furthest, settings)


def _conclude(
    found: Sequence[Candidate],
    target: float,
    rungs: list[tuple[int, int]],
    furthest: dict[str, Candidate],
    settings: list[dict[str, Any]],
) -> Advice:
    """The ranking of the last rung, and the evidence around it."""
    ranked = rank(found, target)
    scores = [score(each.run, target, "simulated_seconds") for each in ranked]
    last = {_arm(each.settings) for each in ranked}
    tried = [each for each in settings if _arm(each) == _arm(ranked[0].settings)]
    rates = {key: sorted({each[key] for each in tried}) for key in RATES}
    return Advice(ranked, scores, target, rungs, [each for arm, each in furthest.items() if arm not in last], rates)


RATES = ("local_lr", "server_lr")


def _arm(settings: dict[str, Any]) -> str:
    """An algorithm with its links, whatever its rates."""
    return spelled({key: value for key, value in settings.items() if key not in RATES})


def _plan(most: int, count: int) -> list[tuple[int, int, int]]:
    """Each rung: how many candidates are run, up to which round, and from which round on.

    >>> _plan(90, 42), _plan(12, 42), _plan(90, 3)
    ([(42, 10, 0), (14, 30, 10), (5, 90, 30)], [(42, 12, 0)], [(3, 30, 0), (1, 90, 30)])
    """
    lengths = [most]
    while lengths[0] // FEWER >= ROUNDS_AT_LEAST and FEWER ** len(lengths) <= count:
        lengths.insert(0, lengths[0] // FEWER)
    counts = [count]
    while len(counts) < len(lengths):
        counts.append(math.ceil(counts[-1] / FEWER))
    return [*zip(counts, lengths, [0, *lengths[:-1]], strict=True)]


def level(found: Sequence[Candidate]) -> float:
    """The accuracy that half of them reach."""
    return median(best_accuracy([each]) for each in found)


def best_accuracy(found: Sequence[Candidate]) -> float:
    """The best mean of five evaluations that any of them had at its end."""
    return max((final(each.run.records, "accuracy") or 0.0) * (not each.run.diverged) for each in found)


def rank(found: Sequence[Candidate], accuracy: float) -> list[Candidate]:
    """Who is soonest at an accuracy; those that never are follow by their own."""
    return sorted(found, key=lambda each: score(each.run, accuracy, "simulated_seconds").order)
