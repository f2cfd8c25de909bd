"""Bytes from outside: mutated, truncated, spliced and random bodies are refused, or decode to something harmless."""

from __future__ import annotations

import contextlib
import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compression import GroupedCompressor, body_norm, decode_body
from laconic.compression.packet import Body, CoreStream, Packet
from laconic.core.errors import PacketError
from tests.compression.test_compressors import ALL, draws, layout_of, normal

LAYOUT = layout_of(150, 0, 33, 1, 216, dtype=torch.float32)
LARGE = layout_of(300_000, 7, 100_000, dtype=torch.float32)
BODIES = [
    GroupedCompressor.parse(spelling + by).encode(normal(LAYOUT, seed), LAYOUT, draws(seed))
    for spelling in ALL
    for by in ("@model", "@layer", "@chunk:64")
    for seed in range(2)
]
CLUSTERED = normal(LAYOUT) * (torch.arange(LAYOUT.size) % 300 < 20)
"""Its positions are coded by classes."""
BODIES.append(GroupedCompressor.parse("top_k:0.1").encode(CLUSTERED, LAYOUT, draws()))


def check(body: Body) -> bool:
    """Refused with PacketError, or a finite vector of the right length, with the norm of its body, that can be added."""
    try:
        norm = body_norm(body, LAYOUT)
    except PacketError:
        norm = None
    try:
        payload = decode_body(body, LAYOUT)
    except PacketError as error:
        assert error.reason and "\n" not in str(error)
        assert norm is None
        return False
    assert norm == pytest.approx(payload.norm(), rel=1e-9)
    found = payload.dense()
    assert found.shape == (LAYOUT.size,) and found.dtype == LAYOUT.dtype
    assert bool(torch.isfinite(found).all())
    payload.add_to(torch.zeros(LAYOUT.size), 0.5)
    return True


def hostile(generator: np.random.Generator) -> Body:
    """One body made from honest ones."""
    honest = BODIES[generator.integers(len(BODIES))]
    data = bytearray(honest.data)
    kind = generator.integers(6)
    if kind == 0:  # some bytes changed
        for _ in range(int(generator.integers(1, 5))):
            data[generator.integers(len(data))] = int(generator.integers(256))
    elif kind == 1:  # truncated, or longer
        cut = int(generator.integers(len(data) + 1))
        data = data[:cut] if generator.random() < 0.7 else data + generator.bytes(cut)
    elif kind == 2:  # the beginning of one, the end of another
        other = BODIES[generator.integers(len(BODIES))].data
        data = data[: generator.integers(len(data) + 1)] + bytes(other[generator.integers(len(other) + 1) :])
    elif kind == 3:  # under another codec
        return Body(int(generator.integers(256)), bytes(data))
    elif kind == 4:  # noise
        data = bytearray(generator.bytes(int(generator.integers(200))))
        return Body(int(generator.integers(256)), bytes(data))
    else:  # the first fields changed, where counts stand
        data[: generator.integers(1, 8)] = generator.choice([0, 1, 127, 128, 255], 4).astype(np.uint8).tobytes()
    return Body(honest.codec, bytes(data))


BATCH = 1000
"""Bodies between two looks at the memory."""
TRACED = 5
"""The memory of one in this many batches is traced, which makes decoding several times slower."""
CONSTANT = 64 * 1024
"""Bytes that do not depend on the layout: tables of symbols, the vector that a payload is added to, small objects."""
LONGEST = 1.0
"""Seconds of this process for one body; honest ones take far below a millisecond, but the machine may be busy."""


def attack(number: int, seed: int) -> None:
    """Whatever the bodies say, decoding takes no more memory than twice the dense vector and a constant, and no time."""
    generator = draws(seed)
    accepted = 0
    warm = draws(0)
    for body in [*BODIES, *(hostile(warm) for _ in range(BATCH))]:
        check(body)  # what is loaded or compiled only once is none of the attacker's doing
    try:
        for batch in range(number // BATCH):
            bodies = [hostile(generator) for _ in range(BATCH)]
            if batch % TRACED == 0:
                tracemalloc.start()
            for body in bodies:
                started = time.process_time()
                accepted += check(body)
                assert time.process_time() - started < LONGEST
            if tracemalloc.is_tracing():
                longest = max(len(body.data) for body in bodies)
                assert tracemalloc.get_traced_memory()[1] < 2 * 4 * LAYOUT.size + 2 * longest + CONSTANT
                tracemalloc.stop()
    finally:
        tracemalloc.stop()
    assert 0 < accepted < number  # some changes only change values


def test_honest_bodies_are_accepted() -> None:
    assert all(check(body) for body in BODIES)


def test_a_few_thousand_hostile_bodies() -> None:
    attack(6000, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_million_hostile_bodies(seed: int) -> None:
    attack(100_000, seed)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 255), st.binary(max_size=120))
