"""The Ray engine: the inline engine's results to the bit, also when workers die and when runs are resumed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import laconic
from laconic.data.owned import part_of
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.messages import Instruction, Reply
from laconic.run.directory import RunDirectory
from tests.cli.conftest import forked, zygote  # noqa: F401
from tests.engine.ray_problem import ALGORITHMS, FAULTS, RAY, data, result_of, simulation, without_times

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
# One process for all of them: starting Ray takes longer than most of these tests.
pytestmark = pytest.mark.xdist_group("ray")
FIRST = ["fed_bnlaca", "fed_amd"]
NAMES = [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.long]) for name in ALGORITHMS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "faults", [pytest.param({}, marks=pytest.mark.long, id="in order"), pytest.param(FAULTS, id="with faults")]
)
def test_the_same_bits_as_inline(name: str, faults: dict) -> None:
    settings = {"faults": faults, "network": {"bandwidth_up": "lognormal:300B,2", "deadline": 0.5}}
    inline = result_of(simulation(ALGORITHMS[name], **settings))
    assert result_of(simulation(ALGORITHMS[name], **settings, **RAY)) == inline
    assert any(record.get("cut_off") for record in inline[1]), "the deadline has cut somebody off"


def test_diagnostics_buffers_and_chunks_come_through() -> None:
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
    )
    digits = laconic.data.load("digits", clients=9)
    outcomes = []
    for engine in ({}, RAY | {"chunk": 2, "threads": 1}):
        result = laconic.simulate(
            laconic.fed_cams(compressor="sign"), model, digits, rounds=3, participants=5, diagnostics=True, **engine
        )
        outcomes.append((result.model_sha256, without_times(result.history)))
    assert outcomes[0] == outcomes[1]
    assert "q_a" in outcomes[0][1][0]


class Without(SimulatedEngine):
    """An engine that loses the answers of the even, or of the odd, clients in one round."""

    def __init__(self, engine: SimulatedEngine, round: int, client: int) -> None:
        self.engine, self.lost = engine, (round, client % 2)

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        return (reply for reply in self.engine.run(instructions) if (reply.round, reply.client % 2) != self.lost)


def killed_in_round_three(mark: Path, **settings: object) -> tuple[str, list[dict], int]:
    run = simulation(ALGORITHMS["fed_cams"], mark, **settings)
    history = []
    client = -1
    try:
        for record in run.rounds():
            history.append(record)
            if record["round"] == 2:
                client = next_participants(run)[1]
                mark.write_text(str(client))
    finally:
        run.close()
    assert not mark.exists(), "a worker has died"
    return run.model_sha256(), without_times(history), client


def next_participants(run: laconic.Simulation) -> list[int]:
    from laconic.federation.sampling import participants

    server = run.server
    return list(
        participants("uniform", len(run.data), server.count, server.round, server.randomness, server.client_sizes)
    )


def test_a_worker_that_is_killed_in_a_round_is_replaced_and_its_clients_asked_again(tmp_path: Path) -> None:
    expected = result_of(simulation(ALGORITHMS["fed_cams"], tmp_path / "never"))
    sha, history, _ = killed_in_round_three(tmp_path / "mark", engine="ray", ray={"workers": 2, "repeat": True})
    assert (sha, history) == expected


def test_or_the_round_goes_on_without_them_and_nothing_else_is_lost(tmp_path: Path) -> None:
    sha, history, client = killed_in_round_three(tmp_path / "mark", **RAY)
    assert [record["participants"] for record in history] == [4, 4, history[2]["participants"], 4, 4, 4]
    # The worker was asked for all its clients of the round at once, and has lost them all, whoever it was that killed it.
    run = simulation(ALGORITHMS["fed_cams"], tmp_path / "never")
    run.engine = Without(run.engine, 2, client)
    assert result_of(run) == (sha, history)
    assert 0 < history[2]["participants"] < 4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_a_run_that_is_broken_off_goes_on_from_its_checkpoint(name: str, store: str, tmp_path: Path) -> None:
    algorithm = ALGORITHMS[name]
    sha, history = result_of(simulation(algorithm, rounds=9, faults=FAULTS))
    settings = RAY | {"rounds": 9, "faults": FAULTS, "store": store}
    directory = RunDirectory(tmp_path / "run")
    first = simulation(algorithm, **settings)
    directory.create(first, "")
    for record in first.rounds():
        directory.append(record)
        if record["round"] == 3:
            directory.save_checkpoint(first)
        if record["round"] == 6:
            break
    # The states of rounds 4 to 6 are in the shards' stores, and the checkpoint does not know of them.
    first.close()
    for done in (3, 3, 8):
        # Broken off once more before any checkpoint: the same incarnation must not be used again.
        again = simulation(algorithm, **settings)
        kept = RunDirectory(tmp_path / "run").resume(again, "")
        assert again.server.round == 3
        records = []
        for record in again.rounds():
            records.append(record)
            if record["round"] == done + 1:
                break
        assert without_times([*kept, *records]) == history[: done + 1]
        again.close()
    assert again.model_sha256() == sha


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_workers_return_to_the_checkpoint_of_an_earlier_round(store: str, tmp_path: Path) -> None:
    algorithm = ALGORITHMS["fed_cams"]
    sha, history = result_of(simulation(algorithm, rounds=9))
    settings = RAY | {"rounds": 9, "store": store}
    first = simulation(algorithm, **settings)
    directory = RunDirectory(tmp_path / "run")
    directory.create(first, "")
    for record in first.rounds():
        directory.append(record)
        if record["round"] in (2, 3, 5):
            directory.save_checkpoint(first)
        if record["round"] == 6:
            break
    first.close()
    for chosen in [3, 2] if store == "memory" else [3]:
        again = simulation(algorithm, **settings)
        kept = RunDirectory(tmp_path / "run", from_round=chosen).resume(again, "")
        assert again.server.round == chosen
        records = []
        for record in again.rounds():
            records.append(record)
            if record["round"] == 7 and chosen == 3 and store == "memory":
                break
        again.close()
        assert without_times([*kept, *records]) == history[: len(kept) + len(records)]
        assert not any(record.get("lost") for record in records)
    assert again.model_sha256() == sha


def test_a_run_without_a_checkpoint_starts_again_on_empty_stores(tmp_path: Path) -> None:
    algorithm = ALGORITHMS["fed_cams"]
    directory = RunDirectory(tmp_path / "run")
    first = simulation(algorithm, **RAY)
    directory.create(first, "")
    next(first.rounds())
    first.close()
    assert sorted(path.name for path in (tmp_path / "run/shards").iterdir()) == ["0.sqlite", "1.sqlite"]
    second = simulation(algorithm, **RAY)
    assert directory.resume(second, "") == []
    assert result_of(second) == result_of(simulation(algorithm))


def test_a_shard_has_the_data_of_its_clients_and_nothing_else() -> None:
    whole = data()
    part = part_of(whole, [1, 4])
    assert len(part) == len(whole) and part.test is None
    positions = np.array([2, 0])
    for client in (1, 4):
        assert part.size(client) == whole.size(client)
        for ours, theirs in zip(part.batch(client, positions), whole.batch(client, positions), strict=True):
            assert torch.equal(ours, theirs)
    assert len(part._part.examples) == whole.size(1) + whole.size(4)
    with pytest.raises(KeyError):
        part.batch(0, positions)


def test_what_cannot_work_is_said_in_one_line() -> None:
    with pytest.raises(laconic.ConfigError, match=r"^ray.workers = 2: only with engine = 'ray'"):
        laconic.simulate("fed_avg", "logistic", "digits", ray={"workers": 2})
    laconic.simulate("fed_avg", "logistic", "digits", rounds=1, engine="ray", ray={"workers": 1})  # now there is a Ray
    with pytest.raises(laconic.ConfigError, match=r"ray.workers = 1000: .* capacity for"):
        laconic.simulate("fed_avg", "logistic", "digits", engine="ray", ray={"workers": 1000})


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", pytest.param("127.0.0.1:99999", marks=LONG), pytest.param("no-such-host.invalid:6379", marks=LONG)],
)
def test_a_cluster_that_is_not_there_is_noticed_before_any_work(forked, address: str, tmp_path: Path) -> None:  # noqa: F811
    done = forked("run", "--engine", "ray", "--ray-address", address, "--out", "run")
    assert done.code == 2
    assert len(done.stderr.splitlines()) == 1 and f"ray.address = '{address}': no connection" in done.stderr
    assert not (tmp_path / "run").exists()


def test_without_ray_the_error_is_one_line() -> None:
    """In a process whose importer does not find Ray, as where it is not installed."""
    program = """
import sys
import importlib.machinery
finder = importlib.machinery.PathFinder
class Found:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] == "ray" else finder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(finder)] = Found
from laconic.cli import main
sys.argv = ["laconic", "run", "--engine", "ray", "--rounds", "1"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: engine = 'ray': Ray is not installed: in the folder of the clone, pip install -c constraints.txt -e '.[ray]'"
    ]


def test_the_core_does_not_import_ray() -> None:
    program = "import sys, laconic.cli.training; print([name for name in sys.modules if name.startswith('ray')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
