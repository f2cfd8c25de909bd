"""`laconic run`, from the command to what it leaves on disk."""

from __future__ import annotations

import json
import tomllib
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from laconic.compression import HEADER_BYTES
from laconic.models import build

PROMISED = {
    "algorithm",
    "dataset",
    "rounds",
    "accuracy",
    "loss",
    "bytes_up",
    "bytes_down",
    "paper_bits_up",
    "paper_bits_down",
    "gradients",
    "samples",
    "seconds",
    "model_sha256",
    "run_dir",
}
PARAMETERS = 64 * 10 + 10


def rounds_in(folder: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_all_that_is_promised_and_its_config_gives_the_same_model(laconic, small, tmp_path: Path) -> None:
    done = laconic("run", *small, "--algorithm", "fed_ams", "--rounds", 7, "--seed", 3, "--out", "first", "--json")
    assert done.code == 0, done.stderr
    assert done.stdout.count("\n") == 1, "with --json stdout has nothing but the object"
    summary = done.json()
    assert summary.keys() >= PROMISED
    assert (summary["algorithm"], summary["dataset"], summary["rounds"]) == ("fed_ams", "digits", 7)
    assert summary["run_dir"] == "first"
    # 3 participants, 7 rounds, 2 steps of 32 examples; the bytes of 650 numbers and a header.
    assert summary["bytes_up"] == summary["bytes_down"] == 3 * 7 * (4 * PARAMETERS + HEADER_BYTES)
    assert summary["paper_bits_up"] == summary["paper_bits_down"] == 3 * 7 * 32 * PARAMETERS
    assert summary["gradients"] == summary["samples"] == 3 * 7 * 2 * 32

    folder = tmp_path / "first"
    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        "checkpoint.safetensors",
        "label_counts.json",
        "report.html",
    }
    assert rounds_in(folder) == list(range(1, 8))
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert all(last[name] == summary[name] for name in ("accuracy", "loss", "bytes_up", "samples"))

    again = laconic("run", "first/config.toml", "--out", "second", "--json")
    assert again.code == 0, again.stderr
    assert again.json()["model_sha256"] == summary["model_sha256"]
    assert (tmp_path / "second/config.toml").read_text() == (folder / "config.toml").read_text()

    module = build("logistic", (1, 8, 8), 10)
    module.load_state_dict(load_file(folder / "model.safetensors"))
    weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in module.parameters()])
    assert sha256(weights.tobytes()).hexdigest() == summary["model_sha256"]


def test_the_model_on_disk_has_the_accuracy_that_was_reported(forked, small, tmp_path: Path) -> None:
    from laconic import data

    summary = forked("run", *small, "--rounds", 5, "--out", "run", "--json").json()
    module = build("logistic", (1, 8, 8), 10)
    module.load_state_dict(load_file(tmp_path / "run/model.safetensors"))
    test = data.load("digits").test
    inputs, targets = test.batch(torch.arange(len(test)))
    accuracy = float((module(inputs).argmax(-1) == targets).float().mean())
    assert accuracy == pytest.approx(summary["accuracy"], abs=1e-6)


def test_a_module_with_batch_norm_goes_to_disk_and_back(forked, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\n\n"
        "def net(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))\n"
    )
    done = forked("run", "--model", "nets.py:net", "--rounds", 2, "--participants", 2, "--out", "run", "--json")
    assert done.code == 0, done.stderr
    tensors = load_file(tmp_path / "run/model.safetensors")
    assert {"2.running_mean", "2.running_var", "1.weight"} <= tensors.keys()
    order = ["1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias", "2.running_mean", "2.running_var"]
    flat = b"".join(tensors[name].numpy().tobytes() for name in order)
    assert sha256(flat).hexdigest() == done.json()["model_sha256"]


def test_without_json_a_table_is_printed_and_progress_goes_to_stderr(forked, small) -> None:
    done = forked("run", *small, "--rounds", 4, "--eval-every", 2, "--out", "run")
    assert done.code == 0
    assert "fed_avg" in done.stdout and "accuracy" in done.stdout and "bytes up" in done.stdout
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines if line.lstrip().startswith("round ")] == ["2/4", "4/4"]
    assert done.stdout.rstrip().splitlines()[-1] == "The run is in run, the report is run/report.html"
    assert "\x1b" not in done.stdout + done.stderr


def test_without_out_a_new_directory_below_runs_is_made_each_time(forked, small, tmp_path: Path) -> None:
    first, second = (forked("run", *small, "--rounds", 1, "--json").json()["run_dir"] for _ in range(2))
    assert first != second
    assert all(path.startswith("runs/") and (tmp_path / path / "config.toml").is_file() for path in (first, second))


def test_options_override_the_file_wherever_it_says_it(forked, small, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'algorithm = "fed_adam"\nrounds = 9\nlocal_lr = 0.3\nserver_lr = 0.2\nlocal_epochs = 2\n\n'
        "[optimizer]\nbeta2 = 0.5\nbeta1 = 0.25\n"
    )
    options = ("--rounds", 2, "--local-lr", 0.4, "--set", "optimizer.beta2=0.75", "--out", "run", "--json")
    done = forked("run", "config.toml", *small, *options)
    assert done.code == 0, done.stderr
    resolved = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert (resolved["algorithm"], resolved["rounds"]) == ("fed_adam", 2)
    assert resolved["method"]["local_lr"] == 0.4
    assert resolved["method"]["local_steps"] == 2 and "local_epochs" not in resolved["method"]
    found = {name: resolved["optimizer"][name] for name in ("name", "server_lr", "beta1", "beta2")}
    assert found == {"name": "adam", "server_lr": 0.2, "beta1": 0.25, "beta2": 0.75}


