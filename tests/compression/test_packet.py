"""Framing: what goes in comes out, and bytes from outside are refused with a reason."""

from __future__ import annotations

import math
import pickle
import struct

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from laconic.compression import Codec, decode_dense, encode_dense
from laconic.compression.packet import HEADER_BYTES, MOST_ROUNDS, VERSION, Body, CoreStream, Packet, sequence_of
from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout

LAYOUT = Layout.of(nn.Linear(2, 1))
SMALL = Packet(encode_dense(torch.tensor([1.0, -2.0, 3.5])), CoreStream.MODEL, LAYOUT.fingerprint, 5, 9)
NUMBERS = st.integers(0, MOST_ROUNDS)
BYTE = st.integers(0, 255)
HALF = st.integers(0, 15)


def refusal(data: bytes) -> str:
    with pytest.raises(PacketError) as caught:
        Packet.parse(data, LAYOUT)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def with_header(**changes: object) -> bytes:
    """A packet whose header was changed by someone who also sets the checksum right."""
    fields = {
        "version": VERSION,
        "codec": 1,
        "stream": 0,
        "incarnation": 0,
        "sequence": (5).to_bytes(3, "little"),
        "round": (9).to_bytes(3, "little"),
        "fingerprint": LAYOUT.fingerprint,
    }
    fields |= changes
    layout = fields.pop("fingerprint").to_bytes(6, "little")
    head = struct.pack("<BBBH3s3s", *fields.values())
    data = bytes(SMALL.body.data)
    checksum = xxhash.xxh3_64_intdigest(head + layout, seed=xxhash.xxh3_64_intdigest(data)) & 0xFFFFFFFF
    return head + checksum.to_bytes(4, "little") + data


def test_the_header_has_15_bytes_which_is_below_the_allowed_16() -> None:
    assert HEADER_BYTES == 15
    assert len(SMALL.to_bytes()) == 15 + 3 * 4
    assert len(Packet(Body(Codec.SKIP), CoreStream.MODEL, LAYOUT.fingerprint, 0, 0).to_bytes()) == 15


def test_the_header_written_by_hand_is_the_header_of_the_packet() -> None:
    assert with_header() == SMALL.to_bytes()


@given(BYTE, st.binary(max_size=200), HALF, NUMBERS, NUMBERS, st.integers(0, 7), st.integers(0, 2**16 - 1), HALF)
def test_parse_undoes_to_bytes(
    codec: int, data: bytes, stream: int, sequence: int, round: int, flags: int, incarnation: int, exchange: int
) -> None:
    sent = Packet(Body(codec, data), stream, LAYOUT.fingerprint, sequence, round, flags, incarnation, exchange)
    raw = sent.to_bytes()
    for form in (raw, bytearray(raw), memoryview(b"xyz" + raw)[3:]):
        found = Packet.parse(form, LAYOUT)
        assert (found.body.codec, bytes(found.body.data)) == (codec, data)
        assert (found.stream, found.sequence, found.round, found.flags) == (stream, sequence, round, flags)
        assert (found.incarnation, found.exchange) == (incarnation, exchange)
        assert found.to_bytes() == raw


def test_a_body_may_go_out_under_many_headers() -> None:
    body = encode_dense(torch.randn(3))
    for sequence in range(3):
        raw = Packet(body, CoreStream.MODEL, LAYOUT.fingerprint, sequence, 0).to_bytes()
        assert Packet.parse(raw, LAYOUT).sequence == sequence


@pytest.mark.parametrize("length", range(HEADER_BYTES))
def test_less_than_a_header_is_truncated(length: int) -> None:
    assert refusal(SMALL.to_bytes()[:length]) == "truncated"


def test_every_other_cut_and_every_addition_is_refused_by_the_checksum() -> None:
    raw = SMALL.to_bytes()
    assert {refusal(raw[:length]) for length in range(HEADER_BYTES, len(raw))} == {"checksum"}
    assert refusal(raw + b"\0") == "checksum"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": VERSION + 1}, "version"),
        ({"version": 0}, "version"),
        ({"version": ord("L")}, "version"),
        ({"version": VERSION | 128}, "flags"),
        ({"fingerprint": LAYOUT.fingerprint ^ 1}, "checksum"),
    ],
)
def test_a_wrong_header_is_refused_even_with_a_right_checksum(changes: dict, reason: str) -> None:
    assert refusal(with_header(**changes)) == reason


def test_a_packet_for_another_model_is_refused() -> None:
    raw = SMALL.to_bytes()
    with pytest.raises(PacketError, match="another model"):
        Packet.parse(raw, Layout.of(nn.Linear(1, 2)))


def test_every_single_changed_byte_is_noticed() -> None:
    raw = SMALL.to_bytes()
    reasons = set()
    for place in range(len(raw)):
        for flip in (*(1 << bit for bit in range(8)), 0xFF):
            damaged = bytearray(raw)
            damaged[place] ^= flip
            reasons.add(refusal(bytes(damaged)))
    assert reasons == {"version", "checksum"}


