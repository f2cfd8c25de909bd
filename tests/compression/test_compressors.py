"""Each compressor: its definition by the oracles, its spelling, its groups, its edges, what the papers count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.compression import (
    QSGD,
    Chain,
    Codec,
    Compressor,
    DensePayload,
    GroupedCompressor,
    SparsePayload,
    TopK,
    Uniform,
    decode_body,
    parse_compressor,
)
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout, Slot
from tests.oracles import compressors as oracle

ALL = [
    "dense",
    "cast:float16",
    "cast:bfloat16",
    "top_k:1/64",
    "top_k:0.3",
    "top_k:0.05,coding=rice",
    "random_k:0.1",
    "random_k:0.7,unbiased=false",
    "sign",
    "heavy_sign:0.05",
    "heavy_sign:0.3,scale=printed",
    "qsgd:4",
    "qsgd:1",
    "qsgd:4,norm=max",
    "qsgd:2,norm=max",
    "qsgd:12",
    "qsgd:16",
    "uniform:8",
    "uniform:1",
    "uniform:12",
    "uniform:8,rounding=nearest",
    "uniform:8,rounding=authors",
    "uniform:8,zero_point_noise=3",
    "top_k:0.01+qsgd:4",
    "top_k:0.3+uniform:12",
    "random_k:0.1+uniform:4",
    "top_k:0.1+sign",
    "random_k:0.7+cast:float16",
    "stochastic:1/20",
    "stochastic:0.5",
    "dead_zone:1/20",
    "dead_zone:3",
    "eden",
    "eden:scale=nearest",
    "eden:1/4",
    "eden:0.7,scale=nearest",
    "natural",
    "top_k:0.1+natural",
]
SIZES = (300, 7, 0, 1, 64, 1000)


def layout_of(*sizes: int, dtype: torch.dtype = torch.float64) -> Layout:
    offsets = np.cumsum([0, *sizes]).tolist()
    slots = (
        Slot(f"layer{index}", (size,), offset) for index, (size, offset) in enumerate(zip(sizes, offsets, strict=False))
    )
    return Layout(tuple(slots), (), dtype)


def draws(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(layout: Layout, seed: int = 0) -> Tensor:
    return torch.from_numpy(draws(seed).standard_normal(layout.size)).to(layout.dtype)


def compressed(spelling: str | Compressor, vector: Tensor, layout: Layout, seed: int = 7) -> Tensor:
    compressor = GroupedCompressor.parse(spelling) if isinstance(spelling, str) else spelling
    return decode_body(compressor.encode(vector, layout, draws(seed)), layout).dense()


def by_group(x: np.ndarray, sizes: tuple[int, ...], function: Callable[[np.ndarray, slice], np.ndarray]) -> np.ndarray:
    result, start = np.zeros_like(x), 0
    for size in sizes:
        part = slice(start, start + size)
        if size:
            result[part] = function(x[part], part)
        start += size
    return result


@pytest.mark.parametrize("by", ["model", "layer"])
@pytest.mark.parametrize(
    ("spelling", "function"),
    [
        ("dense", lambda x: x),
        ("top_k:0.1", lambda x: oracle.top_k(x, 0.1)),
        ("top_k:0.02,coding=rice", lambda x: oracle.top_k(x, 0.02)),
        ("top_k:0.4", lambda x: oracle.top_k(x, 0.4)),
        ("sign", oracle.sign),
        ("heavy_sign:0.05", lambda x: oracle.heavy_sign(x, 0.05)),
        ("heavy_sign:0.05,scale=printed", lambda x: oracle.heavy_sign(x, 0.05, printed_scale=True)),
        ("dead_zone:0.05", lambda x: oracle.dead_zone(x, 0.05)),
        ("dead_zone:12", lambda x: oracle.dead_zone(x, 12)),
        ("dead_zone:1", lambda x: oracle.dead_zone(x, 1)),
        ("uniform:8,rounding=nearest", lambda x: oracle.uniform(x, 8, None)),
        ("uniform:3,rounding=nearest", lambda x: oracle.uniform(x, 3, None)),
        ("uniform:8,rounding=authors", oracle.uniform_authors),
    ],
)
def test_deterministic_ones_equal_the_oracle(
    spelling: str, function: Callable[[np.ndarray], np.ndarray], by: str
) -> None:
    layout = layout_of(*SIZES)
    vector = normal(layout)
    groups = SIZES if by == "layer" else (layout.size,)
    expected = by_group(vector.numpy(), groups, lambda x, part: function(x))
    np.testing.assert_allclose(compressed(f"{spelling}@{by}", vector, layout).numpy(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("share", [1.0, 0.25, 0.7])
@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("by", ["model", "layer"])
def test_eden_equals_the_oracle_with_the_same_signs(by: str, nearest: bool, share: float) -> None:
    layout = layout_of(*SIZES)
    vector = normal(layout) ** 5
    generator = draws()
    bits = np.random.Philox(key=int(generator.integers(2**32)))

    def signs(size: int) -> np.ndarray:
        words = bits.random_raw(-(-size // 64))
        return np.array([-1.0 if int(words[j // 64]) >> (j % 64) & 1 else 1.0 for j in range(size)])

    groups = SIZES if by == "layer" else (layout.size,)
    sent = np.ones(layout.size, dtype=bool)
    if share < 1:
        # The positions are those of a random_k packet with the same draws.
        ones = torch.ones(layout.size, dtype=torch.float64)
        body = GroupedCompressor.parse(f"random_k:{share}@{by}").encode(ones, layout, generator)
        sent = decode_body(body, layout).dense().numpy() != 0
    expected = by_group(
        vector.numpy(), groups, lambda x, part: oracle.eden(x, signs(len(x)), signs(len(x)), nearest, sent[part])
    )
    spelling = f"eden:{share}{',scale=nearest' if nearest else ''}@{by}"
    np.testing.assert_allclose(compressed(spelling, vector, layout).numpy(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("by", ["model", "layer"])
@pytest.mark.parametrize(
    ("spelling", "function"),
    [
        ("qsgd:4", lambda x, r: oracle.qsgd(x, 4, "l2", r)),
        ("qsgd:1", lambda x, r: oracle.qsgd(x, 1, "l2", r)),
        ("stochastic:0.05", lambda x, r: oracle.stochastic(x, 0.05, r)),
        ("stochastic:12", lambda x, r: oracle.stochastic(x, 12, r)),
        ("stochastic:0.9", lambda x, r: oracle.stochastic(x, 0.9, r)),
        ("qsgd:4,norm=max", lambda x, r: oracle.qsgd(x, 4, "max", r)),
        ("qsgd:12,norm=max", lambda x, r: oracle.qsgd(x, 12, "max", r)),
        ("qsgd:4,damped=true", lambda x, r: oracle.qsgd_damped(x, 4, r)),
        ("natural", oracle.natural),
        ("uniform:8", lambda x, r: oracle.uniform(x, 8, r)),
        ("uniform:1", lambda x, r: oracle.uniform(x, 1, r)),
    ],
)
def test_random_ones_equal_the_oracle_with_the_same_draws(
    spelling: str, function: Callable[[np.ndarray, np.ndarray], np.ndarray], by: str
) -> None:
    layout = layout_of(*SIZES)
    vector, given = normal(layout), draws().random(layout.size)
    groups = SIZES if by == "layer" else (layout.size,)
    expected = by_group(vector.numpy(), groups, lambda x, part: function(x, given[part]))
    np.testing.assert_allclose(compressed(f"{spelling}@{by}", vector, layout).numpy(), expected, rtol=1e-12, atol=1e-15)


def test_chain_quantizes_the_kept_values_in_order_of_position() -> None:
    layout = layout_of(400)
    vector = normal(layout)
    expected = oracle.top_k_qsgd(vector.numpy(), 0.05, 4, draws().random(400))
    np.testing.assert_allclose(compressed("top_k:0.05+qsgd:4", vector, layout).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.4, 0.6, 1.0])
def test_random_k_sends_what_the_seed_in_the_body_chooses(ratio: float, unbiased: bool) -> None:
    layout = layout_of(500)
    vector = normal(layout)
    found = compressed(f"random_k:{ratio},unbiased={unbiased}", vector, layout).numpy()
    positions = np.flatnonzero(found)
    assert len(positions) == max(1, int(ratio * 500))
    np.testing.assert_allclose(found, oracle.random_k(vector.numpy(), positions, unbiased), rtol=1e-12)
    again = compressed(f"random_k:{ratio},unbiased={unbiased}", vector, layout, seed=8).numpy()
    assert ratio == 1 or not np.array_equal(positions, np.flatnonzero(again))


def test_zero_point_noise_moves_a_layer_by_whole_steps() -> None:
    layout = layout_of(200)
    vector = normal(layout)
    moved = compressed(Uniform(rounding="nearest", zero_point_noise=5), vector, layout)
    plain = compressed(Uniform(rounding="nearest"), vector, layout)
    steps = ((moved - plain) / ((vector.max() - vector.min()) / 255)).numpy()
    np.testing.assert_allclose(steps, np.rint(steps[0]), atol=1e-9)
    assert 1 <= abs(np.rint(steps[0])) <= 5


@pytest.mark.parametrize("spelling", ALL)
@pytest.mark.parametrize("by", ["", "@layer", "@model", "@chunk:64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_compressor_on_layouts_of_many_sizes(spelling: str, by: str, dtype: torch.dtype) -> None:
    compressor = GroupedCompressor.parse(spelling + by)
    assert GroupedCompressor.parse(str(compressor)) == compressor
    for sizes in ((1,), (0,), (), (5, 0, 3), SIZES):
        layout = layout_of(*sizes, dtype=dtype)
        vector = normal(layout)
        payload = decode_body(compressor.encode(vector, layout, draws()), layout)
        found = payload.dense()
        assert found.dtype == dtype and found.shape == vector.shape
        accumulator = torch.ones_like(vector)
        payload.add_to(accumulator, 0.5)
        torch.testing.assert_close(accumulator, 1 + 0.5 * found)


@pytest.mark.parametrize("spelling", [spelling for spelling in ALL if spelling != "dense"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_vector_that_is_not_finite_is_not_sent(spelling: str, bad: float) -> None:
    layout = layout_of(50, 14, dtype=torch.float32)
    for place in (0, 63):
        vector = normal(layout)
        vector[place] = bad
        with pytest.raises(PacketError, match="not finite"):
            GroupedCompressor.parse(spelling).encode(vector, layout, draws())


def test_a_vector_of_another_length_or_type_is_a_mistake_of_the_caller() -> None:
    layout = layout_of(3, dtype=torch.float32)
    for vector in (torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(1, 3)):
        with pytest.raises(ConfigError, match="3 parameters"):
            TopK().encode(vector, layout, draws())
    with pytest.raises(ConfigError, match=r"torch\.float16"):
        TopK().encode(torch.zeros(3, dtype=torch.float16), layout_of(3, dtype=torch.float16), draws())


def test_few_entries_stay_sparse_and_many_become_dense() -> None:
    layout = layout_of(1000)
    for spelling in ("top_k:0.05", "random_k:0.05", "heavy_sign:0.05", "top_k:0.05+qsgd:4", "top_k:0.05,coding=rice"):
        payload = decode_body(GroupedCompressor.parse(spelling).encode(normal(layout), layout, draws()), layout)
        assert isinstance(payload, SparsePayload) and len(payload.positions) == 50
    payload = decode_body(GroupedCompressor.parse("top_k:0.2").encode(normal(layout), layout, draws()), layout)
    assert isinstance(payload, DensePayload)


def test_adding_to_a_vector_of_another_length_is_a_mistake_of_the_caller() -> None:
    payload = SparsePayload(torch.tensor([9]), torch.ones(1), 10)
    for vector in (torch.zeros(9), torch.zeros(1, 10)):
        with pytest.raises(ValueError, match="10"):
            payload.add_to(vector, 1.0)


def test_ties_go_to_the_lower_position() -> None:
    layout = layout_of(6)
    vector = torch.tensor([1.0, -2.0, 2.0, 1.0, -2.0, 0.0], dtype=torch.float64)
    assert compressed("top_k:0.34", vector, layout).tolist() == [0, -2, 2, 0, 0, 0]


def test_what_the_papers_count() -> None:
    layout = layout_of(1000, 100, 10)
    counts = {
        "dense": 32 * 1110,
        "cast:float16": 16 * 1110,
        "top_k:0.1": 64 * 111,
        "top_k:0.1@layer": 32 * 111,
        "random_k:0.1": 32 * 111,
        "sign": 1110 + 32,
        "heavy_sign:0.1": 111,
        "qsgd:4": 32 + 4 * 1110,
        "natural": 9 * 1110,
        "uniform:8@layer": 8 * 1110 + 3 * 64,
        "sign@layer": 1110 + 3 * 32,
        "qsgd:4@chunk:100": 32 + 4 * 1110,
        "uniform:8@chunk:100": 8 * 1110 + 12 * 64,
        "top_k:0.1+qsgd:4": 32 * 111 + 32 + 4 * 111,
    }
    assert {spelling: GroupedCompressor.parse(spelling).paper_bits(layout) for spelling in counts} == counts


def test_omega_and_the_scale_for_feedback() -> None:
    layout = layout_of(400, 100)
    assert GroupedCompressor.parse("qsgd:4").omega(layout) == min(500 / 64, 500**0.5 / 8)
    assert GroupedCompressor.parse("qsgd:4@layer").omega(layout) == 400**0.5 / 8
    assert GroupedCompressor.parse("random_k:0.1").omega(layout) == 9
    assert GroupedCompressor.parse("top_k:0.1").omega(layout) == 0
    assert str(parse_compressor("random_k:0.1").scaled_for_feedback()) == "random_k:1/10,unbiased=false"
    assert str(parse_compressor("qsgd:4").scaled_for_feedback()) == "qsgd:4,damped=true"
    assert str(parse_compressor("random_k:0.1+qsgd:4").scaled_for_feedback()) == "random_k:1/10,unbiased=false+qsgd:4"
    for spelling in ("top_k:0.1", "sign", "heavy_sign:0.05", "uniform:8", "qsgd:4,norm=max", "dense"):
        compressor = parse_compressor(spelling)
        assert compressor.contractive and compressor.scaled_for_feedback() is compressor
    with pytest.raises(ConfigError, match="uniform:1 is not contractive"):
        parse_compressor("uniform:1").scaled_for_feedback()


def test_spellings() -> None:
    assert parse_compressor("top_k:1/64") == TopK(ratio=1 / 64)
    assert parse_compressor("top_k:0.01+qsgd:4") == Chain(first=TopK(ratio=0.01), second=QSGD(bits=4, norm="max"))
    assert GroupedCompressor.parse("top_k:0.01+uniform:8@layer").granularity == "layer"
    names = ("top_k", "sign", "qsgd", "heavy_sign", "uniform")
    assert {GroupedCompressor.parse(name).granularity for name in names} == {"model"}, "no compressor chooses its own"
    for text in (
        "top_k:1/64",
        "top_k:0.3",
        "qsgd:4,norm=max",
        "top_k:1/100+qsgd:4,norm=l2",
        "cast:bfloat16",
    ):
        assert str(parse_compressor(text)) == text
        assert str(GroupedCompressor.parse(f"{text}@chunk:128")) == f"{text}@chunk:128"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("topk:1/64", "did you mean 'top_k'?"),
        ("top_k:2", "compressor.ratio = 2.0: must be less than or equal to 1"),
        ("top_k:x", "compressor.ratio = 'x': must be a number"),
        ("top_k:1/0", "must be a number"),
        ("qsgd:1,norm=max", "at least 2 are needed"),
        ("qsgd:4,norm=l3", "must be 'l2' or 'max'"),
        ("uniform:0", "greater than or equal to 1"),
        ("uniform:17", "less than or equal to 16"),
        ("cast:float8", "must be 'float16' or 'bfloat16'"),
        ("sign@each", "allowed are model, layer and chunk:N"),
        ("sign@chunk:63", "with N of at least 64"),
        ("sign:3", "'sign' has no parameters"),
        ("top_k:0.1,rato=2", "did you mean 'ratio'?"),
        ("top_k:0.1+dense", "does not quantize every value"),
        ("sign+qsgd:4", "does not keep some of the entries exactly"),
        ("heavy_sign:0.1+qsgd:4", "does not keep some of the entries exactly"),
        ("top_k:0.1+random_k:0.1", "does not quantize every value"),
        ("top_k:0.1+sign+sign", "at most two"),
        ("chain", "unknown compressor 'chain'"),
        ("", "unknown compressor ''"),
    ],
)
def test_misspellings_are_told_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GroupedCompressor.parse(text)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


def test_compressors_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TopK().ratio = 0.5  # type: ignore[misc]


def test_a_skip_has_no_vector_and_unknown_codecs_are_refused() -> None:
    layout = layout_of(3)
    for codec in (Codec.SKIP, 16, 12, 8 + 64, 9 + 64, 10 + 64, 48 + 5, 128 + 5, 255):
        with pytest.raises(PacketError) as caught:
            decode_body(Body(codec, b"\1" * 100), layout)
        assert caught.value.reason == "codec"
