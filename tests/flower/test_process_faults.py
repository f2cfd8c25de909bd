"""Real processes that are killed, cut off, and lie: training goes on, and nothing is lost or counted twice.

After every fault the run is compared with a simulation in which exactly those updates arrive that the server has folded: the
model must be the same bit for bit, and so must every node's error memory, as its file has it. That is more than the
conservation law (what was computed is what was sent and what is remembered): it fixes every term of it.
"""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
import torch

import laconic
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.messages import Instruction, Reply
from laconic.federation.store import Question
from laconic.run.directory import RunDirectory, read_metrics
from laconic.run.files import load_tensors
from laconic.run.simulation import Simulation, initial_module, make_task

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from laconic.flower.local_federation import CONNECTION, LocalFederation
from laconic.flower.node_store import NodeFile
from tests.flower.faulty_app import folded, write_faulty_app
from tests.flower.proxy import Proxy

NODES = 3
LABEL = "fed_cams:compressor=sign"
# Far more than it takes: a machine may be busy with other things.
PATIENCE = 900.0
DEADLINE = 600.0
MAJORITY = 0.6
ACTIVATED = "Activated node_id"
"""What the SuperLink logs when it has accepted a node."""
REFUSED = "Failed to activate SuperNode"
"""What Flower says to a node whose key is not registered."""


