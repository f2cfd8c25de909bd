"""Bits, gaps, entropy coding and selection: what goes in comes out, at the size that was promised."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from laconic.compression import QSGD, Sign, TopK, Uniform, decode_body
from laconic.compression import gap_coding as gaps
from laconic.compression.bit_packing import half_words_of, pack, packed_size, unpack
from laconic.compression.entropy import SymbolReader, SymbolRun, SymbolWriter, bit_weights
from laconic.compression.packet import HEADER_BYTES
from laconic.compression.selection import largest
from laconic.core.errors import PacketError
from tests.compression.test_compressors import draws, layout_of, normal

SHORT = settings(max_examples=80, deadline=None)


def position_bound(size: int, count: int) -> float:
    """log2 C(d, k), the fewest bits that can encode an arbitrary set of k positions."""
    return (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)


@SHORT
@given(st.integers(0, 31), st.integers(0, 100), st.integers(0, 2**32 - 1), st.data())
def test_packed_numbers_come_back_whole_or_in_part(width: int, count: int, seed: int, data: st.DataObject) -> None:
    numbers = draws(seed).integers(0, 2**width, count)
    packed = pack(numbers, width)
    assert len(packed) == packed_size(count, width)
    words = half_words_of(memoryview(packed))
    assert np.array_equal(unpack(words, width, 0, count), numbers)
    end = data.draw(st.integers(0, count))
    start = data.draw(st.integers(0, end))
    assert np.array_equal(unpack(words, width, start, end), numbers[start:end])


@SHORT
@given(
    st.integers(1, 3000), st.floats(0, 1), st.integers(0, 2**32 - 1), st.sampled_from(["ans", "rice"]), st.booleans()
)
def test_gaps_come_back(size: int, share: float, seed: int, coding: gaps.Coding, clustered: bool) -> None:
    generator = draws(seed)
    chances = np.repeat(generator.random(size // 100 + 1) ** 8, 100)[:size] if clustered else np.ones(size)
    positions = np.flatnonzero(generator.random(size) < share * chances)
    between = gaps.gaps_of(positions)
    widths, low, unary = gaps.split(between, size, coding)
    assert len(low) == gaps.low_size(widths, len(positions))
    assert len(unary) <= gaps.unary_limit(len(positions), size)
    back = gaps.join_split(widths, memoryview(low), unary, len(positions), size)
    assert np.array_equal(back, positions)
    classes, class_bits = gaps.classify(between)
    assert np.array_equal(gaps.join_classes(classes.astype(np.uint16), memoryview(class_bits), size), positions)


@pytest.mark.parametrize("width", [0, 5, 31])
@pytest.mark.parametrize(
    ("unary", "count"),
    [(b"", 1), (b"\x01", 2), (b"\x03", 1), (b"\x01" + 16 * b"\0" + b"\x80", 1), (bytes(20) + b"\x80", 1), (b"\xff", 7)],
)
def test_gaps_that_are_too_few_too_many_or_too_long_are_refused(unary: bytes, count: int, width: int) -> None:
    widths = np.full(1, width, dtype=np.uint8)
    low = memoryview(bytes(gaps.low_size(widths, count)))
    with pytest.raises(PacketError, match="positions"):
        gaps.join_split(widths, low, np.frombuffer(unary, dtype=np.uint8), count, 160)


@pytest.mark.parametrize(
    ("classes", "low", "size"), [([63], bytes(4), 99), ([10, 10], b"\0", 999), ([3], b"\0\0", 99), ([0, 0, 0], b"", 2)]
)
def test_classes_that_do_not_fit_are_refused(classes: list[int], low: bytes, size: int) -> None:
    with pytest.raises(PacketError, match="positions"):
        gaps.join_classes(np.array(classes, dtype=np.uint16), memoryview(low), size)


def test_kernels_work_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_place(*_: object) -> None:
        raise RuntimeError("cannot cache function")

    from laconic.compression import kernels

    monkeypatch.setattr("numba.core.dispatcher.FunctionCache", no_place)
    numbers = np.empty(2, dtype=np.uint32)
    kernels.kernel(kernels.unpack.py_func)(half_words_of(np.array([0x21], dtype=np.uint8)), 4, 0, numbers)
    assert numbers.tolist() == [1, 2]


def test_numba_is_loaded_only_when_something_is_coded() -> None:
    code = "import sys, laconic.cli.training; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_classes_have_no_holes() -> None:
    """Every gap has a class, and its bits within the class are as many as the class has."""
    between = np.append(np.arange(5000), [2**20, 2**31 - 1])
    classes, class_bits = gaps.classify(between)
    assert np.array_equal(np.unique(classes[:5000]), np.arange(classes[4999] + 1))
    back = gaps.join_classes(classes.astype(np.uint16), memoryview(class_bits), 2**40)
    assert np.array_equal(gaps.gaps_of(back), between)


@SHORT
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 500), st.booleans()), max_size=4), st.integers(0, 2**32 - 1)
)
def test_runs_of_symbols_come_back_in_order(shapes: list[tuple[int, int, bool]], seed: int) -> None:
    generator = draws(seed)
    writer = SymbolWriter()
    runs = [(generator.integers(0, size, count) ** 2 // max(1, size), size, flat) for size, count, flat in shapes]
    tables = [
        writer.put(SymbolRun.expecting(symbols, np.ones(size)) if flat else SymbolRun.smaller(symbols, np.ones(size)))
        for symbols, size, flat in runs
    ]
    reader = SymbolReader(memoryview(writer.finish()))
    for (symbols, size, _), table in zip(runs, tables, strict=True):
        weights = reader.own_weights(size) if table else np.ones(size)
        assert np.array_equal(reader.take(len(symbols), weights), symbols)
    reader.finish()


def test_words_that_are_not_used_up_are_refused() -> None:
    writer = SymbolWriter()
    writer.put(SymbolRun.expecting(np.arange(200), np.ones(200)))
    data = writer.finish()
    reader = SymbolReader(memoryview(data))
    reader.take(100, np.ones(200))
    with pytest.raises(PacketError, match="size"):
        reader.finish()
    with pytest.raises(PacketError, match="size"):
        SymbolReader(memoryview(data + b"\0"))


@SHORT
@given(arrays(np.float64, st.integers(1, 300), elements=st.floats(0, 1e6)), st.integers(0, 2**32 - 1))
def test_any_symbol_can_be_coded_whatever_its_weight(weights: np.ndarray, seed: int) -> None:
    weights[0] += 1e-3
    symbols = draws(seed).integers(0, len(weights), 50)
    writer = SymbolWriter()
    writer.put(SymbolRun.expecting(symbols, np.maximum(weights, 1e-300)))
    reader = SymbolReader(memoryview(writer.finish()))
    assert np.array_equal(reader.take(50, np.maximum(weights, 1e-300)), symbols)
    reader.finish()


def test_a_symbol_without_alternative_costs_nothing() -> None:
    writer = SymbolWriter()
    writer.put(SymbolRun.expecting(np.zeros(1000, dtype=np.int64), np.ones(1)))
    assert writer.finish() == b""


@pytest.mark.parametrize(("ones", "bits"), [(0, 0), (0, 8), (8, 8), (1, 10**6), (999_999, 10**6), (10**7, 10**7)])
def test_weights_of_bytes_are_never_zero(ones: int, bits: int) -> None:
    weights = bit_weights(ones, bits)
    assert len(weights) == 256 and np.isfinite(weights).all() and weights.sum() > 0


@SHORT
@given(
    st.integers(1, 400).flatmap(
        lambda size: arrays(np.float32, size, elements=st.sampled_from([-2, -1, 0, 0.5, 1, 2]))
    ),
    st.data(),
)
def test_selection_with_many_ties_is_that_of_a_stable_sort(values: np.ndarray, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    expected = np.sort(np.lexsort((np.arange(len(values)), -np.abs(values)))[:count])
    assert np.array_equal(largest(values, count), expected)


@pytest.mark.parametrize("kind", ["normal", "constant", "one block", "few values", "sorted", "mostly zero"])
@pytest.mark.parametrize("ratio", [1e-5, 0.01, 0.3])
def test_selection_of_large_vectors_however_the_sample_falls(kind: str, ratio: float) -> None:
    size, generator = 300_000, draws(3)
    values = {
        "normal": generator.standard_normal(size),
        "constant": np.full(size, -1.0),
        "one block": np.where(np.arange(size) // 7000 == 20, 5 + generator.random(size), generator.random(size) * 1e-3),
        "few values": generator.integers(-3, 4, size),
        "sorted": np.arange(size),
        "mostly zero": np.where(generator.random(size) < 1e-3, generator.standard_normal(size), 0),
    }[kind].astype(np.float32)
    count = max(1, int(ratio * size))
    expected = np.sort(np.lexsort((np.arange(size), -np.abs(values)))[:count])
    assert np.array_equal(largest(values, count), expected)


@pytest.mark.parametrize(("coding", "slack"), [("ans", 1.01), ("rice", 1.02)])
@pytest.mark.parametrize("ratio", [1 / 64, 0.01, 1 / 400, 0.1])
@pytest.mark.parametrize("size", [44_426, 1_200_000])
def test_positions_are_near_the_bound(size: int, ratio: float, coding: gaps.Coding, slack: float) -> None:
    layout = layout_of(size, dtype=torch.float32)
    compressor = TopK(ratio=ratio, coding=coding)
    body = compressor.encode(normal(layout), layout, draws())
    count = compressor.kept(layout.size)
    assert 8 * (len(body.data) - 4 * count) <= slack * position_bound(size, count) + 64


def test_clustered_positions_cost_less_than_random_ones() -> None:
    size = 200_000
    layout = layout_of(size, dtype=torch.float32)
    rows = torch.from_numpy(draws().random(size // 500) ** 10).repeat_interleave(500).float()
    for coding, share in (("ans", 0.7), ("rice", 1.01)):
        compressor = TopK(ratio=0.01, coding=coding)
        body = compressor.encode(normal(layout) * rows, layout, draws())
        count = compressor.kept(layout.size)
        assert 8 * (len(body.data) - 4 * count) <= share * position_bound(size, count)


@pytest.mark.parametrize("sizes", [(44_426,), (30_000, 14_000, 400, 26)])
def test_signs_cost_a_bit_and_a_scale(sizes: tuple[int, ...]) -> None:
    layout = layout_of(*sizes, dtype=torch.float32)
    body = Sign().encode(normal(layout), layout, draws(), "layer")
    assert HEADER_BYTES + len(body.data) <= layout.size / 8 + 4 * len(sizes) + 40


@pytest.mark.parametrize(
    "compressor", [QSGD(bits=2), QSGD(bits=4), QSGD(bits=8), QSGD(bits=8, norm="max"), Uniform(bits=4), Uniform()]
)
@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_levels_cost_their_entropy(compressor: QSGD | Uniform, granularity: str) -> None:
    layout = layout_of(40_000, 4_426, dtype=torch.float32)
    body = compressor.encode(normal(layout), layout, draws(), granularity)
    pieces = decode_body(body, layout).dense().split([40_000, 4_426] if granularity == "layer" else [44_426])
    # Within a group equal levels are equal values, and the k-th smallest value of a grid is the k-th level.
    levels = [np.rint((piece.numpy() - piece.min().item()) / step(piece)).astype(int) for piece in pieces]
    if isinstance(compressor, QSGD):
        levels = [np.rint(piece.numpy() / step(piece)).astype(int) for piece in pieces]
    _, counts = np.unique(np.concatenate(levels), return_counts=True)
    entropy = float(-(counts * np.log2(counts / counts.sum())).sum())
    assert HEADER_BYTES + len(body.data) <= 1.02 * entropy / 8 + 64 + 4 * len(pieces)


def step(values: torch.Tensor) -> float:
    found = np.unique(values.numpy().astype(np.float64))
    return float(np.diff(found)[np.diff(found) > 1e-7 * np.abs(found).max()].min())


def test_many_small_layers_cost_no_header_each() -> None:
    layout = layout_of(*([50] * 400), dtype=torch.float32)
    body = TopK(ratio=0.02).encode(normal(layout), layout, draws(), "layer")
    assert len(body.data) <= 400 * 4 + 1.01 * position_bound(20_000, 400) / 8 + 8


def test_the_bound_is_the_number_of_subsets() -> None:
    assert math.isclose(position_bound(40, 7), math.log2(math.comb(40, 7)))
