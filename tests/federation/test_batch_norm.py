"""Batch-norm statistics of one bad client, with a deployment's default settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

import laconic
from laconic.algorithms.recipes import make
from laconic.compression import decode_dense, encode_dense
from laconic.compression.packet import CoreStream, Packet
from laconic.core.layout import Layout
from laconic.federation.messages import Reply
from laconic.federation.update_norms import UpdateNormFilter
from laconic.run.simulation import Simulation, initial_module, make_task

AUTO: dict[str, Any] = {"aggregate": "auto", "clip": "auto", "refuse": "auto"}


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


class Statistician:
    """One client multiplies its batch-norm statistics."""

    def __init__(self, factor: float, layout: Layout) -> None:
        self.factor, self.layout = factor, layout

    def apply(self, reply: Reply) -> Reply:
        if reply.client:
            return reply
        packets = [Packet.parse(raw, self.layout) for raw in reply.packets]
        for number, packet in enumerate(packets):
            if packet.stream == CoreStream.BUFFERS:
                vector = decode_dense(packet.body, self.layout.buffer_size, self.layout.dtype).dense()
                packets[number] = replace(packet, body=encode_dense(self.factor * vector))
        return replace(reply, packets=tuple(packet.to_bytes() for packet in packets))


def simulated(factor: float | None, seed: int = 0, partition: str = "shards:2", **given: Any) -> Simulation:
    data = laconic.data.load("digits", clients=10, partition=partition, seed=seed)
    faults = {} if factor is None else {"faults": {"boosted": 1}}
    settings = laconic.Settings(**{"rounds": 30, "seed": seed, "eval_every": 5, "defense": AUTO} | faults | given)
    found = Simulation(make("fed_avg"), make_task(initial_module(network, seed), data), data, settings)
    if factor is not None:
        assert found.faulty is not None
        found.faulty.attacks = Statistician(factor, found.layout)
        found.policy.attackers = frozenset({0})
    return found


def outcome(run: Simulation) -> tuple[float, dict[str, int], float]:
    """The last accuracy, what was refused, and the lowest variance that the server had."""
    (slot,) = (slot for slot in run.layout.buffers if slot.name.endswith("running_var"))
    accuracy, refused, lowest = 0.0, dict[str, int](), 1.0
    for record in run.rounds():
        accuracy = record.get("accuracy", accuracy)
        for reason, count in record.get("refused", {}).items():
            refused[reason] = refused.get(reason, 0) + count
        lowest = min(lowest, float(slot.view(run.server.buffers).min()))
    run.close()
    return accuracy, refused, lowest


@pytest.mark.parametrize(("factor", "reason"), [(-19.0, "variance"), (19.0, "outlier")])
def test_statistics_of_one_client_do_not_own_the_model(factor: float, reason: str) -> None:
    absent, missing, _ = outcome(simulated(float("nan")))
    accuracy, refused, lowest = outcome(simulated(factor))
    assert missing["not finite"] == refused[reason] == 3, "then the client is blocked"
    assert lowest >= 0
    assert accuracy > absent - 0.02


def test_updates_are_clipped_although_statistics_are_sent() -> None:
    for defense, clip in ((AUTO, "median:2"), ({"clip": "auto"}, None)):
        run = simulated(None, defense=defense)
        assert run.server.defenses.clip == clip
        run.close()
    for defense, words in (
        ({"clip": 1.0}, "undefended; use buffers = 'frozen', refuse = 'auto' or"),
        ({"clip": 1.0, "noise": 1.0}, "undefended; use buffers = 'frozen'$"),
    ):
        with pytest.raises(laconic.ConfigError, match=words):
            simulated(None, defense=defense, sampling="poisson" if "noise" in defense else "uniform")


def test_clipping_does_not_widen_the_limit_of_statistics() -> None:
    norms = UpdateNormFilter(laconic.Settings(defense={"clip": "median:2", "refuse": "auto"}).defense)
    for _ in range(6):
        norms.add({"train/model": 1.0, "train/buffers": 1.0})
    limits = norms.limits([{"train/model": 1.0, "train/buffers": 1.0}] * 5)
    assert min(limit.norm for limit in limits.refuse["train/model"]) == 10
    assert min(limit.norm for limit in limits.refuse["train/buffers"]) == 5
