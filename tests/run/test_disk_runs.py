"""Runs with clients' states on disk: the same model and the same numbers, also when they are broken off and resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import laconic
from laconic.algorithms.downlinks.base import LOST
from laconic.algorithms.recipes import RECIPES
from laconic.core.errors import ConfigError
from laconic.data import GeneratedData, from_arrays
from laconic.federation.database import Database
from laconic.gradients.numerics import Numerics
from laconic.run.config import load_config
from laconic.run.directory import RunDirectory
from laconic.run.simulation import Simulation, initial_module

FEATURES, CLASSES, CLIENTS = 6, 3, 7
ALGORITHMS = [
    laconic.fed_avg(),
    laconic.fed_cams(compressor="sign"),
    laconic.fed_bnlaca(),
    laconic.fed_ef_sgd(compressor="top_k:1/4", downlink="broadcast"),
    laconic.fed_comgate(),
    laconic.scaffold(),
    laconic.fed_amd(),
    laconic.ef21(),
]
FAULTS = {"drop": 0.1, "late": 0.1, "duplicate": 0.1, "crash": 0.2, "lose_state": 0.1}


def make(client: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(client)
    return generator.normal(size=(8, FEATURES)), generator.integers(0, CLASSES, 8)


def simulation(algorithm: laconic.Algorithm, store: str, rounds: int = 8, **settings: object) -> Simulation:
    data = from_arrays([make(client) for client in range(CLIENTS)], test=make(99), classes=CLASSES)
    module = initial_module(lambda: laconic.models.build("mlp:5", (FEATURES,), CLASSES), 0)
    # A cache of a few states: the others are read back.
    given = {"participants": 3, "threads": 2, "chunk": 2, "eval_every": 1, "store_cache": 3000} | settings
    given["numerics"] = Numerics(strategy="loop")
    checked = laconic.Settings(rounds=rounds, store=store, **given)
    return Simulation(algorithm, laconic.classification(module), data, checked)


def without_times(history: list[dict]) -> list[dict]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def result_of(run: Simulation) -> tuple[str, list[dict]]:
    history = list(run.rounds())
    sha = run.model_sha256()
    run.close()
    return sha, without_times(history)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
@pytest.mark.parametrize("faults", [{}, FAULTS], ids=["in order", "with faults"])
def test_the_store_changes_nothing(algorithm: laconic.Algorithm, faults: dict) -> None:
    memory, disk = (result_of(simulation(algorithm, store, faults=faults)) for store in ("memory", "disk"))
    assert memory == disk


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_store_changes_nothing_in_any_recipe_if_all_states_fit_into_its_cache(name: str) -> None:
    """A small cache hides vectors that two clients share by mistake: each is read back as a tensor of its own."""
    runs = (simulation(RECIPES[name](), store, rounds=4, store_cache=10**8) for store in ("memory", "disk"))
    memory, disk = map(result_of, runs)
    assert memory == disk


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_a_run_that_is_broken_off_goes_on_from_its_checkpoint(algorithm: laconic.Algorithm, tmp_path: Path) -> None:
    sha, history = result_of(simulation(algorithm, "memory", faults=FAULTS))
    directory = RunDirectory(tmp_path / "run")
    first = simulation(algorithm, "disk", faults=FAULTS)
    directory.create(first, "")
    for record in first.rounds():
        directory.append(record)
        if record["round"] == 3:
            directory.save_checkpoint(first)
        if record["round"] == 6:
            break
    first.close()
    second = simulation(algorithm, "disk", faults=FAULTS)
    kept = RunDirectory(tmp_path / "run").resume(second, "")
    assert second.server.round == 3
    again = without_times(kept) + result_of(second)[1]
    assert again == history
    assert second.model_sha256() == sha


def test_a_run_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    algorithm = laconic.fed_cams(compressor="sign")
    directory = RunDirectory(tmp_path / "run")
    first = simulation(algorithm, "disk")
    directory.create(first, "")
    next(first.rounds())
    first.close()
    second = simulation(algorithm, "disk")
    assert directory.resume(second, "") == []
    assert result_of(second) == result_of(simulation(algorithm, "memory"))


def test_a_checkpoint_does_not_hold_what_the_database_holds() -> None:
    for store in ("memory", "disk"):
        run = simulation(laconic.fed_bnlaca(), store)
        list(run.rounds())
        state = run.state_dict()
        known = [name for name in state if name.startswith(("clients/", "server/clients/links/"))]
        assert bool(known) == bool(state.get("clients/records")) == (store == "memory")
        assert any(run.server.clients.links) and run.server.clients.versions.max() > LOST
        run.close()


def test_a_run_on_disk_leaves_one_file_more_and_none_where_it_is_only_checked(tmp_path: Path) -> None:
    simulation(laconic.fed_avg(), "disk").close()
    run = simulation(laconic.fed_cams(compressor="sign"), "disk")
    directory = RunDirectory(tmp_path / "run")
    directory.create(run, "")
    list(run.rounds())
    directory.save_checkpoint(run)
    run.close()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoint.sqlite",
        "config.toml",
        "metrics.jsonl",
    ]
    found = Database(0)
    found.open(directory.checkpoints.database)
    assert set(found.clients("client")) <= set(range(CLIENTS)) and len(list(found.clients("client"))) > 3
    found.close()


def test_a_million_clients_made_on_demand_with_states_on_disk() -> None:
    made: list[int] = []

    def counted(client: int) -> tuple[np.ndarray, np.ndarray]:
        made.append(client)
        return make(client)

    data = GeneratedData(10**6, 8, counted, kind="classification", classes=CLASSES)
    result = laconic.simulate(
        laconic.fed_cams(compressor="sign"), "logistic", data, rounds=3, participants=4, store="disk", threads=1
    )
    assert [record["participants"] for record in result.history] == [4] * 3
    # Client 0 is looked at once before the first round; beyond that, only those who take part.
    assert len(made) <= 1 + 3 * 4


def test_sizes_of_a_cache_as_people_write_them() -> None:
    assert load_config(None, {"store": "disk", "store_cache": "2 GB"}).store_cache == 2 * 10**9
    assert load_config(None, {"store_cache": 1000}).store_cache == 1000
    for wrong in ("5 XB", "-3MB", "", "MB", -1):
        with pytest.raises(ConfigError, match="store_cache"):
            load_config(None, {"store_cache": wrong})
