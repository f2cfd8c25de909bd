"""A run that is killed at any moment, and resumed, ends with the model of a run that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE / "every_round.py"
OPTIONS = ("--model", "logistic", "--strategy", "loop", "--participants", "3", "--local-steps", "2")
ALGORITHMS = {
    "memory": ("--algorithm", "fed_adam"),
    # Both sides keep something of every client, and a cache of a few vectors is soon full.
    "disk": ("--algorithm", "fed_cams", "--compressor", "sign", "--downlink", "mirrored", "--store-cache", "20KB"),
}
COMMON = ["config.toml", "label_counts.json", "metrics.jsonl", "model.safetensors"]
FILES = {"memory": ["checkpoint.safetensors", *COMMON, "previous"], "disk": ["checkpoint.sqlite", *COMMON]}


def start(folder: Path, out: str, rounds: int, store: str, hold: int = 0) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), "run", *OPTIONS, *ALGORITHMS[store], "--threads", "1", "--json"]
    command += ["--store", store]
    command += ["--rounds", str(rounds), "--out", out, "--resume"]
    environment = os.environ | {"LACONIC_OFFLINE": "1", "HOLD": str(hold)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> dict:
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1])


def metrics(folder: Path) -> list[dict]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return records


def wait_for_a_round(process: subprocess.Popen, path: Path) -> None:
    """Until the file of metrics has changed: a resumed run first cuts it to the checkpoint, then adds to it."""
    begun = path.stat().st_mtime_ns if path.exists() else 0
    while not (path.exists() and path.stat().st_size and path.stat().st_mtime_ns > begun):
        assert process.poll() is None, "it ended before it began"
        time.sleep(0.005)


def kill_again_and_again(folder: Path, rounds: int, kills: int, seed: int, store: str) -> None:
    reference = finish(start(folder, "reference", rounds, store))
    generator = random.Random(seed)
    for done in range(kills):
        # However fast it is, it waits for its kill, so that the next one has rounds left.
        process = start(folder, "run", rounds, store, hold=rounds * (done + 1) // (kills + 1))
        if done % 5 == 4:
            # From the very start: also while Python is still loading, or the directory is made.
            time.sleep(generator.uniform(0, 3))
        else:
            # From its first new round on.
            wait_for_a_round(process, folder / "run/metrics.jsonl")
            time.sleep(generator.uniform(0, reference["seconds"] / kills / 2))
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    before = len((folder / "run/metrics.jsonl").read_text().splitlines())
    assert 0 < before < rounds, "the kills fell into the middle of the run"
    summary = finish(start(folder, "run", rounds, store))
    assert summary["model_sha256"] == reference["model_sha256"]
    assert [record["round"] for record in metrics(folder / "run")] == list(range(1, rounds + 1))
    assert metrics(folder / "run") == metrics(folder / "reference")
    same = ("accuracy", "loss", "bytes_up", "bytes_down", "gradients", "samples", "rounds")
    assert {name: summary[name] for name in same} == {name: reference[name] for name in same}
    assert (folder / "run/model.safetensors").read_bytes() == (folder / "reference/model.safetensors").read_bytes()
    assert sorted(path.name for path in (folder / "run").iterdir()) == [*FILES[store], "report.html"]


@pytest.mark.long
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_three_kills_at_random_moments_change_nothing(tmp_path: Path, store: str) -> None:
    kill_again_and_again(tmp_path, rounds=150, kills=3, seed=1, store=store)


@pytest.mark.long
@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_kills_at_random_moments_change_nothing(tmp_path: Path, seed: int, store: str) -> None:
    kill_again_and_again(tmp_path, rounds=700, kills=20, seed=seed, store=store)


def crash_everywhere(folder: Path, rounds: int, store: str, step: int = 1) -> list[list]:
    command = [sys.executable, str(HERE / "crash.py"), str(folder), str(rounds), store, str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.long)])
def test_a_kill_at_every_moment_at_which_something_becomes_durable(tmp_path: Path, rounds: int) -> None:
    *crashed, unharmed = outcomes = crash_everywhere(tmp_path, rounds, "memory")
    # The config, the labels; a checkpoint per round; the model: 3 or 4 moments each.
    assert len(crashed) == 3 + 3 + 4 * rounds + 3
    assert unharmed[1] == 0 and {first for _, first, *_ in crashed} == {-signal.SIGKILL}
    left = [set(files) for _, _, files, *_ in crashed]
    assert any(name.startswith(".checkpoint.safetensors.") for files in left for name in files)
    assert any(all(name.startswith(".config.toml.") for name in files) for files in left)
    check_outcomes(outcomes, rounds, "memory")


def check_outcomes(outcomes: list[list], rounds: int, store: str) -> None:
    for moment, _, _, second, sha, done, files in outcomes:
        assert second == 0, moment
        assert sha == outcomes[-1][4], moment
        assert done == list(range(1, rounds + 1)), moment
        assert files == FILES[store], moment


@pytest.mark.parametrize(("rounds", "step"), [(2, 41), pytest.param(3, 1, marks=pytest.mark.long)])
def test_a_kill_before_any_statement_to_a_database(tmp_path: Path, rounds: int, step: int) -> None:
    *crashed, unharmed = outcomes = crash_everywhere(tmp_path, rounds, "disk", step)
    assert len(crashed) > 30 * rounds // step
    assert unharmed[1] == 0 and {first for _, first, *_ in crashed} == {-signal.SIGKILL}
    # Some die in the middle of a transaction, and leave what is needed to undo it.
    assert any("checkpoint.sqlite-journal" in files for _, _, files, *_ in crashed)
    check_outcomes(outcomes, rounds, "disk")