class Federation:
    """A trial with a run on it, which goes on whenever it is started with more rounds."""

    def __init__(self, folder: Path, label: str = LABEL, nodes: int = NODES, **trial) -> None:
        self.folder, self.label, self.nodes = folder.resolve(), label, nodes
        self.app = write_faulty_app(self.folder, nodes)
        self.trial = LocalFederation(self.folder, max(nodes, trial.pop("started", nodes)), **trial)
        self.run = RunDirectory(self.folder / "run")
        self.rounds = 0

    def start(self, rounds: int, **settings) -> int:
        """With a quorum of all, every round has everybody; with a majority, nobody waits for the dead."""
        self.rounds = rounds
        self.run.model.unlink(missing_ok=True)
        said = {"algorithm": self.label, "rounds": rounds, "model": "mlp:32", "strategy": "loop", "eval-every": 50}
        return self.trial.run(self.app, said | {"out": str(self.run.path), "deadline": DEADLINE} | settings)

    def done(self) -> int:
        return len(read_metrics(self.run.metrics)) if self.run.metrics.exists() else 0

    def wait(self, what: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < ends, self.trial.log_of("superlink")[-5000:] + self.trial.log_of("node-1")[-3000:]
            time.sleep(0.1)

    def wait_for_round(self, round: int) -> None:
        self.wait(lambda: self.done() >= round)

    def finish(self) -> None:
        self.wait(self.run.model.exists)

    def tell(self, name: str, word: str = "") -> None:
        """To the process with that name, what to do when it comes there."""
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(word)

    def restart(self, node: int) -> None:
        """A node that will die, once it has."""
        self.wait(lambda: self.trial.processes[f"node-{node}"].poll() is not None)
        self.revive(node)

    def revive(self, node: int) -> None:
        """Start a dead node until Flower accepts it, which takes the old one for connected for about a minute."""
        before = self.trial.log_of("superlink").count(ACTIVATED)
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            self.trial.start_node(node)
            while self.trial.processes[f"node-{node}"].poll() is None:
                if self.trial.log_of("superlink").count(ACTIVATED) > before:
                    return
                time.sleep(0.1)
            time.sleep(1)
        raise AssertionError(self.trial.log_of(f"node-{node}")[-3000:])

    def memory(self, node: int, number: int) -> torch.Tensor:
        """A node's error memory, once it hears that the server has its update `number`."""
        file = NodeFile(self.folder / "nodes" / f"node-{node}.sqlite")
        with closing(sqlite3.connect(file.path)) as connection:
            ((run,),) = connection.execute("SELECT DISTINCT run FROM entries WHERE owner = 'plan'").fetchall()
        settled = file.store(run).settle(node, Question(99, 10**6, 0, number))
        assert settled.state is not None
        assert not settled.lost
        return settled.state["uplink/memory"]

    def check(self) -> Mapping[int, set[int]]:
        """Nothing was lost, and nothing counted twice."""
        received = folded(self.folder)
        assert sorted(received) == list(range(self.rounds))
        assert [len(received[round]) for round in range(self.rounds)] == [
            record["participants"] for record in read_metrics(self.run.metrics)
        ]
        expected = simulated(self.label, self.nodes, self.rounds, received)
        _, numbers = load_tensors(self.run.model)
        assert numbers["sha256"] == expected.model_sha256()
        checkpoint, _ = load_tensors(self.run.checkpoint)
        for client in set().union(*received.values()):
            there = expected.store.settle(client, Question(0, 10**6, 0, int(expected.server.clients.sequences[client])))
            here = self.memory(client, int(checkpoint["server/clients/sequences"][client]))
            assert torch.equal(here, there.state["uplink/memory"]), client
        return received


class OnlyThese(SimulatedEngine):
    """An engine of whose replies only some arrive."""

    def __init__(self, simulation: Simulation, received: Mapping[int, set[int]]) -> None:
        self.engine, self.server, self.received = simulation.engine, simulation.server, received

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        arrives = self.received[self.server.round]
        return (reply for reply in self.engine.run(instructions) if reply.client in arrives)


def simulated(label: str, clients: int, rounds: int, received: Mapping[int, set[int]]) -> Simulation:
    name, _, compressor = label.partition(":compressor=")
    algorithm = laconic.algorithms.recipes.make(name, **({"compressor": compressor} if compressor else {}))
    data = laconic.data.load("digits", clients=clients, partition="iid")
    module = initial_module(lambda: laconic.models.build("mlp:32", data.input_shape, 10), 0)
    settings = laconic.Settings(rounds=rounds, eval_every=50, numerics={"strategy": "loop"})
    simulation = Simulation(algorithm, make_task(module, data), data, settings)
    simulation.engine = OnlyThese(simulation, received)
    list(simulation.rounds())
    simulation.close()
    return simulation


# test_hard_times.py loses such an answer without processes, in every `make test`.
@pytest.mark.long
def test_a_node_killed_between_its_file_and_its_answer(tmp_path: Path) -> None:
    """The hardest moment: its new state is durable, and the server never hears of it. Its SuperNode lives on."""
    federation = Federation(tmp_path)
    with federation.trial:
        federation.start(1)
        federation.finish()
        federation.tell("nodes/node-1.written", "process")
        federation.start(2, quorum=MAJORITY)
        federation.finish()
        federation.start(4)
        federation.finish()
    assert federation.check() == {0: {0, 1, 2}, 1: {0, 2}, 2: {0, 1, 2}, 3: {0, 1, 2}}


@pytest.mark.long
@pytest.mark.parametrize("label", [LABEL, "fed_bnlaca"])
def test_a_node_killed_in_every_phase(tmp_path: Path, label: str) -> None:
    federation = Federation(tmp_path, label)
    with federation.trial:
        for round, phase in enumerate(("asked", "worked", "written")):
            federation.start(2 * round + 1)
            federation.finish()
            federation.tell(f"nodes/node-1.{phase}", "node")
            federation.start(2 * round + 2, quorum=MAJORITY)
            federation.restart(1)
            federation.finish()
        federation.start(7)
        federation.finish()
        # Its answer is sent, and nothing is under way in its process.
        federation.trial.kill("node-1")
        federation.revive(1)
        federation.start(9)
        federation.finish()
    received = federation.check()
    assert [round for round in received if received[round] == {0, 2}] == [1, 3, 5]
    assert received[8] == {0, 1, 2}


@pytest.mark.long
@pytest.mark.parametrize("label", [LABEL, "fed_bnlaca"])
def test_a_server_killed_before_and_after_its_checkpoint(tmp_path: Path, label: str) -> None:
    federation = Federation(tmp_path, label)
    with federation.trial:
        federation.start(8)
        for phase in ("before", "after"):
            federation.wait_for_round(federation.done() + 1)
            federation.tell(f"server.{phase}")
            federation.wait(lambda phase=phase: not (federation.folder / f"server.{phase}").exists())
            federation.start(8)
        # The machine of the SuperLink, and with it the server.
        federation.wait_for_round(federation.done() + 1)
        federation.trial.kill("superlink")
        federation.trial.start_superlink()
        federation.start(8)
        federation.finish()
    received = federation.check()
    assert all(received[round] == {0, 1, 2} for round in received)
    assert {line.split()[0] for line in (federation.folder / "folded").read_text().splitlines()} >= {"0", "1", "2"}


@pytest.mark.long
@pytest.mark.parametrize("label", [LABEL, "fed_bnlaca"])
def test_a_run_that_is_stopped_continues(tmp_path: Path, label: str) -> None:
    """First by `flwr stop`, then with its SuperLink, by Ctrl-C and by `systemctl stop`, while nodes are at work."""
    federation = Federation(tmp_path, label)
    with federation.trial:
        run = federation.start(10)
        federation.wait_for_round(2)
        federation.trial.flwr("stop", str(run), CONNECTION)
        assert federation.trial.status(run) == "finished:stopped"
        # At once: the stopped server may still be in its round.
        run = federation.start(10)
        for number in (signal.SIGINT, signal.SIGTERM):
            federation.wait_for_round(federation.done() + 2)
            superlink = federation.trial.processes.pop("superlink")
            superlink.send_signal(number)
            superlink.wait(60)
            assert not federation.run.model.exists()
            federation.trial.start_superlink()
            run = federation.start(10)
        federation.finish()
    received = federation.check()
    assert all(received[round] == {0, 1, 2} for round in received)


@pytest.mark.long
def test_a_node_whose_network_is_cut_for_two_rounds(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    with Proxy(federation.trial.fleet_port) as proxy:
        federation.trial.proxy_ports[1] = proxy.port
        with federation.trial:
            federation.start(2)
            federation.finish()
            federation.start(12, quorum=MAJORITY)
            federation.wait_for_round(3)
            proxy.cut()
            cut = federation.done()
            # The round that is under way, and two more.
            federation.wait_for_round(cut + 3)
            proxy.heal()
            federation.finish()
            if federation.trial.processes["node-1"].poll() is not None:
                # Flower's SuperNode may give up on a broken handshake; whoever supervises it starts it again.
                federation.revive(1)
            federation.start(14)
            federation.finish()
    received = federation.check()
    assert received[cut + 1] == received[cut + 2] == {0, 2}
    assert received[12] == received[13] == {0, 1, 2}


@pytest.mark.long
def test_an_old_reply_is_refused(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    with federation.trial:
        federation.start(6)
        federation.wait_for_round(2)
        federation.tell("nodes/node-1.replay")
        federation.finish()
    received = federation.check()
    records = read_metrics(federation.run.metrics)
    assert [record["refused"] for record in records if "refused" in record] == [{"stale": 1}]
    (round,) = [round for round in received if received[round] == {0, 2}]
    assert records[round]["refused"] == {"stale": 1}


@pytest.mark.long
def test_a_node_without_a_registered_key_never_joins(tmp_path: Path) -> None:
    federation = Federation(tmp_path, nodes=2, started=3, registered=2)
    with federation.trial:
        federation.start(4)
        federation.finish()
        assert federation.trial.processes["node-2"].poll() not in (0, None)
    assert REFUSED in federation.trial.log_of("node-2")
    received = federation.check()
    assert all(received[round] == {0, 1} for round in received)
    assert not (federation.folder / "nodes" / "node-2.sqlite").exists()
