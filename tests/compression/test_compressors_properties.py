"""What theorems need: contraction, unbiasedness, exactness of the round trip, bounded memory under error feedback."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import BroadcastModel, ClientModelVersion
from laconic.algorithms.downlinks.broadcast import Broadcast
from laconic.algorithms.downlinks.mirrored import Mirrored
from laconic.algorithms.uplinks.base import Uplink
from laconic.algorithms.uplinks.compressed import Compressed
from laconic.algorithms.uplinks.lazy import Accelerated, Lazy
from laconic.algorithms.uplinks.shifted import Shifted
from laconic.compression import QSGD, Compressor, GroupedCompressor, Uniform, decode_body
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.randomness import Randomness
from tests.compression.test_compressors import ALL, compressed, draws, layout_of, normal

VECTORS = st.integers(1, 200).flatmap(
    lambda size: arrays(
        np.float64, size, elements=st.floats(-1e6, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1.0])
    )
)
SHORT = settings(max_examples=25, deadline=None)


def relative_error(spelling: str, x: np.ndarray) -> tuple[float, float]:
    layout = layout_of(len(x))
    found = compressed(spelling, torch.from_numpy(x), layout).numpy()
    return float(np.square(found - x).sum()), float(np.square(x).sum())


@SHORT
@given(VECTORS, st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.sampled_from(["ans", "rice"]))
def test_top_k_contracts_by_its_share(x: np.ndarray, ratio: float, coding: str) -> None:
    error, norm = relative_error(f"top_k:{ratio},coding={coding}", x)
    kept = max(1, math.floor(ratio * len(x)))
    assert error <= (1 - kept / len(x)) * norm * (1 + 1e-12)


@SHORT
@given(VECTORS)
def test_sign_contracts_by_its_formula(x: np.ndarray) -> None:
    error, norm = relative_error("sign", x)
    # Squares of numbers below 1e-154 underflow in this sum, so there is nothing to compare there.
    assert error <= norm - np.abs(x).sum() ** 2 / len(x) + 1e-9 * norm + 1e-300


@SHORT
@given(VECTORS, st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.sampled_from(["kept", "printed"]))
def test_heavy_sign_never_expands(x: np.ndarray, ratio: float, scale: str) -> None:
    error, norm = relative_error(f"heavy_sign:{ratio},scale={scale}", x)
    assert error <= norm * (1 + 1e-12)


@SHORT
@given(VECTORS, st.integers(0, 2**32 - 1))
def test_eden_keeps_the_projection_and_its_nearest_form_contracts(x: np.ndarray, seed: int) -> None:
    layout, vector = layout_of(len(x)), torch.from_numpy(x)
    norm = float(np.square(x).sum())
    kept = float(compressed("eden", vector, layout, seed).numpy() @ x)
    assert kept == pytest.approx(norm, rel=1e-9, abs=1e-300)
    nearest = compressed("eden:scale=nearest", vector, layout, seed).numpy()
    assert np.square(nearest - x).sum() <= norm * (1 - 1 / len(x) + 1e-9)


@SHORT
@given(VECTORS, st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]))
def test_natural_chooses_one_of_the_two_nearest_powers_of_two(x: np.ndarray, seed: int, dtype: torch.dtype) -> None:
    vector = torch.from_numpy(x).to(dtype)
    layout, most = layout_of(len(x), dtype=dtype), 2.0 ** (127 if dtype == torch.float32 else 1023)
    found, entries = compressed("natural", vector, layout, seed).numpy(), vector.numpy().astype(np.float64)
    mantissas, _ = np.frexp(found.astype(np.float64))
    low = np.ldexp(0.5, np.frexp(entries)[1])
    assert (np.abs(mantissas) == 0.5)[entries != 0].all() and not found[entries == 0].any()
    assert ((np.abs(found) == low) | (np.abs(found) == np.minimum(2 * low, most)))[entries != 0].all()
    assert np.array_equal(np.sign(found), np.sign(entries))
    assert torch.equal(compressed("natural", torch.from_numpy(found), layout, seed + 1), torch.from_numpy(found))


def test_natural_has_the_variance_of_the_paper() -> None:
    """At |x| = 4/3 of a power of two the error is 1/8 of x^2, the largest; x is the mean."""
    layout = layout_of(40000)
    vector = torch.full((40000,), 4 / 3, dtype=torch.float64)
    found = compressed("natural", vector, layout)
    assert float(found.mean()) == pytest.approx(4 / 3, rel=0.01)
    assert float((found - vector).square().mean()) == pytest.approx(16 / 9 / 8, rel=0.05)


def test_eden_needs_no_luck_with_long_vectors() -> None:
    """However the entries are distributed, the error is that of Gaussian entries: pi/2 - 1, and 1 - 2/pi.

    With a quarter of a bit per entry: 4 pi/2 - 1, and 1 - 2/pi / 4.
    """
    layout = layout_of(5000)
    for power in (1, 7):
        vector = normal(layout) ** power
        shares = {
            "eden": math.pi / 2 - 1,
            "eden:scale=nearest": 1 - 2 / math.pi,
            "eden:1/4": 2 * math.pi - 1,
            "eden:1/4,scale=nearest": 1 - 1 / (2 * math.pi),
        }
        for spelling, share in shares.items():
            error = (compressed(spelling, vector, layout) - vector).square().sum() / vector.square().sum()
            assert float(error) == pytest.approx(share, rel=0.1)
            omega = GroupedCompressor.parse(spelling).omega(layout)
            assert omega == (0 if "nearest" in spelling else pytest.approx(share))


@SHORT
@given(VECTORS, st.sampled_from([0.1, 0.5]))
def test_plain_random_k_never_expands(x: np.ndarray, ratio: float) -> None:
    error, norm = relative_error(f"random_k:{ratio},unbiased=false", x)
    assert error <= norm * (1 + 1e-12)


@SHORT
@given(VECTORS, st.integers(2, 12), st.booleans())
def test_quantizers_err_by_less_than_a_step(x: np.ndarray, bits: int, nearest: bool) -> None:
    layout = layout_of(len(x))
    vector = torch.from_numpy(x)
    grid = compressed(Uniform(bits=bits, rounding="nearest" if nearest else "stochastic"), vector, layout).numpy()
    step = (x.max() - x.min()) / (2**bits - 1)
    assert np.abs(grid - x).max() <= step * (0.5 if nearest else 1) * (1 + 1e-6) + 1e-9 * np.abs(x).max()
    found = compressed(QSGD(bits=bits, norm="max"), vector, layout).numpy()
    assert np.abs(found - x).max() <= np.abs(x).max() / (2 ** (bits - 1) - 1) * (1 + 1e-9)


@SHORT
@given(VECTORS, st.sampled_from([0.01, 0.1, 0.5]))
def test_top_k_is_idempotent(x: np.ndarray, ratio: float) -> None:
    layout = layout_of(len(x))
    once = compressed(f"top_k:{ratio}", torch.from_numpy(x), layout)
    assert torch.equal(compressed(f"top_k:{ratio}", once, layout), once)


@pytest.mark.parametrize(
    "spelling", ["cast:float16", "cast:bfloat16", "top_k:0.3", "sign", "heavy_sign:0.3", "top_k:0.1+sign"]
)
def test_what_was_sent_can_be_sent_again_exactly(spelling: str) -> None:
    """The result of a cast, of top_k and of signs is a fixed point, up to the rounding of the scale."""
    layout = layout_of(64, 9, dtype=torch.float32)
    once = compressed(spelling, normal(layout), layout)
    torch.testing.assert_close(compressed(spelling, once, layout), once, rtol=1e-6, atol=0)


@SHORT
@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]))
def test_the_round_trip_is_the_plain_definition_bit_for_bit(size: int, seed: int, dtype: torch.dtype) -> None:
    layout = layout_of(size, dtype=dtype)
    vector = normal(layout, seed)
    x = vector.numpy()
    kind = x.dtype.type
    given_draws = draws().random(size, kind)
    kept = np.sort(np.lexsort((np.arange(size), -np.abs(x)))[: max(1, size // 10)])
    top = np.zeros_like(x)
    top[kept] = x[kept]
    scale = kind(float(np.abs(x).sum()) / size)
    length = kind(math.sqrt(float(np.square(x.astype(np.float64)).sum())) / 8)
    levels = np.minimum(np.floor(np.abs(x) / length + given_draws), 8)
    low, step = x.min(), kind((float(x.max()) - float(x.min())) / 255)
    grid = np.minimum(np.floor((x - low) / step + given_draws), 255) if step else np.zeros_like(x)
    for spelling, expected in {
        "dense": x,
        "top_k:0.1": top,
        "top_k:0.1,coding=rice": top,
        "sign": np.where(x >= 0, scale, -scale),
        "qsgd:4": np.copysign(levels, x) * length,
        "uniform:8": grid * step + low,
        "cast:float16": vector.half().to(dtype).numpy(),
    }.items():
        found = compressed(spelling, vector, layout).numpy()
        assert np.array_equal(found, expected), spelling


def bernstein(variance: np.ndarray, reach: np.ndarray | float, draws: int, error: float) -> np.ndarray:
    """How far a mean of draws may be from its expectation in any entry, but for a chance of at most `error`.

    Bernstein: for draws within `reach` of their expectation, P(|mean - x| >= t) <= 2 exp(-n t^2 / (2 var + 2 reach t / 3)).
    Both come from x, not from the draws, and entries need not be independent: the chance is shared between them.
    """
    limit = math.log(2 * len(variance) / error)
    return np.sqrt(2 * variance * limit / draws) + 2 * reach * limit / (3 * draws)


def many(spelling: str, vector: torch.Tensor, layout: Layout, number: int, seed: int) -> np.ndarray:
    compressor, generator = GroupedCompressor.parse(spelling), draws(seed)
    decoded = (decode_body(compressor.encode(vector, layout, generator), layout).dense() for _ in range(number))
    return np.stack([each.numpy() for each in decoded]).astype(np.float64)


@pytest.mark.parametrize(
    ("spelling", "step"),
    [
        ("qsgd:4", lambda x: np.linalg.norm(x) / 8),
        ("qsgd:1", lambda x: np.linalg.norm(x)),
        ("qsgd:4,norm=max", lambda x: np.abs(x).max() / 7),
        ("qsgd:2,norm=max", lambda x: np.abs(x).max()),
        ("uniform:4", lambda x: (x.max() - x.min()) / 15),
        ("uniform:1", lambda x: x.max() - x.min()),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantizers_are_unbiased(spelling: str, step: Callable[[np.ndarray], float], dtype: torch.dtype) -> None:
    """Each draw is one of the two points next to x, so its variance is known: 1e-6 that a right one fails."""
    layout = layout_of(24, dtype=dtype)
    vector = normal(layout)
    x = vector.numpy().astype(np.float64)
    length = step(x)
    found = many(spelling, vector, layout, 2000, 1)
    assert (np.abs(found - x) <= length * (1 + 1e-6)).all()
    share = (x - x.min() if "uniform" in spelling else np.abs(x)) / length % 1
    allowed = bernstein(length**2 * share * (1 - share), length, 2000, 1e-6)
    # float32 draws have 24 bits, and x itself is rounded.
    assert (np.abs(found.mean(0) - x) <= allowed + 1e-6).all()


@pytest.mark.parametrize("spelling", ["random_k:0.1", "random_k:0.7", "random_k:0.25@layer", "random_k:0.25+qsgd:4"])
def test_random_k_is_unbiased(spelling: str) -> None:
    """Each entry is there with probability k/d, so its variance is known: 1e-6 that a right one fails."""
    layout = layout_of(30, 10)
    vector = normal(layout).abs() + 1
    x, ratio = vector.numpy(), float(spelling[9:].split("@")[0].split("+")[0])
    share = np.full(40, math.floor(ratio * 40) / 40)
    if "@layer" in spelling:
        share = np.repeat([math.floor(ratio * 30) / 30, math.floor(ratio * 10) / 10], [30, 10])
    step = x.max() / share / 7 if "qsgd" in spelling else np.zeros(40)
    found = many(spelling, vector, layout, 3000, 2)
    variance = x**2 * (1 - share) / share + share * step**2 / 4
    allowed = bernstein(variance, np.maximum(x, x / share - x + step), 3000, 1e-6)
    assert (np.abs(found.mean(0) - x) <= allowed + 1e-9).all()


def occasions(layout: Layout, rounds: int) -> list[RoundContext]:
    return [RoundContext(layout, Randomness(3), round, client=0) for round in range(rounds)]


def uplink_memories(uplink: Uplink, update: torch.Tensor, layout: Layout, rounds: int) -> list[float]:
    """||m|| after every round of the same update."""
    state, norms = {}, []
    for context in occasions(layout, rounds):
        state = uplink.encode(update, state, context).state
        norms.append(float(state["memory"].norm()))
    return norms


def shift_distances(compressor: Compressor, update: torch.Tensor, layout: Layout, rounds: int) -> list[float]:
    """||u - h|| after every round of the same update."""
    uplink, state, norms = Shifted(compressor), {}, []
    for context in occasions(layout, rounds):
        state = uplink.encode(update, state, context).state
        norms.append(float((update - state["shift"]).norm()))
    return norms


def broadcast_memories(compressor: Compressor, step: torch.Tensor, layout: Layout, rounds: int) -> list[float]:
    """||phi||, which is how far the shared model is behind."""
    downlink, model, norms = Broadcast(compressor), torch.zeros_like(step), []
    state = downlink.init(model)
    for context in occasions(layout, rounds):
        model, state = downlink.advance(model, step, state, context)
        norms.append(float(state["phi"].norm()))
    return norms


def mirror_distances(compressor: Compressor, step: torch.Tensor, layout: Layout, rounds: int) -> list[float]:
    """||w - v|| of a client that takes part in every round while the model moves on steadily."""
    downlink, model, norms = Mirrored(compressor), torch.zeros_like(step), []
    state, peer = downlink.init(model), {}
    for context in occasions(layout, rounds):
        model = model + step
        broadcast, client = BroadcastModel(model, state, layout), ClientModelVersion(0, peer)
        peer = downlink.confirmed(broadcast, client, downlink.send(broadcast, client, context))
        norms.append(float((model - peer["mirror"]).norm()))
    return norms


LINKS: dict[str, Callable[[Compressor, torch.Tensor, Layout, int], list[float]]] = {
    "error feedback": lambda c, *rest: uplink_memories(Compressed(c, memory=True), *rest),
    "lazy": lambda c, *rest: uplink_memories(Lazy(c, memory=True, threshold=0.1), *rest),
    "accelerated": lambda c, *rest: uplink_memories(Accelerated(c, memory=True, threshold=0.1), *rest),
    "broadcast": broadcast_memories,
    "mirrored": mirror_distances,
}
SHIFTED = {"shifted": shift_distances}
"""It has no memory to scale compressors for. Its rate does that."""
FEW = (
    *("top_k:0.05,coding=rice", "random_k:0.1", "sign", "heavy_sign:0.05", "qsgd:1", "qsgd:2,norm=max", "uniform:8"),
    "eden:1/4",
)
REFUSED = ("uniform:1",)
BOUNDED = [spelling for spelling in ALL if spelling not in REFUSED] + [
    "top_k:0.05",
    "uniform:2",
    "random_k:0.1+qsgd:1,norm=l2",
]


def stays_bounded(link: str, spelling: str) -> None:
    """500 rounds of a constant vector of length 1; at the end it is no larger than on the way, up to fluctuation."""
    layout = layout_of(60, 0, 3, 40, dtype=torch.float32)
    update = normal(layout)
    norms = (LINKS | SHIFTED)[link](spelling, update / update.norm(), layout, 500)
    assert all(map(math.isfinite, norms))
    # A lazy client uses its reference again until memory is about the threshold, however exact the compressor is.
    assert max(norms[250:]) <= 1.3 * max(norms[:250]) + (0.2 if link == "lazy" else 1e-3)
    assert max(norms) < 100


@pytest.mark.parametrize("spelling", [spelling + by for spelling in FEW for by in ("@model", "@layer")])
@pytest.mark.parametrize("link", LINKS | SHIFTED)
def test_what_was_not_sent_stays_bounded(link: str, spelling: str) -> None:
    stays_bounded(link, spelling)


@pytest.mark.long
@pytest.mark.parametrize("spelling", [spelling + by for spelling in BOUNDED for by in ("@model", "@layer")])
@pytest.mark.parametrize("link", LINKS | SHIFTED)
def test_what_was_not_sent_stays_bounded_with_every_compressor(link: str, spelling: str) -> None:
    stays_bounded(link, spelling)


@pytest.mark.parametrize("spelling", REFUSED)
@pytest.mark.parametrize("link", LINKS)
def test_compressors_that_cannot_contract_are_refused(link: str, spelling: str) -> None:
    layout = layout_of(5)
    with pytest.raises(ConfigError, match="not contractive"):
        LINKS[link](spelling, normal(layout), layout, 1)


@pytest.mark.parametrize("link", LINKS)
def test_without_the_scale_l2_qsgd_explodes_under_feedback(link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the tests above: every one of these parts scales, and 500 rounds are enough to see it if one did not."""
    layout = layout_of(400, dtype=torch.float32)
    update = normal(layout)
    assert max(LINKS[link](QSGD(bits=2), update / update.norm(), layout, 500)) < 60
    monkeypatch.setattr(QSGD, "scaled_for_feedback", lambda self: self)
    assert LINKS[link](QSGD(bits=2), update / update.norm(), layout, 200)[-1] > 1e5
