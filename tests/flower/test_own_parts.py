"""Apps with an algorithm, a model or data of their own, and settings that a federation has no use for."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch

import laconic
from laconic.algorithms.recipes import RECIPES
from laconic.core.errors import ConfigError, LaconicError

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Context, RecordDict

from laconic.cli.new_app import write_app
from laconic.flower import client_app
from laconic.flower.client import _named
from laconic.flower.plan import Plan
from laconic.flower.server import serve
from tests.flower.loopback import LoopbackGrid
from tests.flower.small_federation import CLIENTS, federation, run


def small() -> laconic.models.nn.Module:
    return laconic.models.build("mlp:16", (1, 8, 8), 10)


def template(folder: Path) -> dict:
    """The run config that `flwr run` gives to the app that `laconic new-app` writes."""
    write_app(folder / "app", CLIENTS)
    table = tomllib.loads((folder / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return {key.replace("-", "_"): value for key, value in table.items()} | {"out": str(folder / "run"), "rounds": 2}


@pytest.mark.parametrize("own", ["algorithm", "model", "both"])
def test_the_template_works_with_parts_of_ones_own_and_its_config_tells_the_truth(tmp_path, caplog, own):
    settings = template(tmp_path)
    algorithm = "fed_cams" if own == "model" else laconic.fed_avg(local_steps=3, server_lr=0.5)
    model = "mlp:64" if own == "algorithm" else small
    grid = LoopbackGrid()
    for client in range(CLIENTS):
        grid.add(100 + client, partial(client_app, model, "digits"), partition_id=client, state=str(tmp_path / "nodes"))
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = serve(grid, algorithm, model, "digits", {"clients": CLIENTS} | settings)
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["algorithm"] == ("fed_cams" if own == "model" else "fed_avg")
    assert config["model"] == ("mlp:64" if own == "algorithm" else "small")
    assert config["dataset"] == "digits"
    if own != "model":
        assert config["method"]["local_steps"] == 3
        assert config["optimizer"]["server_lr"] == 0.5
        assert "algorithm = 'fed_cams:compressor=sign' is ignored: the app passes an object" in caplog.text
    data = laconic.data.load("digits", clients=CLIENTS, partition="iid")
    if own == "algorithm":
        assert result.model_sha256 == laconic.simulate(algorithm, "mlp:64", data, rounds=2).model_sha256


def test_settings_reach_the_parts_of_an_algorithm_that_is_given_whole(tmp_path):
    settings = {"local_lr": 0.01, "compressor": "sign", "strategy": "loop", "clip_updates": 3.0, "rounds": 1, "seed": 5}
    result = run(federation(tmp_path), tmp_path, laconic.fed_ams(), local_steps=2, **settings)
    assert result.algorithm.method.local_lr == 0.01
    assert "sign" in str(result.algorithm.uplink.parameters()["compressor"])
    assert result.settings.defense.clip == 3.0
    assert result.settings.numerics.strategy == "loop"
    with pytest.raises(ConfigError, match="unknown setting 'local_rate'"):
        run(federation(tmp_path), tmp_path, laconic.fed_ams(), local_rate=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"latency": "50ms"}, "network.latency = .* does not apply on Flower: only a simulation simulates a network"),
        ({"bandwidth_up": "1Mbit"}, "network.bandwidth_up = .* does not apply on Flower"),
        ({"engine": "ray"}, "engine = 'ray': does not apply on Flower: the nodes run the clients"),
        ({"store": "disk"}, "store = 'disk': does not apply on Flower: each node keeps its client's state"),
        ({"threads": 4}, "threads = 4: does not apply on Flower: a node has one client"),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_settings_of_simulations_are_refused(tmp_path, settings, words, whole):
    with pytest.raises(ConfigError, match=words):
        run(federation(tmp_path), tmp_path, laconic.fed_avg() if whole else "fed_avg", **settings)
    assert not (tmp_path / "run").exists()


NODE = """
import json, sys
from laconic.flower import client_app
client_app("logistic", "digits")
from laconic.flower.plan import Plan
for plan in json.load(sys.stdin):
    print(Plan.model_validate(plan).algorithm().name)
