"""The Ray engine with real processes that are killed, and on a real cluster of several nodes."""

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

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OPTIONS = [
    "--algorithm",
    "fed_bnlaca",
    "--dataset",
    "digits",
    "--model",
    "mlp:8",
    "--clients",
    "8",
    "--participants",
    "5",
]
RAY = ["--engine", "ray", "--workers", "2"]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def test_two_nodes_give_the_same_bits_also_when_one_is_taken_away(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "on_a_cluster.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["spread"] == found["inline"]
    assert found["moved"] == found["inline"]
    assert found["deaths"] >= 1 and found["nodes"] == 2


def start(out: Path, rounds: int, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(ROOT / "tests/run/every_round.py"),
        "run",
        *OPTIONS,
        *options,
        "--rounds",
        str(rounds),
    ]
    command += ["--out", str(out), "--resume", "--json", "--no-report"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), start_new_session=True, **pipes)


def finish(process: subprocess.Popen[str]) -> dict:
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1])


def test_a_run_whose_processes_are_killed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    rounds = 60
    reference = finish(start(tmp_path / "reference", rounds))
    generator = random.Random(0)
    for _ in range(3):
        process = start(tmp_path / "run", rounds, *RAY)
        metrics = tmp_path / "run/metrics.jsonl"
        begun = metrics.stat().st_mtime_ns if metrics.exists() else 0
        while not (metrics.exists() and metrics.stat().st_size and metrics.stat().st_mtime_ns > begun):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = len((tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert 0 < done < rounds, "the kills fell into the middle of the run"
    summary = finish(start(tmp_path / "run", rounds, *RAY))
    same = ("model_sha256", "accuracy", "loss", "bytes_up", "bytes_down", "gradients", "samples", "rounds")
    assert {name: summary[name] for name in same} == {name: reference[name] for name in same}
