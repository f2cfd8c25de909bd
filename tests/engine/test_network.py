"""Simulated seconds, deadlines and traces."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import laconic
from laconic.core.errors import ConfigError
from laconic.core.randomness import Randomness
from laconic.engine.network import Connections
from laconic.engine.settings import Network, quantity
from laconic.run.config import RunConfig
from laconic.run.simulation import Simulation

SMALL = {"clients": 8, "participants": 4, "rounds": 6, "model": "mlp:8", "eval_every": 6}


def run(**settings: object) -> tuple[list[dict], Simulation]:
    simulation = RunConfig(**(SMALL | settings)).build()
    try:
        return list(simulation.rounds()), simulation
    finally:
        simulation.close()


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1Mbit", "bandwidth", 1e6),
        ("2.5 Gbit/s", "bandwidth", 2.5e9),
        ("10Mbps", "bandwidth", 1e7),
        ("500kB", "bandwidth", 4e6),
        ("50ms", "latency", 0.05),
        ("0s", "latency", 0.0),
        ("0Mbit", "bandwidth", None),
        ("fast", "bandwidth", None),
        ("-1ms", "latency", None),
        ("5", "latency", 5.0),
        ("5", "bandwidth", None),
        ("1Mb", "bandwidth", None),
        ("1mbit", "bandwidth", 1e6),
    ],
)
def test_quantities(text: str, kind: str, value: float | None) -> None:
    if value is not None:
        assert quantity(text, kind) == pytest.approx(value)
        return
    with pytest.raises(ValueError, match=r"write it as in|above 0"):
        quantity(text, kind)


def test_seconds_are_those_of_the_formula() -> None:
    history, simulation = run(
        algorithm="fed_avg",
        network={"bandwidth_up": "1Mbit", "bandwidth_down": "10Mbit", "latency": "50ms", "compute": 1e-3},
    )
    for before, record in zip([{}, *history], history, strict=False):
        up, down, samples = ((record[name] - before.get(name, 0)) / 4 for name in ("bytes_up", "bytes_down", "samples"))
        took = record["simulated_seconds"] - before.get("simulated_seconds", 0.0)
        assert took == pytest.approx(0.1 + 8 * up / 1e6 + 8 * down / 1e7 + 1e-3 * samples)
    assert simulation.settings.network.bandwidth_up == "1Mbit"


def test_nothing_else_changes() -> None:
    plain, simulation = run(algorithm="fed_cams")
    timed, same = run(
        algorithm="fed_cams", network={"bandwidth_up": "lognormal:1Mbit,1", "latency": "lognormal:50ms,1"}
    )
    assert same.model_sha256() == simulation.model_sha256()
    for one, other in zip(plain, timed, strict=True):
        kept = {name: value for name, value in other.items() if name != "simulated_seconds"}
        assert kept | {"seconds": 0} == one | {"seconds": 0}


def test_a_round_lasts_as_long_as_its_slowest_client() -> None:
    network = {"bandwidth_up": "lognormal:1Mbit,1"}
    history, _ = run(algorithm="fed_avg", participants=8, network=network)
    connections = Connections(Network(**network), Randomness(0))
    slowest = min(connections.of(client, 0).up for client in range(8))
    up = history[0]["bytes_up"] / 8
    assert history[0]["simulated_seconds"] == pytest.approx(8 * up / slowest)
    assert history[-1]["simulated_seconds"] == pytest.approx(6 * 8 * up / slowest)


def test_lognormal_rates_have_the_median_and_the_spread() -> None:
    connections = Connections(Network(bandwidth_up="lognormal:1Mbit,0.5"), Randomness(3))
    logs = np.log([connections.of(client, 0).up for client in range(4000)])
    # Standard errors are 0.008 and 0.0056: six of them, so a right program fails once in 1e8 seeds; and this one is fixed.
    assert abs(logs.mean() - math.log(1e6)) < 0.05
    assert abs(logs.std() - 0.5) < 0.035


def test_a_deadline_cuts_stragglers_off_and_their_round_is_not_committed() -> None:
    network = {"bandwidth_up": "lognormal:1Mbit,1"}
    everybody, _ = run(algorithm="fed_cams", participants=8, network=network, uplink={"compressor": "sign"})
    connections = Connections(Network(**network), Randomness(0))
    times = sorted(8 * everybody[0]["bytes_up"] / 8 / connections.of(client, 0).up for client in range(8))
    deadline = (times[4] + times[5]) / 2
    history, simulation = run(
        algorithm="fed_cams", participants=8, network=network | {"deadline": deadline}, uplink={"compressor": "sign"}
    )
    assert [record["participants"] for record in history] == [5] * 6
    assert [record["cut_off"] for record in history] == [3] * 6
    assert history[-1]["simulated_seconds"] == pytest.approx(6 * deadline)
    slow = [client for client in range(8) if 8 * everybody[0]["bytes_up"] / 8 / connections.of(client, 0).up > deadline]
    assert simulation.server.clients.sequences[slow].tolist() == [0, 0, 0]
    # Whatever they have kept of it was never acknowledged.
    records = [simulation.store.record(client) for client in slow]
    assert [record.committed for record in records] == [0, 0, 0]
    assert all(record.pending for record in records)
    assert history[-1]["bytes_up"] < everybody[-1]["bytes_up"]


def test_a_deadline_is_for_the_whole_round_and_not_for_each_exchange() -> None:
    slow = {"latency": "100ms"}
    history, _ = run(algorithm="fed_gate", network=slow)
    assert history[0]["simulated_seconds"] == pytest.approx(0.4)
    late, simulation = run(algorithm="fed_gate", network=slow | {"deadline": 0.3})
    # The updates are in time, what confirms the mean is not; it is owed and comes with the next instruction.
    assert late[0]["participants"] == 4 and late[0]["cut_off"] == 4
    assert late[-1]["simulated_seconds"] == pytest.approx(6 * 0.3)
    assert simulation.server.clients.pending.clients()


def test_whoever_does_not_answer_is_waited_for_until_the_deadline() -> None:
    history, _ = run(algorithm="fed_avg", network={"latency": "10ms", "deadline": 2.0}, faults={"crash": 1.0})
    assert history[-1]["simulated_seconds"] == pytest.approx(12.0)
    late, _ = run(algorithm="fed_avg", network={"latency": "10ms"}, faults={"late": 1.0, "duplicate": 1.0})
    assert late[-1]["refused"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("up,down,latency\n1Mbit,2Mbit,10ms\n3Mbit,4Mbit,20ms\n", {(0, 0): 1e6, (1, 0): 3e6, (2, 5): 1e6}),
        ("round,up\n0,1Mbit\n4,5Mbit\n", {(0, 0): 1e6, (3, 3): 1e6, (3, 4): 5e6}),
        (
            "client,round,up\na,0,1Mbit\nb,0,2Mbit\na,3,3Mbit\n",
            {(0, 2): 1e6, (0, 3): 3e6, (1, 9): 2e6, (2, 3): 3e6},
        ),
        ("client,up\na,\nb,2Mbit\n", {(0, 0): 7e6, (1, 0): 2e6}),
    ],
)
def test_traces(rows: str, expected: dict[tuple[int, int], float], tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(rows)
    connections = Connections(Network(trace=str(file), bandwidth_up="7Mbit"), Randomness(0))
    assert {place: connections.of(*place).up for place in expected} == expected


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "No such file"),
        ("", "no rows with a column up, down, latency"),
        ("client,speed\n1,2\n", "no rows with a column"),
        ("up\n1Mbit\nquick\n", "line 3: not a bandwidth; write it as in 1Mbit"),
        ("round,up\nlast,1Mbit\n", "line 2"),
    ],
)
def test_bad_traces(rows: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    if rows is not None:
        file.write_text(rows)
    with pytest.raises(ConfigError, match=message):
        laconic.simulate("fed_avg", "mlp:8", "digits", rounds=1, network={"trace": str(file)})


def test_a_deadline_without_a_network_means_nothing() -> None:
    with pytest.raises(ConfigError, match="a deadline needs simulated durations"):
        laconic.simulate("fed_avg", "mlp:8", "digits", rounds=1, network={"deadline": 3})


@pytest.mark.parametrize("text", ["lognormal:1Mbit", "lognormal:1Mbit,-1", "lognormal:1Mb,0.5", "normal:1Mbit,0.5"])
def test_spreads_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="lognormal:"):
        laconic.simulate("fed_avg", "mlp:8", "digits", rounds=1, network={"bandwidth_up": text})


def test_simulated_seconds_go_on_after_a_resume() -> None:
    settings = {"algorithm": "fed_cams", "network": {"bandwidth_up": "lognormal:1Mbit,1", "deadline": 0.5}}
    whole, _ = run(**settings)
    first = RunConfig(**(SMALL | settings)).build()
    rounds = first.rounds()
    for _ in range(3):
        next(rounds)
    state = first.state_dict()
    first.close()
    second = RunConfig(**(SMALL | settings)).build()
    second.load_state_dict(state)
    rest = list(second.rounds())
    second.close()
    assert [record["simulated_seconds"] for record in rest] == [record["simulated_seconds"] for record in whole[3:]]
