"""Rounds over Flower's messages end with the model of a simulation, and what goes wrong does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

import laconic
from laconic.recipes import RECIPES

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from laconic.flower import client_app
from laconic.flower.server import serve
from tests.flower.loopback import LoopbackGrid

CLIENTS = 3
SETTINGS = {"rounds": 3, "eval_every": 3, "seed": 5}


def federation(folder: Path, model: str = "logistic", data: object = "digits") -> LoopbackGrid:
    grid = LoopbackGrid()
    for client in range(CLIENTS):
        grid.add(100 + client, client_app(model, data), partition_id=client, state=str(folder / "nodes"))
    return grid


def data():
    return laconic.data.load("digits", clients=CLIENTS, seed=SETTINGS["seed"])


def run(grid: LoopbackGrid, folder: Path, algorithm="fed_cams", model: str = "logistic", **settings):
    own = {"clients": CLIENTS, "out": str(folder / "run"), "deadline": 5.0} | SETTINGS | settings
    return serve(grid, algorithm, model, "digits", own)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_gives_the_model_of_a_simulation(tmp_path, name):
    federated = run(federation(tmp_path), tmp_path, name)
    simulated = laconic.simulate(name, "logistic", data(), **SETTINGS)
    assert federated.model_sha256 == simulated.model_sha256
    assert federated.ledger.table() == simulated.ledger.table()
    assert federated.metrics == simulated.metrics
