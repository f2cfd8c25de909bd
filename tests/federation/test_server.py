"""The server's side of a round: what it folds, what it refuses, and what then moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from laconic import fed_ams, fed_avg
from laconic.algorithms.algorithm import Algorithm
from laconic.compression import HEADER_BYTES, GroupedCompressor, encode_dense
from laconic.compression.packet import CoreStream, Packet
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.randomness import Randomness
from laconic.data import from_arrays
from laconic.federation import replies
from laconic.federation.messages import Instruction, MalformedReply, Reply
from laconic.federation.policy import Outcome
from laconic.federation.round import Round
from laconic.federation.server import Server
from laconic.federation.settings import Defenses
from tests.compression.test_compressors import draws, layout_of
from tests.federation.rounds import NoEngine, begin, refusal

SIZES = (3, 1, 4, 2)
LAYOUT = Layout.of(nn.Linear(2, 1))
NORMED = Layout.of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def make_server(algorithm: Algorithm | None = None, layout: Layout = LAYOUT, **options: object) -> Server:
    data = from_arrays([(np.zeros((size, 2)), np.zeros(size)) for size in SIZES])
    algorithm = algorithm or fed_avg()
    buffers = torch.zeros(layout.buffer_size)
    settings = {"participants": 4} | options
    return Server(algorithm, layout, torch.zeros(layout.size), buffers, data, Randomness(0), **settings)


def reply(instruction: Instruction, update: Tensor, layout: Layout = LAYOUT, **changes: int) -> Reply:
    label = {"stream": CoreStream.MODEL, "sequence": acknowledged(instruction, layout) + 1, "round": instruction.round}
    packet = Packet(encode_dense(update), fingerprint=layout.fingerprint, **(label | changes))
    size = SIZES[instruction.client]
    return Reply(instruction.round, instruction.client, (packet.to_bytes(),), size, 10, 10, 0.5)


def acknowledged(instruction: Instruction, layout: Layout = LAYOUT) -> int:
    return Packet.parse(instruction.packets[0], layout).sequence


def contents(server: Server, round: Round) -> tuple:
    """All that a refused reply could have changed, but for the count of refusals."""
    state = {name: value.clone() for name, value in server.state_dict().items()}
    costs = round.costs.state_dict() | {"refused": {}}
    costs["streams"] = {name: numbers for name, numbers in costs["streams"].items() if name != "up/refused"}
    return state, costs, round.training_loss()


def refused(server: Server, round: Round, message: Reply) -> str:
    """The reason of the refusal, once it is clear that nothing has changed."""
    before = contents(server, round)
    reason = refusal(round, message)
    state, *books = contents(server, round)
    assert all(torch.equal(state[name], before[0][name]) for name in state)
    assert repr(books) == repr([*before[1:]])
    return reason


def test_a_reply_folded_twice_counts_once() -> None:
    server = make_server()
    round, instructions = begin(server)
    message = reply(instructions[0], torch.ones(3))
    assert round.receive(message)
    assert refused(server, round, message) == "stale"
    assert round.receive(reply(instructions[1], torch.zeros(3)))
    round.close()
    assert server.model.tolist() == [0.5] * 3


def test_a_client_that_was_not_invited_is_refused() -> None:
    server = make_server(participants=2)
    round, instructions = begin(server)
    invited = {instruction.client for instruction in instructions}
    stranger = next(client for client in range(4) if client not in invited)
    assert (
        refused(server, round, reply(Instruction(0, stranger, 2, 0, "train", None, _downlink(server)), torch.ones(3)))
        == "stale"
    )


def _downlink(server: Server) -> tuple[bytes, ...]:
    return (Packet(encode_dense(server.model), CoreStream.MODEL, LAYOUT.fingerprint, 0, server.round).to_bytes(),)


def test_a_client_that_does_not_exist_is_refused() -> None:
    server = make_server()
    round, (instruction, *_) = begin(server)
    message = reply(instruction, torch.ones(3))
    assert refused(server, round, replace(message, client=99)) == "stale"
    assert refused(server, round, replace(message, client=-1)) == "stale"


def test_an_update_from_the_round_before_is_refused() -> None:
    server = make_server()
    round, (instruction, *_) = begin(server)
    late = reply(instruction, torch.ones(3))
    round.close()
    round, _ = begin(server)
    assert refused(server, round, late) == "stale"


def test_a_reply_from_a_round_to_come_is_refused() -> None:
    server = make_server()
    round, (instruction, *_) = begin(server)
    assert refused(server, round, reply(instruction, torch.ones(3), round=1)) == "stale"


def test_a_sequence_number_that_was_folded_already_is_refused() -> None:
    server = make_server()
    round, (instruction, *_) = begin(server)
    assert round.receive(reply(instruction, torch.ones(3)))
    round.close()
    round, (instruction, *_) = begin(server)
    assert acknowledged(instruction) == 1
    for number in (0, 1):
        assert refused(server, round, reply(instruction, torch.ones(3), sequence=number)) == "stale"
    assert round.receive(reply(instruction, torch.ones(3), sequence=7))
    assert server.clients.sequences[0] == 7


def test_wrong_streams_are_refused() -> None:
    server = make_server()
    round, (instruction, *_) = begin(server)
    message = reply(instruction, torch.ones(3))
    assert refused(server, round, replace(message, packets=())) == "stream"
    assert refused(server, round, replace(message, packets=message.packets * 2)) == "stream"
    assert refused(server, round, reply(instruction, torch.ones(3), stream=CoreStream.BUFFERS)) == "stream"
    assert refused(server, round, reply(instruction, torch.ones(3), stream=13)) == "stream"


def test_an_update_of_the_wrong_size_or_with_nan_is_refused() -> None:
    server = make_server()
    round, (instruction, *_) = begin(server)
    assert refused(server, round, reply(instruction, torch.ones(4))) == "size"
    assert refused(server, round, reply(instruction, torch.tensor([1.0, float("nan"), 0.0]))) == "not finite"
    assert round.receive(reply(instruction, torch.ones(3)))
    round.close()
    assert server.model.tolist() == [1.0] * 3


def test_bad_buffers_refuse_the_whole_reply() -> None:
    server = make_server(layout=NORMED)
    round, (instruction, *_) = begin(server)
    update = reply(instruction, torch.ones(NORMED.size), NORMED)
    assert refused(server, round, update) == "stream"
    bad = (torch.full((4,), float("inf")), "not finite"), (torch.zeros(5), "size"), (-torch.ones(4), "variance")
    for buffers, reason in bad:
        second = reply(instruction, buffers, NORMED, stream=CoreStream.BUFFERS)
        assert refused(server, round, replace(update, packets=update.packets + second.packets)) == reason


def test_with_nothing_folded_nothing_moves_but_the_round() -> None:
    server = make_server(fed_ams())
    round, (instruction, *_) = begin(server)
    assert round.receive(reply(instruction, torch.ones(3)))
    round.close()
    before = {name: value.clone() for name, value in server.state_dict().items()}
    round, _ = begin(server)
    round.close()
    after = server.state_dict()
    assert int(after["round"]) == int(before["round"]) + 1
    assert [name for name in after if not torch.equal(after[name], before[name])] == ["round"]


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 3), min_size=1), st.sampled_from(["uniform", "size"]), st.integers(0, 2**31))
def test_the_mean_is_that_of_numpy_over_whoever_answered(answering: set[int], weighting: str, seed: int) -> None:
    server = make_server(layout=NORMED, weighting=weighting)
    generator = np.random.default_rng(seed)
    updates = generator.standard_normal((4, NORMED.size)).astype(np.float32)
    statistics = abs(generator.standard_normal((4, NORMED.buffer_size))).astype(np.float32)
    round, instructions = begin(server)
    for instruction in instructions:
        if instruction.client in answering:
            both = [
                reply(instruction, torch.from_numpy(vectors[instruction.client]), NORMED, stream=stream).packets[0]
                for vectors, stream in ((updates, CoreStream.MODEL), (statistics, CoreStream.BUFFERS))
            ]
            assert round.receive(replace(reply(instruction, torch.zeros(NORMED.size), NORMED), packets=tuple(both)))
    costs = round.close().costs
    rows = sorted(answering)
    weights = None if weighting == "uniform" else np.array(SIZES)[rows]
    expected = np.average(updates[rows].astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(server.model.numpy(), expected, rtol=1e-5, atol=1e-6)
    expected = np.average(statistics[rows].astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(server.buffers.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert (costs.invited, costs.folded) == (4, len(rows))
    assert costs.streams["up/model"].bytes == len(rows) * (HEADER_BYTES + 4 * NORMED.size)
    assert costs.streams["up/buffers"].bytes == len(rows) * (HEADER_BYTES + 4 * NORMED.buffer_size)
    assert costs.paper_bits("up") == len(rows) * 32 * NORMED.size


def test_a_restored_server_invites_and_folds_as_the_one_that_was_saved() -> None:
    first = make_server(fed_ams(), participants=2)
    for _ in range(3):
        round, instructions = begin(first)
        for instruction in instructions:
            assert round.receive(reply(instruction, torch.randn(3)))
        round.close()
    second = make_server(fed_ams(), participants=2)
    second.load_state_dict({name: value.clone() for name, value in first.state_dict().items()})
    (ours, our_instructions), (theirs, their_instructions) = begin(first), begin(second)
    assert our_instructions == their_instructions
    for round, instructions in ((ours, our_instructions), (theirs, their_instructions)):
        for instruction in instructions:
            assert round.receive(reply(instruction, torch.full((3,), 0.25)))
        round.close()
    assert torch.equal(first.model, second.model)


class Unordered(NoEngine):
    in_order = False


@pytest.mark.parametrize("refuse", [None, "auto"])
def test_replies_in_any_order_give_the_same_sum_and_are_checked_once_and_decoded_once(
    monkeypatch: pytest.MonkeyPatch, refuse: str | None
) -> None:
    passes = count_passes(monkeypatch)
    servers = []
    for order in (1, -1):
        server = make_server(quorum=0.5, defenses=Defenses(refuse=refuse))
        round, instructions = begin(server, Unordered())
        updates = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)) * 1e3
        for instruction in instructions[::order]:
            assert round.receive(reply(instruction, updates[instruction.client]))
        (exchange,) = round.exchanges()
        round.finish(exchange)
        round.close()
        servers.append(server)
    assert torch.equal(servers[0].model, servers[1].model)
    assert passes == ["body_norm"] * 4 + ["decode_body"] * 4 + ["body_norm"] * 4 + ["decode_body"] * 4


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that read bodies to the end, once per call."""
    passes: list[str] = []
    for read in (replies.body_norm, replies.decode_body, replies.decode_dense):

        def counted(*arguments, read=read):
            passes.append(read.__name__)
            return read(*arguments)

        monkeypatch.setattr(replies, read.__name__, counted)
    return passes