"""


def test_a_fresh_node_finds_every_built_in_part():
    """Its process has imported nothing but the client app."""
    plans = []
    for name, recipe in RECIPES.items():
        parts = {slot: each.table() for slot, each in recipe().resolve().parts().items()}
        rest = {"seed": 0, "clients": 1, "partition": None, "numerics": {}, "buffers": "mean", "shape": None}
        plans.append({"run": "", "name": name, "parts": parts, "fingerprint": 0, "initial": "", **rest})
    done = subprocess.run(
        [sys.executable, "-c", NODE], input=json.dumps(plans), capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == [*RECIPES], done.stderr


def test_a_plan_cannot_name_code(tmp_path):
    """The operator chooses the settings of a node, but not what it imports."""
    ran = tmp_path / "ran"
    (tmp_path / "x.py").write_text(f"open({str(ran)!r}, 'w')\ndef f(round):\n    return 0.5\ntrain = f\n")
    parts = {slot: each.table() for slot, each in laconic.fed_amd().resolve().parts().items()}
    rest = {"seed": 0, "clients": 1, "partition": None, "numerics": {}, "buffers": "mean", "shape": None}
    for method in (
        parts["method"] | {"probability": f"{tmp_path}/x.py:f"},
        parts["method"] | {"probability": "os:getcwd"},
        {"name": "own_training", "function": f"{tmp_path}/x.py:train"},
    ):
        plan = {"run": "", "name": "fed_amd", "parts": parts | {"method": method}, "fingerprint": 0, "initial": ""}
        with pytest.raises(ConfigError, match=r"the plan names code: .*give client_app the same algorithm"):
            Plan.model_validate(plan | rest).algorithm()
    assert not ran.exists()


@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("model", "os:abort"), ("model", "/tmp/nets.py:build"), ("dataset", "/tmp/clients.py")),
        *(("dataset", "/srv/hr.csv:target=ill"), ("dataset", "hr.parquet:target=ill"), ("dataset", "FOLDER")),
    ],
)
def test_the_operator_names_neither_code_nor_files_for_a_node(key, name, tmp_path):
    name = name.replace("FOLDER", str(tmp_path))
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={key: name})
    with pytest.raises(ConfigError, match="only what is built in"):
        _named(context, key, "digits")
    assert _named(context, key, name) == name, "the app names the same"
    assert _named(context, "other", "digits") == "digits"


@pytest.mark.parametrize("key", ["model", "dataset"])
def test_the_server_refuses_what_its_nodes_would_refuse_before_any_of_it_runs(key, tmp_path):
    ran, name = tmp_path / "ran", f"{tmp_path}/own.py:build"
    (tmp_path / "own.py").write_text(f"open({str(ran)!r}, 'w')\ndef build():\n    raise RuntimeError\n")
    names = {"model": "logistic", "dataset": "digits"}
    with pytest.raises(ConfigError, match=f"{key} = .*own.py:build': a run config can name only what is built in"):
        serve(LoopbackGrid(), "fed_avg", names["model"], names["dataset"], {key: name, "clients": 2})
    assert not ran.exists()
    with pytest.raises(LaconicError) as said:
        serve(LoopbackGrid(), "fed_avg", *(names | {key: name}).values(), {key: name, "clients": 2})
    assert "built in" not in str(said.value) and ran.exists(), "the app names the same"


def test_nodes_weigh_by_the_targets_that_count(tmp_path):
    tokens = torch.arange(24).view(4, 6) % 5
    few = torch.full_like(tokens, -100)
    few[0, 0] = 3
    clients = [(tokens, tokens.roll(-1)), (tokens, few)]
    grid = LoopbackGrid()
    for client, pair in enumerate(clients):
        own = partial(laconic.data.from_arrays, [pair], kind="next_token", classes=5)
        app = partial(client_app, "char_gru:4,4", lambda context, own=own: own())
        grid.add(100 + client, app, partition_id=client, state=str(tmp_path / "nodes"))
    settings = {"local_lr": 1e-12, "rounds": 1, "local_epochs": 1, "batch_size": 4, "seed": 5, "strategy": "loop"}
    form = laconic.data.from_arrays(clients, kind="next_token", classes=5)
    network = {"clients": 2, "out": str(tmp_path / "run"), "deadline": 5.0, "client_eval_every": 1}
    result = serve(grid, "fed_avg", "char_gru:4,4", form, settings | network)
    with torch.no_grad():
        logits = result.model(torch.cat([tokens, tokens])).flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, torch.cat([clients[0][1], few]).flatten())
    assert result.history[-1]["training_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert result.history[-1]["clients_loss"] == pytest.approx(float(expected), rel=1e-5)
