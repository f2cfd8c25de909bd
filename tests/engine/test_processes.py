"""The engine `processes`: the inline engine's results to the bit, also when workers die and when runs are resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import laconic
from laconic.algorithms.recipes import RECIPES
from laconic.compression.packet import Body
from laconic.engine.choose import engine_for
from laconic.engine.process_engine import ProcessEngine, fork_server
from laconic.engine.shared_memory import Channel
from laconic.gradients.numerics import Numerics
from laconic.run.directory import RunDirectory
from tests.engine.ray_problem import ALGORITHMS, FAULTS, Deadly, result_of, simulation, without_times

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux only"),
    # One process for all of them: they share a fork server.
    pytest.mark.xdist_group("processes"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import the classes of these tests from the paths of their parent."""
    monkeypatch.syspath_prepend(str(ROOT))


PROCESSES = {"engine": "processes", "threads": 2}
LOOP = PROCESSES | {"numerics": {"strategy": "loop"}}
FIRST = {"fed_avg", "fed_bnlaca", "fed_comgate", "fed_amd", "bvr_l_sgd", "scaffold", "fed_laconic"}
NAMES = [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.long]) for name in sorted(RECIPES)]


@cache
def digits() -> laconic.data.FederatedData:
    return laconic.data.load("digits", clients=8)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_as_inline(name: str) -> None:
    outcomes = []
    for settings in ({"engine": "inline"}, PROCESSES):
        result = laconic.simulate(name, "mlp:8", digits(), rounds=3, participants=5, **settings)
        outcomes.append((result.model_sha256, without_times(result.history)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["fed_bnlaca", "fed_amd", "fed_laconic"])
def test_the_same_bits_with_faults_and_a_network(name: str) -> None:
    settings = {"faults": FAULTS, "network": {"bandwidth_up": "lognormal:300B,2", "deadline": 0.5}}
    inline = result_of(simulation(ALGORITHMS[name], **settings))
    assert result_of(simulation(ALGORITHMS[name], **settings, **PROCESSES)) == inline


def test_diagnostics_buffers_and_chunks_come_through() -> None:
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)]
    outcomes = []
    for settings in ({}, PROCESSES | {"chunk": 2}):
        algorithm, model = laconic.fed_cams(compressor="sign"), torch.nn.Sequential(*layers)
        result = laconic.simulate(algorithm, model, digits(), rounds=3, participants=5, diagnostics=True, **settings)
        outcomes.append((result.model_sha256, without_times(result.history)))
    assert outcomes[0] == outcomes[1]
    assert "q_a" in outcomes[0][1][0]


@pytest.mark.parametrize("name", ["fed_cams", "fed_amd"])
def test_a_worker_that_is_killed_is_replaced_and_nothing_changes(name: str, tmp_path: Path) -> None:
    expected = result_of(simulation(ALGORITHMS[name], tmp_path / "never"))
    mark = tmp_path / "mark"
    run = simulation(ALGORITHMS[name], mark, **PROCESSES)
    history = []
    try:
        for record in run.rounds():
            history.append(record)
            if record["round"] == 2:
                mark.write_text("3")  # the loss of this client kills the process that computes it
    finally:
        run.close()
    assert not mark.exists(), "a worker has died"
    assert (run.model_sha256(), without_times(history)) == expected


