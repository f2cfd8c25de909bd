"""`laconic deploy-demo`: what cannot work is refused before anything starts, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import laconic
from laconic.report.live import Watched
from tests.cli.conftest import clean_environment, forked, zygote  # noqa: F401

# Far more than it takes: a machine may be busy with other things.
PATIENCE = 600.0
SMALL = ("--dataset", "digits", "--partition", "iid", "--model", "logistic", "--nodes", "2")


def demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "laconic", "deploy-demo", "--out", str(folder / "runs" / "demo"), *SMALL]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env=clean_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(folder: Path) -> list[str]:
    """The commands of all processes that the demonstration has started, as their environment tells."""
    mark, found = f"FLWR_HOME={folder / 'runs' / 'demo'}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def gone(folder: Path) -> bool:
    """Whether all have ended; the kernel may take a moment for those that were killed."""
    ends = time.monotonic() + 10
    while left(folder) and time.monotonic() < ends:
        time.sleep(0.1)
    return not left(folder)


def wait(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--algorithm", "fed_cam"), "fed_cams"),
        (("--algorithm", "fed_avg:local_rate=1"), "local_rate"),
        (("--model", "mpl"), "mlp"),
        (("--dataset", "digit"), "digits"),
        (("--partition", "shards"), "shards"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_starts(forked, tmp_path, arguments, words):  # noqa: F811
    done = forked("deploy-demo", "--out", "runs/demo", *SMALL, *arguments)
    assert done.code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_a_demonstration_is_seen_while_it_goes_on_and_leaves_nothing_behind(tmp_path):
    process = demo(tmp_path, "--rounds", "2", "--algorithm", "fed_cams:compressor=sign", "--json")
    watched = Watched(tmp_path / "runs")

    def listed() -> bool:
        return (
            [Path(run["path"]).name for run in watched.data()["runs"]] == ["run"] if watched.folder.exists() else False
        )

    wait(listed, process)
    assert left(tmp_path)
    assert watched.data()["runs"][0]["settings"]["algorithm"] == "fed_cams"
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    found = json.loads(stdout.splitlines()[-1])
    data = laconic.data.load("digits", clients=2, partition="iid")
    expected = laconic.simulate(laconic.fed_cams(compressor="sign"), "logistic", data, rounds=2)
    assert found["model_sha256"] == expected.model_sha256
    assert {name: found[name] for name in ("rounds", "nodes", "epsilon", "refused", "lost", "cut_off")} == {
        **{"rounds": 2, "nodes": 2, "epsilon": None},
        **{"refused": 0, "lost": 0, "cut_off": 0},
    }
    (run,) = watched.data()["runs"]
    assert (run["rounds"], run["finished"]) == (2, True)
    assert gone(tmp_path)
    assert f"the run is in {found['run_dir']}" in stderr
    assert all(f"round {number}/2" in stderr for number in (1, 2)), "every round is evaluated"
    assert '"algorithm":"fed_cams"' in Path(found["report"]).read_text()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demonstration_that_is_ended_takes_all_with_it(tmp_path, number):
    process = demo(tmp_path, "--rounds", "1000")
    # In the middle of starting them: the second one may be in no list yet.
    wait(lambda: sum("laconic.flower.supernode" in each for each in left(tmp_path)) >= 2, process)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert gone(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_a_demonstration_whose_processes_die_says_so(tmp_path, name):
    process = demo(tmp_path, "--rounds", "1000")
    wait(lambda: (tmp_path / "runs" / "demo" / "run" / "metrics.jsonl").exists(), process)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"FLWR_HOME={tmp_path}".encode() in (entry / "environ").read_bytes()
            if mine and f"laconic.flower.{name}".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
    _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    assert f"{'superlink' if name == 'superlink' else 'node-0'} has ended (-9)" in complaint
    assert gone(tmp_path)


def test_flower_prints_plain_json_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from laconic.flower.local_federation import LocalFederation

    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does; Flower prints its JSON with rich
    environment = LocalFederation(tmp_path, nodes=1).environment
    assert Console(_environ=os.environ).is_terminal
    assert not Console(_environ=environment).is_terminal