def test_another_part_in_a_slot(forked, small, tmp_path: Path) -> None:
    done = forked("run", *small, "--rounds", 1, "--set", "optimizer.name=yogi", "--out", "run", "--json")
    assert done.code == 0, done.stderr
    assert tomllib.loads((tmp_path / "run/config.toml").read_text())["optimizer"]["name"] == "yogi"


def test_a_training_function_named_on_the_command_line(forked, tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n\n\n"
        "def train(module, dataset):\n"
        "    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)\n"
        "    for inputs, targets in DataLoader(dataset, batch_size=16, shuffle=True):\n"
        "        optimizer.zero_grad()\n"
        "        torch.nn.functional.cross_entropy(module(inputs), targets).backward()\n"
        "        optimizer.step()\n"
    )
    own = ("--set", "method.name=own_training", "--set", "method.function=loops.py:train")
    command = ("run", "--model", "logistic", "--rounds", 3, "--participants", 4, *own, "--json")
    first = forked(*command, "--out", "first")
    assert first.code == 0, first.stderr
    summary = first.json()
    assert summary["accuracy"] > 0.5
    assert summary["samples"] == summary["gradients"] > 0
    assert (
        forked("run", "first", "--out", "again", "--json", "--trust").json()["model_sha256"] == summary["model_sha256"]
    )


def test_threads_and_chunk_change_nothing_but_the_speed(forked, small) -> None:
    common = ("run", *small[:4], "--participants", 5, "--rounds", 3, "--json")
    ways = (("--threads", 1), ("--threads", 2), ("--threads", 2, "--chunk", 3))
    shas = {forked(*common, *way, "--out", f"run{number}").json()["model_sha256"] for number, way in enumerate(ways)}
    assert len(shas) == 1


def test_a_target_is_reported_with_what_it_cost(forked, small) -> None:
    options = ("--rounds", 12, "--eval-every", 1, "--target", 30, "--out", "run", "--json")
    summary = forked("run", *small, *options).json()
    assert summary["target"] == 0.3
    assert 5 <= summary["rounds_to_target"] <= 12
    traffic = summary["bytes_up"] + summary["bytes_down"]
    assert summary["bytes_to_target"] == traffic * summary["rounds_to_target"] // 12


def test_version_and_help(forked) -> None:
    from laconic import __version__

    assert forked("--version").stdout.strip() == __version__
    shown = forked("run", "--help")
    assert shown.code == 0
    for option in (
        "--algorithm",
        "--partition",
        "--participants",
        "--local-epochs",
        "--eval-every",
        "--resume",
        "--set",
    ):
        assert option in shown.stdout


def test_a_table_of_ones_own_is_divided_and_its_labels_are_named(forked, tmp_path: Path) -> None:
    (tmp_path / "animals.py").write_text(
        "import numpy as np\n"
        "def clients():\n"
        "    inputs = np.random.default_rng(0).normal(size=(60, 2))\n"
        "    return inputs, np.where(inputs[:, 0] > 0, 'dog', 'cat')\n"
    )
    options = ("--partition", "dirichlet:0.5", "--clients", 6, "--model", "logistic", "--rounds", 2, "--no-report")
    done = forked("run", "--dataset", "animals.py", *options, "--out", "first", "--json")
    assert done.code == 0, done.stderr
    assert "animals.py (dirichlet:0.5): 6 of 6 clients" in done.stderr and "classes: 0 = cat, 1 = dog" in done.stderr
    again = forked("run", "first", "--out", "second", "--no-report", "--json", "--trust")
    assert again.json()["model_sha256"] == done.json()["model_sha256"]


def test_a_run_that_diverges_leaves_a_report(laconic, small, tmp_path: Path) -> None:
    result = laconic("run", *small, "--local-lr", "1e38", "--out", "fast")
    assert result.code == 1 and "training has diverged" in result.stderr
    assert "The report is fast/report.html" in result.stderr
    assert '"diverged":true' in (tmp_path / "fast" / "report.html").read_text().replace(" ", "")


def test_a_collapse_is_shown_once_and_counted(laconic) -> None:
    # After 10 rounds the rate is 300 times larger.
    collapsing = ("--set", "method.local_schedule=step:10:300", "--local-lr", 0.1, "--rounds", 20, "--eval-every", 1)
    outcome = laconic("run", "--model", "mlp:16", "--participants", 5, *collapsing, "--json")
    assert outcome.stderr.count("collapsed in round 1") == 1
    assert outcome.json()["collapsed"] == 1 and outcome.json()["collapse_reason"].startswith("collapsed in round ")


def test_callbacks_are_options(forked, small, tmp_path: Path) -> None:
    options = ("--early-stopping", "accuracy:patience=1,minimum_change=0.9", "--save-best", "loss")
    done = forked("run", *small, "--rounds", 9, "--eval-every", 1, *options, "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.stderr
    assert rounds_in(tmp_path / "run") == [1, 2] and done.json()["rounds"] == 2
    assert "stopped after round 2: accuracy has not improved by more than 0.9 in 1 evaluation" in done.stderr
    assert load_file(tmp_path / "run/best.safetensors").keys() == load_file(tmp_path / "run/model.safetensors").keys()
    wrong = forked("run", *small, "--early-stopping", "accuracy:patience=none", "--out", tmp_path / "other")
    assert wrong.code == 2 and "EarlyStopping: 'accuracy:patience=none'" in wrong.stderr
    assert not (tmp_path / "other").exists()
