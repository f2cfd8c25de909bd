"""decode_body(encode(x)) is C(x) of the oracles: every compressor, by model and by layer, in both types, beyond one block.

What is copied or rounded to half precision is equal bit for bit. Where there is a scale, places, signs and levels are equal
exactly, and values but for the rounding of one product and of the scale itself: it is a sum, and the oracle adds one number
after the other, NumPy in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from laconic.compression import GroupedCompressor, decode_body
from laconic.compression.payload import SentPayload
from tests.compression.test_compressors import draws, layout_of, normal
from tests.oracles import compressors as oracle

SIZES = (70_001, 0, 1, 900)
"""More than one block of 65,536, an odd number, an empty layer and one of a single entry."""
BLOCK = 65_536
DTYPES = [torch.float32, torch.float64]
GROUPS = {"model": (sum(SIZES),), "layer": tuple(size for size in SIZES if size)}
Function = Callable[[np.ndarray], np.ndarray]


def sent(spelling: str, dtype: torch.dtype) -> tuple[np.ndarray, SentPayload, np.ndarray]:
    """x, what arrives, and x's decoded form; the last two in float64, which holds either type exactly."""
    layout = layout_of(*SIZES, dtype=dtype)
    vector = normal(layout)
    payload = decode_body(GroupedCompressor.parse(spelling).encode(vector, layout, draws()), layout)
    return vector.double().numpy(), payload, payload.dense().double().numpy()


def parts(by: str) -> Iterator[slice]:
    start = 0
    for size in GROUPS[by]:
        yield slice(start, start + size)
        start += size


def positions_in(payload: SentPayload, part: slice) -> np.ndarray:
    """Where entries of one group were sent, counted from the group's first."""
    assert payload.positions is not None
    positions = payload.positions.numpy()
    return positions[(positions >= part.start) & (positions < part.stop)] - part.start


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("spelling", ["dense", "top_k:0.01", "top_k:0.01,coding=rice", "top_k:0.2", "top_k:1"])
def test_what_is_copied_is_equal_bit_for_bit(spelling: str, by: str, dtype: torch.dtype) -> None:
    x, _, found = sent(f"{spelling}@{by}", dtype)
    ratio = 1.0 if spelling == "dense" else float(spelling.removeprefix("top_k:").split(",")[0])
    for part in parts(by):
        assert np.array_equal(found[part], oracle.top_k(x[part], ratio))


