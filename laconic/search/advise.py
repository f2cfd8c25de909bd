"""Which algorithm, compressor and rates a network calls for: short trials of many, longer ones of the best (halving)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from laconic.data.federated import ClientData
from laconic.recipes import make as make_recipe
from laconic.run.config import RunConfig
from laconic.run.driver import Watcher
from laconic.run.ensure import Trial, ensure
from laconic.run.target import WINDOW
from laconic.search.score import Score, final, score
from laconic.search.space import spelt
from laconic.server.optimizers import SGD

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
        adaptive = not isinstance(make_recipe(arm["algorithm"]).optimizer, SGD)
        for local in (arm["local_lr"],) if "local_lr" in arm else LOCAL_RATES:
            for server in (arm["server_lr"],) if "server_lr" in arm else ADAPTIVE_RATES if adaptive else (1.0,):
                found.append({**arm, "local_lr": local, "server_lr": server})
    return found


@dataclass(frozen=True)
class Candidate:
    """A setting, its run so far, and how it did."""

    settings: dict[str, Any]
    directory: Path
    trial: Trial

    @property
    def label(self) -> str:
        """The setting as `laconic compare` writes it."""
        rest = {key: value for key, value in self.settings.items() if key != "algorithm"}
        return f"{self.settings['algorithm']}:{spelt(rest)}"


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
    watcher: Watcher,
    *,
    target: float | None,
    say: Callable[[str], None],
) -> Advice:
    """Successive halving: at each rung the runs go on three times as long, and the better third of them is kept.

    Better is who is sooner, in simulated seconds, at the accuracy that half of a rung reaches; at the last rung, at the
    target. Without one it is a point below what half of the last rung reaches: a higher one would be a contest of rounds,
    which those who send everything win.
    """
    most = make(settings[0]).rounds
    data: ClientData = make(settings[0]).load_data()
    lengths = _lengths(most, len(settings))
    rungs: list[tuple[int, int]] = []
    furthest: dict[str, Candidate] = {}
    running = [(each, directory / f"{number:03d}-{each['algorithm']}") for number, each in enumerate(settings)]
    for place, rounds in enumerate(lengths):
        say(f"rung {place + 1} of {len(lengths)}: {len(running)} candidates, {rounds} rounds each")
        found = [
            Candidate(
                each, path, ensure(make(each | {"rounds": rounds, "eval_every": 1}), path, watcher, path.name, data)
            )
            for each, path in running
        ]
        rungs.append((len(found), rounds))
        if rounds < most:
            ranked = rank(found, level(found))
            furthest |= {_arm(each.settings): each for each in reversed(ranked)}
            running = [(each.settings, each.directory) for each in ranked[: max(1, math.ceil(len(ranked) / FEWER))]]
    goal = target if target is not None else level(found) - 0.01
    ranked = rank(found, goal)
    scores = [score(each.trial, goal, "simulated_seconds") for each in ranked]
    last = {_arm(each.settings) for each in ranked}
    tried = [each for each in settings if _arm(each) == _arm(ranked[0].settings)]
    rates = {key: sorted({each[key] for each in tried}) for key in RATES}
    return Advice(ranked, scores, goal, rungs, [each for arm, each in furthest.items() if arm not in last], rates)


RATES = ("local_lr", "server_lr")


def _arm(settings: dict[str, Any]) -> str:
    """An algorithm with its links, whatever its rates."""
    return spelt({key: value for key, value in settings.items() if key not in RATES})


def _lengths(most: int, count: int) -> list[int]:
    """The rounds of each rung, the last of them `most`.

    >>> _lengths(90, 42), _lengths(12, 42), _lengths(90, 3)
    ([10, 30, 90], [12], [30, 90])
    """
    lengths = [most]
    while lengths[0] // FEWER >= ROUNDS_AT_LEAST and FEWER ** len(lengths) <= count:
        lengths.insert(0, lengths[0] // FEWER)
    return lengths


def level(found: Sequence[Candidate]) -> float:
    """The accuracy that half of them reach."""
    return median(best_accuracy([each]) for each in found)


def best_accuracy(found: Sequence[Candidate]) -> float:
    """The best mean of five evaluations that any of them had at its end."""
    return max((final(each.trial.records, "accuracy") or 0.0) * (not each.trial.diverged) for each in found)


def rank(found: Sequence[Candidate], accuracy: float) -> list[Candidate]:
    """Who is soonest at an accuracy; those that never are follow by their own."""
    return sorted(found, key=lambda each: score(each.trial, accuracy, "simulated_seconds").order)
