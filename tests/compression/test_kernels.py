"""Compiled loops against plain NumPy that says the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laconic.compression import GroupedCompressor, decode_body, is_zero, kernels
from laconic.compression import gap_coding as gaps
from laconic.compression.compressors.budgeted import _total
from laconic.compression.compressors.quantized import euclidean, round_magnitudes, round_to_kept
from laconic.compression.entropy import BLOCK, SymbolReader, SymbolRun, SymbolWriter, count_symbols
from laconic.compression.packet import Body
from laconic.compression.payload import DensePayload, SparsePayload, sum_norm
from laconic.compression.selection import largest, peak
from laconic.core.layout import Layout, Slot

SIZES = (1, 63, 64, 1000, BLOCK, BLOCK + 77, 3 * BLOCK - 1)


def heavy(size: int, dtype: type = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) ** 3).astype(dtype)


def layout_of(*sizes: int, dtype: torch.dtype = torch.float32) -> Layout:
    slots = [Slot(str(index), (size,), sum(sizes[:index])) for index, size in enumerate(sizes)]
    return Layout(tuple(slots), (), dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stochastic_levels(size: int, dtype: type) -> None:
    x, step, highest = heavy(size, dtype), 0.7, 5
    draws = np.concatenate([np.zeros(0, dtype), *(np.random.default_rng(1).random(size, dtype) for _ in range(1))])
    expected = np.copysign(np.minimum(np.floor(np.abs(x) / dtype(step) + draws), highest), x).astype(np.int16)
    levels = np.zeros(size, dtype=np.int16)
    round_magnitudes(x, step, highest, np.random.default_rng(1), levels)
    assert np.array_equal(levels, expected)
    positions, kept = round_to_kept(x, step, highest, np.random.default_rng(1), expected=3)
    assert np.array_equal(positions, np.flatnonzero(expected)) and np.array_equal(kept, expected[positions])


def test_a_step_of_zero_draws_as_many_numbers_as_any_other() -> None:
    generators = [np.random.default_rng(0) for _ in range(2)]
    for generator, step in zip(generators, (0.0, 1.0), strict=True):
        round_to_kept(heavy(1000), step, 3, generator, expected=9)
    assert generators[0].random() == generators[1].random()


@pytest.mark.parametrize("shares", [[1, 2**24 - 1], [1, 1, 2**24 - 2], [2**23, 2**23], [3, 5, 7, 2**24 - 15], [2**24]])
@pytest.mark.parametrize("start", [0, 1, 2**32 - 1, 2**40 - 1, 2**63 + 12345, 2**64 - 1])
def test_symbols_are_pushed_as_with_divisions_of_unbounded_integers(shares: list[int], start: int) -> None:
    edges = np.array([0, *np.cumsum(shares)], dtype=np.uint64)
    symbols = np.random.default_rng(len(shares)).integers(0, len(shares), 500).astype(np.uint16)
    expected, state = [], start
    for symbol in symbols[::-1]:
        share = shares[symbol]
        if state >> 40 >= share:
            expected.append(state % 2**32)
            state >>= 32
        state = (state // share << 24) + int(edges[symbol]) + state % share
    words = np.zeros(500, dtype=np.uint32)
    inverses = np.uint64(2**64 - 1) // np.diff(edges)
    found, at = kernels.encode_symbols(symbols, edges, inverses, np.uint64(start), words, 0)
    assert int(found) == state and words[:at].tolist() == expected


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_have_the_bits_of_one_sum_over_the_vector(size: int, dtype: type) -> None:
    x = heavy(size, dtype)
    highest = peak(x)
    assert highest == float(np.abs(x).max())
    assert _total(x, highest) == float((np.abs(x) / highest).sum(dtype=np.float64))
    blocks = [x[start : start + BLOCK].astype(np.float64) for start in range(0, size, BLOCK)]
    assert euclidean(x) == np.sqrt(sum(float(np.square(block).sum()) for block in blocks))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.001, 1 / 16, 0.5, 1.0])
def test_the_largest_entries(size: int, share: float) -> None:
    x = np.round(heavy(size), 1)  # with ties
    count = max(1, int(share * size))
    expected = np.sort(np.argsort(-np.abs(x), kind="stable")[:count])
    assert np.array_equal(largest(x, count), expected)


@pytest.mark.parametrize("coding", ["ans", "rice"])
@pytest.mark.parametrize("count", [1, 127, 128, 5000])
def test_gaps(coding: gaps.Coding, count: int) -> None:
    size = 40 * count + 1
    generator = np.random.default_rng(count)
    positions = np.sort(generator.choice(size, count, replace=False))
    between = gaps.gaps_of(positions)
    assert np.array_equal(between, np.diff(positions, prepend=-1) - 1)
    widths, low, unary = gaps.split(between, size, coding)
    shifts = np.repeat(widths, gaps.RUN)[:count].astype(np.int64)
    text = "".join("0" * int(gap >> width) + "1" for gap, width in zip(between, shifts, strict=True))
    assert np.array_equal(np.unpackbits(unary, bitorder="little")[: len(text)], [int(bit) for bit in text])
    assert len(unary) == -(-len(text) // 8) and len(low) == gaps.low_size(widths, count)
    starts = ((2 + np.arange(gaps.CLASSES) % 2) << (np.arange(gaps.CLASSES) // 2)) - 2
    classes, _ = gaps.classify(between)
    assert np.array_equal(classes, np.searchsorted(starts, between, side="right") - 1)


@pytest.mark.parametrize("frequent", [0.3, 0.99])
def test_symbols_become_values(frequent: float) -> None:
    generator = np.random.default_rng(0)
    symbols = np.where(generator.random(5000) < frequent, 3, generator.integers(0, 9, 5000)).astype(np.uint16)
    assert np.array_equal(count_symbols(symbols, 11), np.bincount(symbols, minlength=11))
    writer = SymbolWriter()
    assert writer.put(SymbolRun.with_table(symbols, 9))
    reader = SymbolReader(memoryview(writer.finish()))
    read, out = reader.start(reader.own_weights(9)), np.empty(5000, dtype=np.float32)
    table = np.arange(9, dtype=np.float32) / 3
    for start, end in ((0, 1), (1, 3000), (3000, 5000)):
        read(table, out[start:end])
    reader.finish()
    assert np.array_equal(out, table[symbols])
    with pytest.raises(ValueError, match="above 7"):
        count_symbols(np.array([8], dtype=np.uint16), 8)


def test_signs() -> None:
    negative = heavy(1001) < 0
    bits, out = np.packbits(negative), np.empty(700, dtype=np.float32)
    table = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1), -0.25, 0.25).astype(np.float32)
    kernels.unpack_signs(bits, 13, table, out)
    assert np.array_equal(out, np.where(negative[13:713], -0.25, 0.25).astype(np.float32))


def test_the_distance_of_sparse_vectors() -> None:
    generator = np.random.default_rng(0)
    payloads = []
    for count in (0, 1, 40, 70):
        positions = np.sort(generator.choice(100, count, replace=False))
        values = generator.standard_normal(count).astype(np.float32)
        payloads.append(SparsePayload(torch.from_numpy(positions), torch.from_numpy(values), 100))
    for first in payloads:
        for second in payloads:
            whole = DensePayload(first.dense()), DensePayload(second.dense())
            expected = float(torch.linalg.vector_norm(first.dense().double() - 0.5 * second.dense().double()))
            assert sum_norm(first, second, -0.5) == pytest.approx(expected, rel=1e-12)
            assert sum_norm(*whole, -0.5) == pytest.approx(expected, rel=1e-12)
            doubles = [DensePayload(each.dense().double()) for each in (first, second)]
            assert sum_norm(*doubles, -0.5) == pytest.approx(expected, rel=1e-12)
            assert torch.equal(doubles[0].dense(), first.dense().double()), "the payload has not changed"


@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_signs_are_added_block_by_block(granularity: str) -> None:
    layout = layout_of(40_000, 30_001)
    x = torch.from_numpy(heavy(layout.size))
    body = GroupedCompressor.parse(f"sign@{granularity}").encode(x, layout, np.random.default_rng(0))
    payload = decode_body(body, layout)
    dense = payload.dense()
    assert torch.equal(dense.sign(), torch.where(x < 0, -1.0, 1.0)) and len(dense.unique()) <= 4
    for weight in (1.0, -1.0, 1 / 3):
        one, other = x.clone(), x.clone()
        payload.add_to(one, weight)
        DensePayload(dense).add_to(other, weight)
        assert torch.equal(one, other)


def test_a_kept_payload_is_returned_once() -> None:
    layout = layout_of(1000)
    body = GroupedCompressor.parse("qsgd:4").encode(torch.ones(1000), layout, np.random.default_rng(0))
    first = decode_body(body, layout, keep=True)
    assert decode_body(body, layout) is first
    second = decode_body(body, layout)
    assert second is not first and torch.equal(first.dense(), second.dense())
    assert body.kept is None


@pytest.mark.parametrize(
    "spelled", ["sign", "heavy_sign:0.1@layer", "top_k:0.1", "qsgd:4", "dead_zone:0.1", "cast:float16"]
)
def test_whether_a_body_is_zero(spelled: str) -> None:
    layout, compressor = layout_of(300, 200), GroupedCompressor.parse(spelled)
    vectors = {False: torch.from_numpy(heavy(500)), True: torch.zeros(500)}
    for zero, vector in vectors.items():
        body = compressor.encode(vector, layout, np.random.default_rng(0))
        assert is_zero(Body(body.codec, body.data), layout) == zero == (not decode_body(body, layout).dense().any())