HALVES = {"float16": (11, -24, 65504.0), "bfloat16": (8, -133, (2 - 2**-7) * 2.0**127)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("kind", HALVES)
def test_half_precision_is_equal_bit_for_bit(kind: str, by: str, dtype: torch.dtype) -> None:
    """Magnitudes from 1e-45 to 1e38: denormal, usual and too large ones of both halves."""
    layout = layout_of(*SIZES, dtype=dtype)
    exponents = torch.from_numpy(draws(1).uniform(-45, 38, layout.size))
    vector = (normal(layout).sign().double() * 10**exponents).to(dtype)
    vector[:4] = torch.tensor([0.0, -0.0, 65519.0, -65520.0])
    found = (
        decode_body(GroupedCompressor.parse(f"cast:{kind}@{by}").encode(vector, layout, draws()), layout)
        .dense()
        .numpy()
    )
    # A float64 goes by way of float32, so it may be rounded twice.
    expected = oracle.cast(vector.float().double().numpy(), *HALVES[kind])
    assert np.array_equal(found, expected)
    assert np.array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("unbiased", [True, False])
def test_random_k_is_equal_at_the_positions_of_its_seed(
    unbiased: bool, ratio: float, by: str, dtype: torch.dtype
) -> None:
    """Bit for bit without the factor d/k; with it, but for the rounding of factor and product in float32."""
    x, payload, found = sent(f"random_k:{ratio},unbiased={unbiased}@{by}", dtype)
    for part in parts(by):
        positions = positions_in(payload, part)
        assert len(positions) == max(1, int(ratio * (part.stop - part.start)))
        expected = oracle.random_k(x[part], positions, unbiased)
        allowed = torch.finfo(dtype).eps if unbiased and dtype == torch.float32 else 0.0
        assert (np.abs(found[part] - expected) <= allowed * np.abs(expected)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize(
    ("spelling", "function"),
    [
        ("sign", oracle.sign),
        ("heavy_sign:0.05", lambda x: oracle.heavy_sign(x, 0.05)),
        ("heavy_sign:0.3", lambda x: oracle.heavy_sign(x, 0.3)),
        ("heavy_sign:0.05,scale=printed", lambda x: oracle.heavy_sign(x, 0.05, printed_scale=True)),
        ("top_k:0.05+sign", lambda x: oracle.heavy_sign(x, 0.05)),
    ],
)
def test_signs_are_equal_and_scales_but_for_their_sum(
    spelling: str, function: Function, by: str, dtype: torch.dtype
) -> None:
    x, _, found = sent(f"{spelling}@{by}", dtype)
    for part in parts(by):
        expected = function(x[part])
        assert np.array_equal(np.sign(found[part]), np.sign(expected))
        scales = np.unique(np.abs(found[part][expected != 0]))
        assert len(scales) == 1, "one scale for a group, to the bit"
        scale = np.abs(expected).max()
        # NumPy's sum of a block rounds at most 28 times on any path, by half an eps each; the oracle's once per number.
        allowed = 16 * torch.finfo(dtype).eps + np.count_nonzero(expected) * 2.0**-53
        assert abs(scales[0] - scale) <= allowed * scale


def rounded(values: np.ndarray, name: str, bits: int, given: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, float]:
    """A group's values by the oracle, their places on its grid before rounding, and the grid's step."""
    if name == "uniform":
        step = (values.max() - values.min()) / (2**bits - 1)
        result = oracle.uniform(values, bits, given)
        return result, (values - values.min()) / step if step else np.zeros_like(values), step
    length = np.linalg.norm(values) if name == "l2" else np.abs(values).max()
    step = length / oracle.qsgd_levels(bits, name)
    assert given is not None
    return oracle.qsgd(values, bits, name, given), np.abs(values) / step, step


def check_levels(found: np.ndarray, values: np.ndarray, quantizer: tuple[str, int], given: np.ndarray | None) -> int:
    """Equal levels; returns how many a rounding in float32 has moved, which it may only next to where levels change."""
    eps = np.finfo(np.float64 if given is None else given.dtype).eps
    expected, place, step = rounded(values, *quantizer, given)
    # The oracle's l2 norm is a sum of one number after the other.
    share = 4 * eps + (len(values) * 2.0**-53 if quantizer[0] == "l2" else 0.0)
    rounding = share * max(np.abs(values).max(), values.max() - values.min(), step)
    moved = np.abs(found - expected) > rounding
    edge = place + (0.5 if given is None else given)
    assert (np.abs(edge - np.rint(edge)) <= share * (edge + 1))[moved].all()
    assert (np.abs(found - expected)[moved] <= step + rounding).all()
    return int(moved.sum())


QUANTIZERS = {
    "qsgd:1": ("l2", 1),
    "qsgd:4": ("l2", 4),
    "qsgd:12": ("l2", 12),
    "qsgd:4,norm=max": ("max", 4),
    "qsgd:9,norm=max": ("max", 9),
    "qsgd:16,norm=max": ("max", 16),
    "uniform:4": ("uniform", 4),
    "uniform:9": ("uniform", 9),
    "uniform:16": ("uniform", 16),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("spelling", QUANTIZERS)
def test_levels_are_equal_with_the_same_draws(spelling: str, by: str, dtype: torch.dtype) -> None:
    x, _, found = sent(f"{spelling}@{by}", dtype)
    given = draws().random(len(x), np.float32 if dtype == torch.float32 else np.float64)
    moved = sum(check_levels(found[part], x[part], QUANTIZERS[spelling], given[part]) for part in parts(by))
    assert moved == 0 if dtype == torch.float64 else moved <= 0.01 * len(x)


@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("bits", [3, 8, 12])
def test_nearest_levels_are_equal(bits: int, by: str) -> None:
    x, _, found = sent(f"uniform:{bits},rounding=nearest@{by}", torch.float64)
    assert sum(check_levels(found[part], x[part], ("uniform", bits), None) for part in parts(by)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("top_k:0.05", "qsgd:4,norm=max"),
        ("top_k:0.05", "qsgd:4,norm=l2"),
        ("top_k:0.3", "uniform:12"),
        ("random_k:0.1", "uniform:4"),
        ("random_k:0.7,unbiased=false", "qsgd:9,norm=max"),
        ("random_k:0.7,unbiased=false", "cast:float16"),
        ("top_k:0.01", "cast:bfloat16"),
    ],
)
def test_chains_quantize_the_kept_values_in_order(first: str, second: str, by: str, dtype: torch.dtype) -> None:
    """The second acts on each group's kept values, in order of position, with the draws that follow the first's."""
    x, payload, found = sent(f"{first}+{second}@{by}", dtype)
    generator, moved = draws(), 0
    if first.startswith("random_k"):
        generator.integers(2**64, dtype=np.uint64)  # the seed of the positions
    for part in parts(by):
        positions = positions_in(payload, part)
        if first.startswith("top_k"):
            assert positions.tolist() == oracle.kept_positions(x[part], float(first.removeprefix("top_k:")))
        elsewhere = np.ones(part.stop - part.start, dtype=bool)
        elsewhere[positions] = False
        assert not found[part][elsewhere].any()
        unbiased = first.startswith("random_k") and "false" not in first
        values = oracle.random_k(x[part], positions, unbiased)[positions]
        if second.startswith("cast"):
            expected = oracle.cast(values.astype(np.float32).astype(np.float64), *HALVES[second.removeprefix("cast:")])
            assert np.array_equal(found[part], oracle.at_positions(x[part], positions, expected))
            continue
        name, bits = second.split(",")[0].split(":")
        given = generator.random(len(values), np.float32 if dtype == torch.float32 else np.float64)
        quantizer = (name if name == "uniform" else second.partition("norm=")[2], int(bits))
        moved += check_levels(found[part][positions], values, quantizer, given)
    assert moved == 0 if dtype == torch.float64 else moved <= 0.01 * len(x)


def test_the_vectors_are_longer_than_a_block() -> None:
    from laconic.compression import entropy

    assert entropy.BLOCK == BLOCK < SIZES[0]