def test_random_bytes(codec: int, data: bytes) -> None:
    check(Body(codec, data))


def test_hostile_packets_with_a_right_checksum() -> None:
    generator = draws(4)
    for _ in range(300):
        raw = Packet(hostile(generator), CoreStream.MODEL, LAYOUT.fingerprint, 1, 1).to_bytes()
        check(Packet.parse(raw, LAYOUT).body)


@pytest.mark.parametrize(
    "spelling",
    [
        "top_k:1/64",
        "top_k:0.1,coding=rice",
        "top_k:0.5",
        "random_k:1",
        "sign",
        "qsgd:4",
        "uniform:12",
        "top_k:0.5+qsgd:4",
        "cast:bfloat16",
        "dense",
        "qsgd:4@chunk:64",
        "random_k:1@chunk:64",
        "heavy_sign:0.3@chunk:64",
        "eden",
        "eden@chunk:64",
        "eden:1/4",
        "natural",
    ],
)
def test_memory_stays_below_twice_the_dense_vector(spelling: str) -> None:
    """NumPy's memory, which is nearly all; honest bodies and mutations of their first bytes."""
    body = GroupedCompressor.parse(spelling).encode(normal(LARGE), LARGE, draws())
    generator = draws(5)
    bodies = [body]
    for _ in range(12):
        data = bytearray(body.data)
        data[: generator.integers(1, 12)] = generator.bytes(int(generator.integers(1, 12)))
        bodies.append(Body(body.codec, bytes(data)))
    for each in bodies:
        tracemalloc.start()
        started = time.process_time()
        with contextlib.suppress(PacketError):
            decode_body(each, LARGE)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * 4 * LARGE.size
        assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (b"", "truncated"),
        (b"\x40", "truncated"),
        (b"\x3f\x05", "chunk"),
        (b"\x00\x05", "chunk"),
        (b"\xff\xff\xff\xff\x7f\x05", "number"),
        (b"\x40\x45", "codec"),
        (b"\x40\x09\x40\x05", "codec"),
        (b"\x40\x08", "codec"),
        (b"\x40\x00", "codec"),
    ],
)
def test_chunks_that_cannot_be_are_refused(prefix: bytes, reason: str) -> None:
    with pytest.raises(PacketError) as caught:
        decode_body(Body(9, prefix), LAYOUT)
    assert caught.value.reason == reason


def test_a_tiny_body_cannot_ask_for_much() -> None:
    """Bodies of a few bytes that claim everything: every codec, the largest counts."""
    for codec in range(256):
        for data in (b"", b"\xff" * 4 + b"\x0f", b"\xff\xff\xff\x7f" * 3, b"\x01" * 24, b"\x7f" * 40):
            tracemalloc.start()
            with contextlib.suppress(PacketError):
                decode_body(Body(codec, data), LARGE)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 2 * 4 * LARGE.size


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "spelling", ["dense", "cast:float16", "cast:bfloat16", "top_k:0.1", "random_k:0.1", "sign", "qsgd:4", "uniform:8"]
)
def test_numbers_that_are_not_finite_are_refused(spelling: str, bad: float) -> None:
    honest = GroupedCompressor.parse(spelling + "@model").encode(normal(LAYOUT), LAYOUT, draws())
    kinds = {"cast:float16": "<f2", "cast:bfloat16": None}
    kind = kinds.get(spelling, "<f4")
    if kind is None:
        sent = torch.tensor([bad]).to(torch.bfloat16).view(torch.int16).numpy().tobytes()
    else:
        sent = np.array([bad], dtype=kind).tobytes()
    data = bytearray(honest.data)
    at = 0
    if spelling == "top_k:0.1":
        at = bytes(data).index(
            normal(LAYOUT).numpy()[np.sort(np.argsort(-np.abs(normal(LAYOUT).numpy()))[:40])].tobytes()
        )
    elif spelling == "random_k:0.1":
        at = 16
    data[at : at + len(sent)] = sent
    with pytest.raises(PacketError) as caught:
        decode_body(Body(honest.codec, bytes(data)), LAYOUT)
    assert caught.value.reason == "not finite"
