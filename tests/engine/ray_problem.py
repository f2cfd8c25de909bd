"""A small run for the Ray engine's tests, with a loss that can kill the worker that computes it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import laconic
from laconic.core.task import Batch, Task
from laconic.data import FederatedData, from_arrays
from laconic.gradients.numerics import Numerics
from laconic.run.simulation import Simulation, initial_module

FEATURES, CLASSES, CLIENTS = 6, 3, 7
ALGORITHMS = {
    "fed_cams": laconic.fed_cams(compressor="sign"),
    "fed_bnlaca": laconic.fed_bnlaca(),
    "fed_comgate": laconic.fed_comgate(),
    "fed_amd": laconic.fed_amd(),
    "bvr_l_sgd": laconic.bvr_l_sgd(),
    "scaffold": laconic.scaffold(),
    "fed_ef_ams": laconic.fed_ef_ams(compressor="top_k:1/4", downlink="broadcast"),
    "fed_laconic": laconic.fed_laconic(),
    "fed_laconic_1": laconic.fed_laconic_1(),
    "ef21": laconic.ef21(),
    "fed_page": laconic.fed_page(),
    "diana": laconic.diana(),
}
FAULTS = {"drop": 0.1, "late": 0.1, "duplicate": 0.1, "crash": 0.2, "lose_state": 0.1}
RAY = {"engine": "ray", "ray": {"workers": 2}}


class Deadly:
    """Cross-entropy that kills its process, once, when it meets the examples of a marked client."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        # A client's first feature is its number: see `make`.
        with suppress(FileNotFoundError):  # two workers may look at the same moment
            if int(batch[0][0, 0]) == int(self.mark.read_text()):
                self.mark.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(module(batch[0]), batch[1])


def make(client: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(client)
    inputs = generator.normal(size=(8, FEATURES))
    inputs[:, 0] = client
    return inputs, generator.integers(0, CLASSES, 8)


def data() -> FederatedData:
    return from_arrays([make(client) for client in range(CLIENTS)], test=make(99), classes=CLASSES)


def simulation(algorithm: laconic.Algorithm, mark: Path | None = None, **settings: object) -> Simulation:
    module = initial_module(lambda: laconic.models.build("mlp:5", (FEATURES,), CLASSES), 0)
    given = {"rounds": 6, "participants": 4, "eval_every": 1, "store_cache": 3000} | settings
    checked = laconic.Settings(numerics=Numerics(strategy="loop"), **given)
    task = laconic.classification(module) if mark is None else Task(module, Deadly(mark))
    return Simulation(algorithm, task, data(), checked)


def without_times(history: list[dict]) -> list[dict]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def result_of(run: Simulation) -> tuple[str, list[dict]]:
    try:
        history = list(run.rounds())
        return run.model_sha256(), without_times(history)
    finally:
        run.close()