@given(st.binary(max_size=80))
def test_random_bytes_are_refused(data: bytes) -> None:
    refusal(data)


@given(st.binary(max_size=60))
def test_random_bytes_after_a_true_beginning_are_refused(data: bytes) -> None:
    refusal(SMALL.to_bytes()[:11] + data)


def test_a_body_beyond_four_bytes_of_length_is_refused_by_the_sender() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 2**32

    with pytest.raises(ConfigError, match="above the limit"):
        Packet(Body(1, Long()), 0, LAYOUT.fingerprint, 0, 0).to_bytes()


def test_a_round_beyond_three_bytes_is_refused_by_the_sender() -> None:
    with pytest.raises(ConfigError, match="packets can count 16777215 rounds"):
        Packet(SMALL.body, 0, LAYOUT.fingerprint, 0, 2**24).to_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dense_body_is_the_vector_bit_for_bit(dtype: torch.dtype) -> None:
    vector = torch.tensor([0.1, -0.0, 1e-40, 3e38, -1.0], dtype=dtype)
    body = encode_dense(vector)
    found = decode_dense(body, 5, dtype).dense()
    assert found.dtype == dtype
    assert found.numpy().tobytes() == vector.numpy().tobytes()
    assert len(body.data) == 5 * dtype.itemsize


def test_a_decoded_vector_can_be_written_to_without_touching_the_packet() -> None:
    raw = SMALL.to_bytes()
    found = decode_dense(Packet.parse(raw, LAYOUT).body, 3, torch.float32).dense()
    found.zero_()
    assert raw == SMALL.to_bytes()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_dense_body_with_a_number_that_is_not_finite_is_refused(value: float, place: int) -> None:
    vector = torch.ones(3)
    vector[place] = value
    with pytest.raises(PacketError) as caught:
        decode_dense(encode_dense(vector), 3, torch.float32)
    assert caught.value.reason == "not finite"


def test_infinities_that_cancel_are_refused_and_a_finite_sum_that_overflows_is_not() -> None:
    with pytest.raises(PacketError, match="not finite"):
        decode_dense(encode_dense(torch.tensor([math.inf, -math.inf])), 2, torch.float32)
    large = torch.full((4,), 3e38)
    assert torch.equal(decode_dense(encode_dense(large), 4, torch.float32).dense(), large)


@pytest.mark.parametrize("length", [0, 4, 11, 13, 16])
def test_a_dense_body_of_another_size_is_refused(length: int) -> None:
    with pytest.raises(PacketError) as caught:
        decode_dense(Body(Codec.FLOAT32, b"\0" * length), 3, torch.float32)
    assert caught.value.reason == "size"


def test_a_dense_body_of_another_type_and_an_unknown_codec_are_refused() -> None:
    with pytest.raises(PacketError) as caught:
        decode_dense(encode_dense(torch.ones(3, dtype=torch.float64)), 3, torch.float32)
    assert caught.value.reason == "dtype"
    with pytest.raises(PacketError) as caught:
        decode_dense(Body(255, b"\0" * 12), 3, torch.float32)
    assert caught.value.reason == "codec"


def test_flags_that_nobody_has_defined_are_refused() -> None:
    raw = Packet(SMALL.body, SMALL.stream, LAYOUT.fingerprint, 1, 2, 8).to_bytes()
    with pytest.raises(PacketError) as caught:
        Packet.parse(raw, LAYOUT)
    assert caught.value.reason == "flags"


def test_a_packet_is_not_copied_within_a_process_and_travels_with_one_copy_of_a_shared_body() -> None:
    data = SMALL.to_bytes()
    assert (bytes(SMALL), len(SMALL)) == (data, len(data))
    assert Packet.parse(SMALL, LAYOUT) is SMALL
    assert Packet.parse(data, LAYOUT) == SMALL
    assert sequence_of(SMALL) == sequence_of(data) == 5
    body = encode_dense(torch.ones(1000), lent=True)
    large = [Packet(body, CoreStream.MODEL, LAYOUT.fingerprint, 5, number) for number in range(10)]
    sent = pickle.dumps(large)
    assert len(sent) < 2 * 4000
    received = pickle.loads(sent)
    assert received == large
    assert all(packet.body is received[0].body for packet in received)


def test_a_packet_for_another_model_is_refused_within_a_process_too() -> None:
    with pytest.raises(PacketError) as caught:
        Packet.parse(SMALL, Layout.of(nn.Linear(3, 1)))
    assert caught.value.reason == "checksum"


def test_a_lent_vector_is_not_copied_and_one_that_is_not_is() -> None:
    vector = torch.tensor([1.0, -2.0, 3.5])
    lent, own = encode_dense(vector, lent=True), encode_dense(vector)
    assert bytes(lent.data) == own.data
    assert decode_dense(lent, 3, torch.float32).dense().data_ptr() == vector.data_ptr()
    vector[0] = 7
    assert decode_dense(own, 3, torch.float32).dense().tolist() == [1.0, -2.0, 3.5]
