"""Sparse stays sparse: the server adds sparse packets at their positions, with no dense vector for any client (rule 7)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import laconic
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.uplinks.base import Uplink
from laconic.algorithms.uplinks.lazy import SKIP
from laconic.compression import DensePayload, GroupedCompressor, SparsePayload, SumPayload, decode_body
from laconic.compression.packet import Body, CoreStream, Flag, Packet
from laconic.core.randomness import Randomness
from laconic.data import from_arrays
from laconic.federation.messages import Reply
from laconic.federation.round import Round
from laconic.federation.server import Server
from tests.compression.test_compressors import draws, layout_of, normal
from tests.federation.rounds import begin

CLIENTS = 5
LAYOUT = layout_of(250_000, 0, 7, 149_993, dtype=torch.float32)
DENSE_BYTES = 4 * LAYOUT.size
DATA = from_arrays([(np.zeros((1, 1)), np.zeros(1))] * CLIENTS)


class DenseTensors(TorchDispatchMode):
    """Counts tensors as long as the model that torch makes, other than those that were there already."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.known = {tensor.data_ptr() for tensor in known}
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.numel() >= LAYOUT.size and leaf.data_ptr() not in self.known:
                self.made.append(str(func))
        return result


def server_with(uplink: Uplink) -> Server:
    algorithm = Algorithm(laconic.LocalSGD(), uplink, laconic.fed_ams().optimizer)
    counts = {"participants": CLIENTS}
    return Server(algorithm, LAYOUT, torch.zeros(LAYOUT.size), torch.zeros(0), DATA, Randomness(1), **counts)


def reply(server: Server, client: int, body: Body, flags: Flag) -> Reply:
    number = int(server.clients.sequences[client]) + 1
    packet = Packet(body, CoreStream.MODEL, LAYOUT.fingerprint, number, server.round, flags)
    return Reply(server.round, client, (packet.to_bytes(),), 1, 0, 0, 0.0)


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """What is loaded or compiled only once is no part of a client's cost."""
    for spelling in ("top_k:1/64", "top_k:1/64,coding=rice", "random_k:1/64+uniform:12", "top_k:1/64+qsgd:4"):
        body = GroupedCompressor.parse(spelling).encode(normal(LAYOUT), LAYOUT, draws())
        decode_body(body, LAYOUT).add_to(torch.zeros(LAYOUT.size), 1.0)
    with DenseTensors([]) as mode:
        torch.zeros(LAYOUT.size)
    assert mode.made


def fold_all(
    server: Server, round: Round, bodies: list[Body], flags: Flag, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """One reply after the other; the bytes that each took on the way. The first has made the accumulator."""
    replies = [reply(server, client, body, flags) for client, body in enumerate(bodies)]
    assert round.receive(replies[0])
    known = [server.model, round.received.sum("model")]
    peaks = []
    with monkeypatch.context() as patch, DenseTensors(known) as mode:
        for kind in (SparsePayload, SumPayload, DensePayload):
            patch.setattr(kind, "dense", lambda self: pytest.fail("a dense vector for one client"))
        for each in replies[1:]:
            tracemalloc.start()
            assert round.receive(each)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert not mode.made
    return peaks


@pytest.mark.parametrize(("ratio", "share"), [("1/8", 1.0), ("1/64", 0.4)])
@pytest.mark.parametrize(
    "spelling",
    [
        "top_k:{}",
        "top_k:{},coding=rice",
        "heavy_sign:{}@layer",
        "top_k:{}+qsgd:4",
        "random_k:{}",
        "random_k:{}+uniform:12",
    ],
)
def test_a_sparse_packet_takes_less_than_a_dense_vector(
    spelling: str, ratio: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding included. A list of positions takes two numbers' worth each; random_k marks them, a byte for each entry."""
    compressor = GroupedCompressor.parse(spelling.format(ratio))
    bodies = [compressor.encode(normal(LAYOUT, seed), LAYOUT, draws(seed)) for seed in range(CLIENTS)]
    assert all(isinstance(decode_body(body, LAYOUT), SparsePayload) for body in bodies)
    server = server_with(laconic.Compressed(str(compressor)))
    round, _ = begin(server)
    peaks = fold_all(server, round, bodies, Flag(0), monkeypatch)
    assert max(peaks) < share * DENSE_BYTES
    expected = sum(decode_body(body, LAYOUT).dense().double() for body in bodies) / CLIENTS
    mean = round.received.mean("model")
    assert mean is not None
    torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [laconic.Lazy, laconic.Accelerated])
def test_references_stay_packets(
    kind: type[laconic.Lazy | laconic.Accelerated], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skip, and an acceleration, are folded from the client's last packet; that is all that is kept of a client."""
    compressor = GroupedCompressor.parse("top_k:1/64")
    bodies = [compressor.encode(normal(LAYOUT, seed), LAYOUT, draws(seed)) for seed in range(CLIENTS)]
    server = server_with(kind(str(compressor), memory=True))
    round, _ = begin(server)
    fold_all(server, round, bodies, Flag(0), monkeypatch)
    once = round.received.mean("model")
    round.close()
    round, _ = begin(server)
    again = [SKIP] * CLIENTS if kind is laconic.Lazy else bodies
    peaks = fold_all(server, round, again, Flag(0) if kind is laconic.Lazy else Flag.ACCELERATED, monkeypatch)
    assert max(peaks) < 0.4 * DENSE_BYTES
    mean = round.received.mean("model")
    assert once is not None and mean is not None
    torch.testing.assert_close(mean, once if kind is laconic.Lazy else 2 * once)
    for client, body in enumerate(bodies):
        assert sum(value.nbytes for value in server.clients.links[client].values()) <= len(body.data) + 1


def test_a_dense_vector_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the tests above."""
    compressor = GroupedCompressor.parse("top_k:1/64")
    bodies = [compressor.encode(normal(LAYOUT), LAYOUT, draws())] * 2

    def add_densely(self: SparsePayload, accumulator: torch.Tensor, weight: float) -> list[Any]:
        whole = torch.zeros(self.size)
        whole[self.positions] = self.values
        accumulator.add_(whole, alpha=weight)
        return []

    monkeypatch.setattr(SparsePayload, "pieces", add_densely)
    server = server_with(laconic.Compressed(str(compressor)))
    round, _ = begin(server)
    with pytest.raises(AssertionError):
        fold_all(server, round, bodies, Flag(0), monkeypatch)
