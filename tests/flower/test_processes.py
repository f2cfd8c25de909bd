"""End to end with real processes: one SuperLink and three SuperNodes on loopback, with TLS and authenticated nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

import laconic
from laconic.run.directory import RunDirectory, read_metrics
from laconic.run.files import load_tensors

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from laconic.cli.new_app import write_app
from laconic.flower.local_federation import LocalFederation

NODES = 3
LABELS = ["fed_cams:compressor=sign", "fed_bnlaca", "fed_comgate", "fed_amd"]
SETTINGS = {"rounds": 5, "model": "mlp:32", "strategy": "loop"}
# Far more than it takes: a machine may be busy with other things.
PATIENCE = 600.0


def start(trial: LocalFederation, label: str, **settings) -> RunDirectory:
    out = trial.folder / label.partition(":")[0]
    trial.run(trial.folder / "app", {"algorithm": label, "out": str(out)} | SETTINGS | settings)
    return RunDirectory(out)


def wait_for(trial: LocalFederation, runs: Iterable[RunDirectory]) -> None:
    ends = time.monotonic() + PATIENCE
    while not all(run.model.exists() for run in runs):
        assert time.monotonic() < ends, trial.log_of("superlink")[-5000:] + trial.log_of("node-0")[-3000:]
        time.sleep(0.2)


def simulated(label: str, rounds: int = 5) -> laconic.Result:
    name, _, compressor = label.partition(":compressor=")
    algorithm = laconic.algorithms.recipes.make(name, **({"compressor": compressor} if compressor else {}))
    data = laconic.data.load("digits", clients=NODES, partition="iid")
    return laconic.simulate(algorithm, "mlp:32", data, rounds=rounds, numerics={"strategy": "loop"})


# test_access.py compares one algorithm on one node in every `make test`.
@pytest.mark.long
def test_four_algorithms_end_with_the_models_of_their_simulations(tmp_path: Path):
    write_app(tmp_path / "app", NODES)
    with LocalFederation(tmp_path, NODES) as trial:
        # All at once: a SuperNode looks for messages every three seconds, so one run alone would mostly wait.
        runs = {label: start(trial, label) for label in LABELS}
        expected = {label: simulated(label) for label in LABELS}
        wait_for(trial, runs.values())
    for label, run in runs.items():
        _, numbers = load_tensors(run.model)
        assert numbers["sha256"] == expected[label].model_sha256, label
        last = read_metrics(run.metrics)[-1]
        totals = expected[label].ledger.totals()
        assert {name: last[name] for name in totals} == totals
        assert last["accuracy"] == expected[label].accuracy
