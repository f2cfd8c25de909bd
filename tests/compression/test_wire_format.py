"""Packets are read by a decoder that was written from docs/reference/wire-format.md alone (page_decoder.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.compression import COMPRESSORS, encode
from tests.compression.page_decoder import TABLE_ZERO, Reader, decode_plain, decode_vector

PAGE = Path(__file__).parents[2] / "docs/reference/wire-format.md"
SPELLINGS = [
    *("dense", "cast:float16", "cast:bfloat16", "sign", "qsgd:1", "qsgd:4", "qsgd:12", "qsgd:16,norm=max", "uniform:8"),
    *("uniform:1", "uniform:12", "uniform:8,rounding=authors", "top_k:1/64", "top_k:0.1", "top_k:0.3", "top_k:1"),
    *("top_k:1/64,coding=rice", "top_k:0.1,coding=rice", "heavy_sign:0.05", "heavy_sign:0.3", "random_k:1/64"),
    *("random_k:0.4", "random_k:0.8", "top_k:0.05+qsgd:4", "random_k:0.1+sign", "top_k:0.2+uniform:12"),
    *("top_k:0.02+cast:float16", "stochastic:1/80", "stochastic:0.5", "dead_zone:1/64", "dead_zone:0.5"),
    *("eden", "eden:scale=nearest", "eden:1/4", "eden:0.7,scale=nearest", "natural", "top_k:0.1+natural"),
]


def vectors(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    for size in (1, 7, 700, 5000):
        plain = np.random.default_rng(size).standard_normal(size)
        yield torch.from_numpy(plain).to(dtype)
        # Large entries in clusters of unlike density: positions are then coded by classes, or by several widths.
        density = np.repeat(np.random.default_rng(1).random(size // 150 + 1) ** 12, 150)[:size]
        yield torch.from_numpy(plain * density).to(dtype)
    yield torch.zeros(300, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("granularity", ["model", "chunk:100"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_decoder_of_the_page_reads_every_packet(spelling: str, granularity: str, dtype: torch.dtype) -> None:
    for vector in vectors(dtype):
        packet = encode(vector, f"{spelling}@{granularity}", seed=3)
        expected = torch.tensor(decode_plain(packet, vector.numel()), dtype=dtype)
        assert torch.equal(laconic_decode(packet, vector.numel()), expected)


def laconic_decode(packet: bytes, size: int) -> torch.Tensor:
    from laconic.compression import decode

    return decode(packet, size)


def test_every_form_and_kind_of_positions_was_read() -> None:
    codecs, forms = set(), set()
    for spelling in SPELLINGS:
        for vector in vectors(torch.float32):
            packet = encode(vector, spelling, seed=3)
            codec, reader = packet[1], Reader(packet[15:])
            codecs.add(codec)
            if codec & 48 == 16 and 8 * reader.number() <= vector.numel():
                forms.add((codec & 128, reader.number() % 4))
    assert {codec & 15 for codec in codecs} == {1, 3, 4, 5, 6, 7, 10, 11}
    assert {codec & 48 for codec in codecs} == {0, 16, 32}
    assert forms == {(0, 0), (0, 3), (128, 0), (128, 2)}, "and the fifth is in the test below"
    assert {spelling.partition(":")[0] for spelling in SPELLINGS} >= COMPRESSORS.keys() - {"chain"}


def test_high_parts_with_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes nearly always take fewer bytes, so they are switched off here."""
    monkeypatch.setattr("laconic.compression.positions._WORTHWHILE", 0.0)
    vector = torch.zeros(4000)
    vector[::16] = 1.0
    packet = encode(vector, "top_k:1/16")
    reader = Reader(packet[15:])
    assert reader.number() == 250 and reader.number() % 4 == 1
    assert torch.equal(vector, torch.tensor(decode_plain(packet, 4000)))


def test_layers_are_groups_of_their_own() -> None:
    from laconic.compression import GroupedCompressor, decode_body
    from tests.compression.test_compressors import draws, layout_of, normal

    layers = (300, 7, 0, 1, 64)
    layout = layout_of(*layers, dtype=torch.float32)
    for spelling in SPELLINGS:
        body = GroupedCompressor.parse(f"{spelling}@layer").encode(normal(layout), layout, draws())
        found = decode_vector(body.codec, bytes(body.data), layers, "f")
        assert torch.equal(decode_body(body, layout).dense(), torch.tensor(found)), spelling


def test_the_examples_of_the_page_are_what_is_sent() -> None:
    page = PAGE.read_text()
    vector = [((37 * index) % 64 - 31) / 16 for index in range(16)]
    examples = re.findall(r"^\| `([^`]+)` \| `([0-9a-f ]+)` \|$", page, re.MULTILINE)
    assert len(examples) >= 8
    for spelling, dump in examples:
        packet = bytes.fromhex(dump)
        assert packet == encode(torch.tensor(vector), spelling), spelling
        assert torch.equal(laconic_decode(packet, 16), torch.tensor(decode_plain(packet, 16)))


def test_the_constant_of_the_page_is_the_sum() -> None:
    assert repr(TABLE_ZERO) in PAGE.read_text()