@pytest.mark.parametrize(
    ("spellings", "stream", "expected"),
    [
        (["top_k:1/8"], "model", ["body_norm", "decode_body"]),
        (["sign"], "model", ["body_norm", "decode_body"]),
        (["eden"], "model", ["body_norm", "decode_body"]),
        (["top_k:1/8", "top_k:1/8"], "model", ["decode_body", "decode_body"]),
        (["eden", "top_k:1/8"], "model", ["decode_body"] * 4),
        (["dense"], "buffers", ["decode_dense"]),
    ],
    ids=["sparse", "signs", "rotated", "two sparse", "rotated and sparse", "buffers"],
)
def test_a_vector_that_its_norm_needs_is_kept_unless_it_is_large(
    monkeypatch: pytest.MonkeyPatch, spellings: list[str], stream: str, expected: list[str]
) -> None:
    passes = count_passes(monkeypatch)
    layout = layout_of(4096, dtype=torch.float32) if stream == "model" else NORMED
    vector = torch.randn(layout.size if stream == "model" else layout.buffer_size)
    if stream == "model":
        bodies = [GroupedCompressor.parse(spelling).encode(vector, layout, draws()) for spelling in spellings]
    else:
        bodies = [encode_dense(vector)]
    coded = replies.CodedVector(tuple(bodies), stream, layout)
    norm = coded.norm()
    assert norm == pytest.approx(coded.payload.norm(), rel=1e-6)
    assert passes == expected


def test_a_quorum_counts_valid_replies_only() -> None:
    server = make_server(quorum=0.5)
    round, instructions = begin(server, Unordered())
    round.receive(reply(instructions[0], torch.tensor([1.0, float("nan"), 0.0])))
    assert not round.has_quorum()
    for instruction in instructions[1:3]:
        assert not round.has_quorum()
        round.receive(reply(instruction, torch.ones(3)))
    assert round.has_quorum()
    assert refusal(round, reply(instructions[1], torch.ones(3))) == "stale", "its reply is here already"


def test_a_malformed_reply_is_counted_and_blocks_its_client() -> None:
    server = make_server()
    for _ in range(3):
        assert not server.blocklist.is_blocked(2)
        round, instructions = begin(server)
        assert len(instructions) == 4
        assert not round.receive(MalformedReply(2, PacketError("record", "no packets")))
        assert round.costs.refused == {"record": 1}
        (exchange,) = round.exchanges()
        assert round.finish(exchange) is Outcome.PROCEED
        round.close()
    assert [instruction.client for instruction in begin(server)[1]] == [0, 1, 3]
