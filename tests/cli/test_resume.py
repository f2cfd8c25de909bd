"""Ctrl-C, `--resume`, and the directories of runs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest


def records(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return lines


def stopped(folder: Path, command: list[str], signals: int = 1) -> tuple[int, str]:
    """Start a command, press Ctrl-C once it is in its rounds, and wait for its exit code and stderr."""
    environment = os.environ | {"LACONIC_OFFLINE": "1", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "laconic", *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = folder / command[command.index("--out") + 1] / "metrics.jsonl"
    until = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 5):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=60)[1]
    return process.returncode, stderr


def test_ctrl_c_saves_and_prints_a_command_that_finishes_the_run_bit_for_bit(forked, small, tmp_path: Path) -> None:
    options = ["run", *small, "--algorithm", "fed_yogi", "--rounds", "200", "--eval-every", "50"]
    code, stderr = stopped(tmp_path, [*options, "--out", "a run"])
    assert code == 130, stderr
    assert "Traceback" not in stderr
    said, command = stderr.rstrip("\n").splitlines()[-2:]
    done = len(records(tmp_path / "a run"))
    assert said == f"Stopped after round {done}; saved. Continue with:"
    assert 5 <= done < 200
    assert not (tmp_path / "a run/model.safetensors").exists()

    program, *arguments = shlex.split(command)
    assert program == "laconic"
    again = forked(*arguments, "--json")
    assert again.code == 0, again.stderr
    assert f"resuming after round {done}" in again.stderr
    whole = forked(*options, "--out", "whole", "--json")
    assert again.json()["model_sha256"] == whole.json()["model_sha256"]
    assert records(tmp_path / "a run") == records(tmp_path / "whole")
    assert [record["round"] for record in records(tmp_path / "a run")] == list(range(1, 201))


def contents(folder: Path) -> dict[Path, bytes]:
    # A run of more than a few seconds has an earlier checkpoint, too, in a folder of its own.
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def begun(forked, small, tmp_path: Path) -> Path:
    """A run of four rounds."""
    done = forked("run", *small, "--rounds", 4, "--seed", 5, "--local-lr", 0.25, "--clients", 8, "--out", "run")
    assert done.code == 0, done.stderr
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("option", "key", "now", "then"),
    [
        (("--seed", "6"), "seed", "6", "5"),
        (("--local-lr", "0.5"), "method.local_lr", "0.5", "0.25"),
        (("--algorithm", "fed_adam"), "algorithm", "'fed_adam'", "'fed_avg'"),
        (("--local-epochs", "1"), "method.local_epochs", "1", "None"),
        (("--model", "mlp:8"), "model", "'mlp:8'", "'logistic'"),
        (("--dtype", "float64"), "numerics.dtype", "'float64'", "'float32'"),
        (("--set", "optimizer.momentum=0.5"), "optimizer.momentum", "0.5", "0.0"),
    ],
)
def test_resuming_with_another_setting_is_refused_by_its_key(
    forked, begun: Path, option: tuple[str, ...], key: str, now: str, then: str
) -> None:
    before = contents(begun)
    done = forked("run", "--out", "run", "--resume", *option)
    assert done.code == 2
    what = "resume it with the same settings, or give another out"
    assert (
        done.stderr == f"error: resume: {key} = {now}, but the run in 'run' was started with {key} = {then}; {what}\n"
    )
    assert contents(begun) == before


def test_what_is_not_said_again_is_taken_from_the_run(forked, begun: Path, small, tmp_path: Path) -> None:
    whole = forked("run", "run", "--rounds", 9, "--out", "whole", "--json").json()
    (tmp_path / "part.toml").write_text('local_lr = 0.25\n[numerics]\nstrategy = "auto"\n')
    done = forked("run", "part.toml", "--rounds", 9, "--out", "run", "--resume", "--json")
    assert done.code == 0, done.stderr
    assert done.json()["model_sha256"] == whole["model_sha256"]


def test_a_run_can_be_given_more_rounds_and_its_config_then_has_them(forked, begun: Path) -> None:
    done = forked("run", "run", "--resume", "--rounds", 7, "--json")
    assert done.code == 0, done.stderr
    assert [record["round"] for record in records(begun)] == list(range(1, 8))
    assert tomllib.loads((begun / "config.toml").read_text())["rounds"] == 7
    assert forked("run", "run", "--out", "again", "--json").json()["model_sha256"] == done.json()["model_sha256"]


def test_a_run_cannot_be_given_fewer_rounds_than_it_has_done(forked, begun: Path) -> None:
    done = forked("run", "run", "--resume", "--rounds", 3)
    assert (done.code, done.stderr) == (2, "error: resume: rounds = 3, but 'run' already has 4 rounds\n")


def test_resuming_a_finished_run_changes_nothing(forked, begun: Path) -> None:
    before = contents(begun)
    done = forked("run", "run", "--resume", "--json")
    assert done.code == 0
    assert done.json()["rounds"] == 4
    assert contents(begun) == before


def test_an_existing_directory_is_not_overwritten(forked, begun: Path, small, tmp_path: Path) -> None:
    before = contents(begun)
    done = forked("run", *small, "--rounds", 2, "--out", "run")
    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert "out = 'run': exists already" in done.stderr and "--resume" in done.stderr
    assert contents(begun) == before
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/dear.txt").touch()
    assert forked("run", *small, "--rounds", 2, "--out", "letters").code == 2
    (tmp_path / "empty").mkdir()
    assert forked("run", *small, "--rounds", 2, "--out", "empty").code == 0


def test_a_line_cut_off_in_the_middle_is_written_again(forked, begun: Path, tmp_path: Path) -> None:
    whole = forked("run", "run", "--rounds", 6, "--out", "whole", "--json").json()
    with (begun / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "participants": 3}\n{"round": 6, "partic')
    done = forked("run", "run", "--resume", "--rounds", 6, "--json")
    assert done.json()["model_sha256"] == whole["model_sha256"]
    # The fourth round was once the last, so it was evaluated.
    ours = [{k: v for k, v in record.items() if k not in ("accuracy", "loss")} for record in records(begun)]
    theirs = [{k: v for k, v in r.items() if k not in ("accuracy", "loss")} for r in records(tmp_path / "whole")]
    assert ours == theirs


def test_metrics_with_a_missing_line_are_refused(forked, begun: Path) -> None:
    lines = (begun / "metrics.jsonl").read_text().splitlines(keepends=True)
    (begun / "metrics.jsonl").write_text("".join(lines[:2] + lines[3:]))
    done = forked("run", "run", "--resume", "--rounds", 6)
    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert "metrics.jsonl" in done.stderr and "round 4" in done.stderr


def test_a_damaged_checkpoint_is_one_line(forked, begun: Path) -> None:
    path = begun / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    done = forked("run", "run", "--resume", "--rounds", 6)
    assert done.code == 2
    assert done.stderr.count("\n") == 1 and "checkpoint.safetensors" in done.stderr


def test_resume_needs_to_know_which_run(forked) -> None:
    done = forked("run", "--resume")
    assert done.code == 2
    assert "--resume: name the run" in done.stderr
    assert forked("compare", "fed_avg", "--resume").code == 2
    missing = forked("run", "runs/nothing", "--resume")
    assert (missing.code, missing.stderr) == (2, "error: --resume: there is no run 'runs/nothing'\n")


@pytest.mark.long  # tests/run/test_damage.py holds the lock, without processes
def test_two_that_resume_at_once_do_not_destroy_the_run(forked, small, tmp_path: Path) -> None:
    options = ["run", *small, "--algorithm", "fed_yogi", "--rounds", "400", "--eval-every", "400"]
    whole = forked(*options, "--out", "whole", "--json").json()
    stopped(tmp_path, [*options, "--out", "run"])
    command = [sys.executable, "-m", "laconic", "run", "run", "--resume", "--json"]
    environment = os.environ | {"LACONIC_OFFLINE": "1", "NO_COLOR": "1"}
    start = lambda: subprocess.Popen(  # noqa: E731
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    both = [start(), start()]
    outcomes = [(*process.communicate(timeout=120), process.returncode) for process in both]
    refused = [stderr for _, stderr, code in outcomes if code == 2]
    assert all("another process is writing to this run" in stderr for stderr in refused)
    finished = [json.loads(stdout) for stdout, _, code in outcomes if code == 0]
    assert len(refused) + len(finished) == 2 and finished
    assert {summary["model_sha256"] for summary in finished} == {whole["model_sha256"]}
    assert records(tmp_path / "run") == records(tmp_path / "whole")


def test_a_run_goes_on_from_an_earlier_round(forked, begun: Path) -> None:
    whole = forked("run", "run", "--resume", "--rounds", 7, "--json").json()
    # All is saved at the end of a short run, so there are the checkpoints of rounds 4 and 7.
    done = forked("run", "run", "--resume", "--from-round", 4, "--json")
    assert done.code == 0, done.stderr
    assert "resuming after round 4" in done.stderr and done.json()["model_sha256"] == whole["model_sha256"]
    (begun / "checkpoint.safetensors").write_bytes(b"damaged")
    done = forked("run", "run", "--resume")
    assert done.code == 2 and done.stderr.count("\n") == 1
    assert "checkpoint.safetensors' is damaged" in done.stderr and done.stderr.endswith("--resume --from-round 4\n")
    done = forked("run", "run", "--resume", "--from-round", 2)
    assert done.code == 2 and "from_round = 2: no such checkpoint; there are those of rounds: 4" in done.stderr
    assert forked("run", "run", "--from-round", 4).stderr == "error: --from-round: only with --resume\n"