class AlwaysDeadly(Deadly):
    """Kills every process that computes a client's loss."""

    def __call__(self, module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        text = self.mark.read_text() if self.mark.exists() else ""
        if text and int(text) != os.getpid() and len(batch[0]) > 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(module, batch) if not text else module(batch[0]).mean()


def test_clients_that_kill_every_worker_end_the_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.write_text(str(os.getpid()))
    module = laconic.models.build("mlp:5", (64,), 10)
    task = laconic.Task(module, AlwaysDeadly(mark))
    with pytest.raises(laconic.LaconicError, match="3 workers in a row died"):
        laconic.simulate("fed_avg", task, digits(), participants=2, rounds=1, **LOOP)


def test_an_error_of_the_users_code_is_raised_here(tmp_path: Path) -> None:
    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if os.getpid() != parent:
            raise ZeroDivisionError("no such loss")
        return module(batch[0]).mean()

    parent = os.getpid()
    task = laconic.Task(laconic.models.build("mlp:5", (64,), 10), loss)
    with pytest.raises(ZeroDivisionError, match="no such loss"):
        laconic.simulate("fed_avg", task, digits(), participants=2, rounds=1, **LOOP)


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_a_run_may_be_resumed_by_the_other_engine(store: str, tmp_path: Path) -> None:
    algorithm = ALGORITHMS["fed_cams"]
    sha, history = result_of(simulation(algorithm, rounds=6, faults=FAULTS))
    common = {"rounds": 6, "faults": FAULTS, "store": store}
    directory = RunDirectory(tmp_path / "run")
    kept: list[dict] = []
    for done, settings in ((2, PROCESSES), (4, {}), (6, PROCESSES)):
        run = simulation(algorithm, **common, **settings)
        if done == 2:
            directory.create(run, "")
        else:
            kept = RunDirectory(tmp_path / "run").resume(run, "")
        for record in run.rounds():
            directory.append(record)
            kept.append(record)
            if record["round"] == done:
                directory.save_checkpoint(run)
                break
        run.close()
    assert without_times(kept) == history
    assert run.model_sha256() == sha


def test_on_the_command_line_a_resumed_run_may_change_its_engine(tmp_path: Path) -> None:
    from laconic.run.config import RunConfig
    from laconic.run.resume import with_changes

    stored = RunConfig(engine="inline")
    assert with_changes(RunConfig(engine="processes"), stored, tmp_path).engine == "processes"
    with pytest.raises(laconic.ConfigError, match="engine = 'ray'"):
        with_changes(RunConfig(engine="ray"), stored, tmp_path)


def test_auto_takes_processes_for_long_runs_whose_threads_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    algorithm, loop, stacked = laconic.fed_avg(), Numerics(strategy="loop"), Numerics(strategy="stacked")
    assert engine_for(algorithm, loop, "cpu", 100, 20) == "processes"
    assert engine_for(algorithm, loop, "cpu", 99, 20) == "inline"
    assert engine_for(algorithm, loop, "cuda", 100, 20) == "inline"
    assert engine_for(algorithm, stacked, "cpu", 100, 20) == "inline"
    run = simulation(ALGORITHMS["fed_cams"], engine="auto", rounds=500)
    run.close()
    assert run.settings.engine == "processes" and isinstance(run.engine, ProcessEngine)


def test_messages_are_views_of_memory_that_is_used_again() -> None:
    import socket

    one, other = map(Channel, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    values = {
        "t": torch.arange(1000.0).view(10, 100),
        "b": Body(3, b"x" * 5000),
        "n": np.arange(300),
        "e": torch.empty(0),
    }
    for round in range(20):
        values["t"] += round
        one.send(values)
        found = other.receive()
        assert torch.equal(found["t"], values["t"]) and bytes(found["b"].data) == b"x" * 5000
        assert (found["n"] == values["n"]).all() and found["e"].shape == (0,)
        kept = found["t"][3].clone(), found["t"][3]
        del found
        other.send(round)
        assert one.receive() == round
        assert torch.equal(*kept), "a view keeps its memory from being used again"
    assert len(one._own) <= 3
    other.close()
    with pytest.raises(EOFError):
        one.receive()
    one.close()


def workers_of(pid: int) -> set[int]:
    """The processes whose parent is `pid`, and theirs."""
    children: dict[int, set[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), set()).add(int(path.parent.name))
    own = children.get(pid, set())
    return own.union(*(workers_of(child) for child in own))


def left_of(processes: set[int]) -> set[int]:
    """The processes that are still there after a while."""
    end = time.monotonic() + 30
    while (left := {each for each in processes if Path(f"/proc/{each}").exists()}) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def test_a_closed_engine_leaves_no_worker_behind() -> None:
    server = fork_server()
    run = simulation(ALGORITHMS["fed_cams"], **PROCESSES)
    rounds = run.rounds()
    next(rounds)
    assert isinstance(run.engine, ProcessEngine)
    workers = workers_of(server._process.pid)
    assert len(workers) == 2
    rounds.close()
    run.close()
    assert not left_of(workers)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_nothing_is_left_of_a_run_that_is_ended(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "laconic", "run", "--engine", "processes", "--threads", "2", "--clients", "4"]
    command += ["--rounds", "100000", "--model", "mlp:8", "--out", str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "run/metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    workers = workers_of(process.pid)
    assert len(workers) == 3, "a server and two workers"
    os.killpg(process.pid, number)
    stderr = process.communicate(timeout=60)[1]
    assert "Traceback" not in stderr
    assert not left_of(workers)
    assert json.loads(metrics.read_text().splitlines()[0])["round"] == 1
