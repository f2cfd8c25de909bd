"""Measure whether every recipe learns at its default rates: four small data sets, few rounds, one seed.

    python tools/default_rates.py [DATASET…]               # seconds per run; finished runs are not repeated
    python tools/default_rates.py --try fed_amd local_lr=0.01 [DATASET…]    # prints other rates, and stores nothing

Writes docs/data/default-rates.json. `python tools/algorithm_pages.py` writes its table to docs/algorithms/index.md. A run
is repeated if the recipe's rates have changed. A recipe that has not learned in these rounds runs five times as many:
some send one gradient per round. The table says so.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import laconic
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.recipes import RECIPES
from laconic.run.simulation import Simulation, initial_module, make_task

DATA = Path(__file__).parents[1] / "docs/data/default-rates.json"


class Problem(NamedTuple):
    """A data set, its division over clients, a small model, and the length of a run."""

    model: str
    clients: int | None
    partition: str | None
    participants: int
    rounds: int


PROBLEMS = {
    "digits": Problem("mlp:64", 20, "dirichlet:0.3", 10, 60),
    "femnist": Problem("mlp:64", None, None, 10, 60),
    "tinyshakespeare": Problem("gpt:1x16", 20, "natural", 5, 40),
    "heart-disease": Problem("mlp:16", None, None, 4, 60),
}


def rates(algorithm: Algorithm) -> dict[str, float]:
    """The learning rates of clients and server, where the algorithm has them."""
    given = {name: value for part in algorithm.parts().values() for name, value in part.parameters().items()}
    return {key: given[key] for key in ("local_lr", "server_lr") if key in given}


def constant_loss(data: Any) -> float:
    """The test loss of the best prediction that ignores its input: the entropy of the labels."""
    shares = np.bincount(data.test.targets.flatten().numpy()) / data.test.targets.numel()
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


LONGER = 5
"""Rounds of a second run, as a multiple of the first."""


def measure(algorithm: Algorithm, dataset: str) -> dict[str, Any]:
    """The result in the problem's rounds or, if the algorithm has not learned by then, in five times as many."""
    rounds = PROBLEMS[dataset].rounds
    first = measure_in(rounds, algorithm, dataset)
    if first["learns"] or "failure" in first:
        return first
    return measure_in(LONGER * rounds, algorithm, dataset) | {"rounds": LONGER * rounds}


def measure_in(rounds: int, algorithm: Algorithm, dataset: str) -> dict[str, Any]:
    """Loss and accuracy on the test data at the end of a run, and whether it collapsed or diverged."""
    problem = PROBLEMS[dataset]
    data = laconic.data.load(dataset, clients=problem.clients, partition=problem.partition)
    classes = data.classes or 1
    module = initial_module(lambda: laconic.models.build(problem.model, data.input_shape, classes), 0)
    settings = laconic.Settings(rounds=rounds, participants=problem.participants, threads=1)
    run = Simulation(algorithm, make_task(module, data), data, settings)
    result: dict[str, Any] = {"rates": rates(algorithm), "constant": round(constant_loss(data), 4)}
    try:
        records = list(run.rounds())
        result |= {key: round(records[-1][key], 4) for key in ("loss", "accuracy")}
        collapsed = [record["collapsed"] for record in records if "collapsed" in record]
        result |= {"failure": collapsed[0]} if collapsed else {}
    except laconic.LaconicError as error:
        result["failure"] = str(error)
    finally:
        run.close()
    return result | {"learns": "failure" not in result and result["loss"] < result["constant"]}


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    words = sys.argv[1:]
    if words[:1] == ["--try"]:
        name, value = words[2].split("=")
        for dataset in words[3:] or PROBLEMS:
            print(words[1], words[2], dataset, measure(RECIPES[words[1]](**{name: float(value)}), dataset), flush=True)
        return
    stored = json.loads(DATA.read_text()) if DATA.exists() else {}
    for dataset in words or PROBLEMS:
        found = stored.setdefault(dataset, {})
        for name, recipe in RECIPES.items():
            if name not in found or found[name]["rates"] != rates(recipe()):
                found[name] = measure(recipe(), dataset)
                DATA.write_text(json.dumps(stored, indent=1) + "\n")
                print(dataset, name, found[name], flush=True)


if __name__ == "__main__":
    main()
