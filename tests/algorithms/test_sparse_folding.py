"""The server folds sparse packets of every uplink without a dense vector for any client."""

from __future__ import annotations

import pytest

from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.optimizers.adaptive import AMS
from laconic.compression import Codec, SparsePayload, SumPayload, decode_body
from laconic.compression.packet import Packet
from tests.algorithms.test_conservation import CLIENTS, DOWNLINKS, LAYOUT, UPLINKS, GivenUpdates, World
from tests.federation.rounds import begin


@pytest.mark.parametrize("uplink", ["top_k", "lazy", "accelerated", "accelerated by what is used"])
def test_folding_sparse_packets_never_makes_one_dense(uplink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = UPLINKS[uplink].replace(compressor="top_k:1/8")
    if uplink != "top_k":
        part = part.replace(threshold=2.0)
    world = World(Algorithm(GivenUpdates(), part, AMS(), DOWNLINKS["dense"]))
    fired = 0
    for _ in range(6):
        round, instructions = begin(world.server)
        replies = world.runtime.answer(instructions, gradients=None)
        for reply in replies:
            body = Packet.parse(reply.packets[0], LAYOUT).body
            assert body.codec == Codec.SKIP or isinstance(decode_body(body, LAYOUT), SparsePayload)
        with monkeypatch.context() as patch:
            patch.setattr(SparsePayload, "dense", lambda self: pytest.fail("a dense vector for one client"))
            patch.setattr(SumPayload, "dense", lambda self: pytest.fail("a dense vector for one client"))
            for reply in replies:
                assert round.receive(reply)
            round.close()
        fired += round.costs.skipped + round.costs.accelerated
    assert world.server.clients.sequences.tolist() == [6] * CLIENTS
    assert (fired > 0) == (uplink != "top_k")
