"""A compressor of one's own: a function of a vector that returns a form. What it may return, and what others ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.compression import COMPRESSORS, Codec, GroupedCompressor, decode, decode_body, encode
from laconic.compression.packet import Body
from laconic.core.user_code import import_file
from laconic.federation.defenses import resolve_defenses
from laconic.federation.settings import Defenses
from tests.compression.test_compressors import draws, layout_of, normal


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    """What a test registers goes with it."""
    before = dict(COMPRESSORS)
    yield
    COMPRESSORS.clear()
    COMPRESSORS.update(before)


def ternary() -> type[laconic.Compressor]:
    @laconic.compressor("ternary", argument="threshold")
    class Ternary(laconic.Compressor):
        threshold: float = 0.7

        def compress(self, x: np.ndarray, rng: np.random.Generator) -> laconic.Levels:
            kept = abs(x) >= self.threshold * abs(x).mean()
            return laconic.Levels(np.sign(x) * kept, scale=abs(x[kept]).mean())

    return Ternary


def returning(form: Any, **properties: Any) -> laconic.Compressor:
    """A compressor that always returns that."""
    body = {"compress": lambda self, x, rng: form(x) if callable(form) else form, "__annotations__": {}, **properties}
    return laconic.compressor("own")(type("Own", (laconic.Compressor,), body))()


def expected(x: np.ndarray, threshold: float) -> np.ndarray:
    kept = np.abs(x) >= threshold * np.abs(x).mean()
    return np.sign(x) * kept * np.abs(x[kept]).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("granularity", "sizes"), [("model", (307,)), ("layer", (300, 7)), ("chunk:100", (100, 100, 100, 7))]
)
def test_the_link_splits_and_codes(granularity: str, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    ternary()
    layout = layout_of(300, 7, dtype=dtype)
    vector = normal(layout)
    body = GroupedCompressor.parse(f"ternary:0.9@{granularity}").encode(vector, layout, draws())
    groups = np.split(vector.numpy(), np.cumsum(sizes)[:-1])
    whole = np.concatenate([expected(group, 0.9) for group in groups])
    np.testing.assert_allclose(decode_body(body, layout).dense().numpy(), whole, rtol=1e-6)
    assert len(body.data) < 307 * 1.7 / 8 + 8 * len(sizes) + 16, "three levels take less than 1.6 bits"


def test_in_a_chain_after_a_sparsifier_and_in_training() -> None:
    ternary()
    vector = torch.randn(1000)
    top, both = decode(encode(vector, "top_k:0.1"), 1000), decode(encode(vector, "top_k:0.1+ternary:0"), 1000)
    assert torch.equal(top.sign(), both.sign()) and len(both.unique()) == 3
    generator = np.random.default_rng(0)
    clients = [(generator.normal(size=(20, 3)).astype(np.float32), generator.integers(0, 2, 20)) for _ in range(3)]
    for recipe in ("fed_cams", "fed_ef_sgd", "fed_nlaca", "fed_bnlaca", "ef21", "fed_gate"):
        laconic.simulate(f"{recipe}:compressor=ternary:0.5", lambda: nn.Linear(3, 2), clients, rounds=2)


def test_a_sparsifier_of_ones_own_is_treated_as_ours() -> None:
    above = returning(lambda x: laconic.Kept(np.flatnonzero(x > 0), x[x > 0]), sparse=True)
    vector = torch.tensor([0.5, -1.0, 2.0, 0.0])
    assert decode(encode(vector, above), 4).tolist() == [0.5, 0, 2, 0]
    assert decode(encode(vector, "own+sign"), 4).tolist() == [1.25, 0, 1.25, 0]
    algorithm = laconic.fed_cams(compressor="own")
    with pytest.raises(laconic.ConfigError, match="with 'own' most entries of an update are zero"):
        settings = {"participants": 3, "weighting": "uniform", "send_buffers": False}
        resolve_defenses(Defenses(aggregate="median"), algorithm, layout_of(4), **settings)
    assert laconic.fed_gate(compressor="own").resolve().method.tracker_rate == 0.1
    returning(lambda x: laconic.Kept(np.array([0]), x[:1]), sparse=True, kept_fraction=0.25)
    assert laconic.fed_gate(compressor="own").resolve().method.beta(layout_of(4)) == 0.25


def all_but_zeros() -> None:
    @laconic.compressor("all_but_zeros")
    class AllButZeros(laconic.Compressor):
        """The number of kept entries depends on the vector."""

        sparse = True

        def compress(self, x: np.ndarray, rng: np.random.Generator) -> laconic.Kept:
            positions = np.flatnonzero(abs(x) > 0.01 * abs(x).max())
            return laconic.Kept(positions, x[positions])


@pytest.mark.parametrize("granularity", ["model", "layer", "chunk:100"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
def test_papers_would_count_the_values_in_the_body_if_their_number_is_not_fixed(granularity: str, share: float) -> None:
    all_but_zeros()
    layout, rng = layout_of(1000, 100, 10), draws()
    vector = torch.from_numpy(rng.choice([0.0, 1.0, -2.0], 1110, p=[1 - share, share / 2, share / 2]))
    kept = int(vector.count_nonzero())
    exact = GroupedCompressor.parse(f"all_but_zeros@{granularity}")
    body = exact.encode(vector, layout, rng)
    assert exact.paper_bits(layout, body) == 32 * kept
    assert exact.paper_bits(layout) == exact.paper_bits(layout, Body(Codec.SKIP)) == 32 * 1110, "nothing is known"
    chain = GroupedCompressor.parse(f"all_but_zeros+qsgd:4@{granularity}")
    assert chain.paper_bits(layout, chain.encode(vector, layout, rng)) == 4 * kept + 32
    assert GroupedCompressor.parse("top_k:0.1").paper_bits(layout, body) == 64 * 111, "a fixed number needs no body"


@pytest.mark.parametrize("downlink", ["broadcast", "mirrored", "estimated", "compressed"])
def test_the_ledger_counts_the_values_in_the_bodies_of_every_link(downlink: str) -> None:
    all_but_zeros()
    chosen: Any = {"compressor": "all_but_zeros", "granularity": "layer"}
    algorithm = laconic.fed_ef_sgd(**chosen, downlink={"name": downlink, **chosen})
    ledger = laconic.simulate(algorithm, "logistic", "digits", rounds=2, participants=3).ledger
    dense = 2 * 3 * 32 * 650  # pixels at the border are always zero, and so are their gradients
    assert 0 < ledger.paper_bits("up") < dense and 0 < ledger.paper_bits("down") < dense


def test_a_number_by_ones_own_rule_is_the_papers() -> None:
    @laconic.compressor("first_two")
    class FirstTwo(laconic.Compressor):
        sparse = True

        def compress(self, x: np.ndarray, rng: np.random.Generator) -> laconic.Kept:
            return laconic.Kept(np.arange(1), x[:1])

        def kept(self, size: int) -> int:
            return 2

        def position_bits(self, count: int) -> int:
            return 16 * count

    grouped, layout = GroupedCompressor(FirstTwo()), layout_of(30)
    assert grouped.paper_bits(layout, grouped.encode(normal(layout), layout, draws())) == 2 * (16 + 32)


def test_a_vector_that_leaves_out_groups_may_keep_nothing_in_one() -> None:
    own = returning(
        lambda x: laconic.Kept(np.flatnonzero(x > 5), laconic.Levels(np.ones((x > 5).sum()), 2.0)), sparse=True
    )
    layout = layout_of(100, 50, 30)
    vector = torch.zeros(180, dtype=torch.float64)
    for positions in ([], [3, 170], [120]):
        vector[positions] = 9.0
        found = decode_body(own.encode(vector, layout, draws(), "layer"), layout).dense()
        assert torch.equal(found, 2.0 * (vector > 5))


@pytest.mark.parametrize(
    ("form", "properties", "complaint"),
    [
        (None, {}, "compress returned NoneType"),
        (3.0, {}, "compress returned float"),
        (lambda x: x[1:], {}, "forms of .* values where .* are needed"),
        (lambda x: laconic.Levels(x / 3, 1.0), {}, "must be whole numbers"),
        (lambda x: laconic.Levels(x * 2e5, 1.0), {}, "levels from .* to .*: at most 65536"),
        (lambda x: laconic.Kept(np.array([0]), x[:1]), {}, "it must set `sparse = True`"),
        (lambda x: laconic.Kept(np.array([1, 0]), x[:2]), {"sparse": True}, "must be sorted"),
        (lambda x: laconic.Kept(np.array([0, 0]), x[:2]), {"sparse": True}, "must be sorted"),
        (lambda x: laconic.Kept(np.array([len(x)]), x[:1]), {"sparse": True}, "within the group"),
        (lambda x: laconic.Kept(np.array([0]), x[:2]), {"sparse": True}, "forms of .* values where .* are needed"),
        (lambda x: x if x[0] > 0 else laconic.Signs(x < 0, 1.0), {}, "the same for all groups"),
        (lambda x: laconic.Signs(np.sign(x), 1.0), {}, "Signs.negative must be a vector of booleans, as in x < 0"),
        (lambda x: laconic.Signs(np.sign(x).astype(int), 1.0), {}, "must be a vector of booleans"),
        (lambda x: laconic.Signs(torch.from_numpy(x), 1.0), {}, "must be a vector of booleans"),
        (lambda x: laconic.Levels(np.sign(x), abs(x)), {}, "a scale or an offset must be one number"),
        (lambda x: laconic.Kept([0.5], x[:1]), {"sparse": True}, "must be sorted, different integers"),
    ],
)
def test_what_may_not_be_returned_is_told_in_one_line(form: Any, properties: dict[str, Any], complaint: str) -> None:
    own = returning(form, **properties)
    layout = layout_of(4, 4)
    vector = torch.tensor([1.0, 2.0, 3.0, 4.0, -1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    with pytest.raises(laconic.ConfigError, match=f"compressor 'own': .*{complaint}") as caught:
        own.encode(vector, layout, draws(), "layer")
    assert "\n" not in str(caught.value)


def test_lists_and_tensors_are_vectors_too() -> None:
    vector, plain = torch.tensor([0.5, -1.0, 2.0]), [0.5, -0.5, 0.5]
    for form in (
        lambda x: laconic.Levels([1, -1, 1], 0.5),
        lambda x: laconic.Levels(torch.from_numpy(x).sign(), torch.tensor(0.5)),
        lambda x: laconic.Signs(torch.from_numpy(x) < 0, 0.5),
        lambda x: laconic.Signs([False, True, False], np.float32(0.5)),
    ):
        assert decode(encode(vector, returning(form)), 3).tolist() == plain
    kept = returning(lambda x: laconic.Kept(torch.tensor([0, 2]), x[[0, 2]]), sparse=True)
    assert decode(encode(vector, kept), 3).tolist() == [0.5, 0, 2]


def test_what_is_not_finite_is_not_sent() -> None:
    for form in (
        lambda x: laconic.Signs(x < 0, np.nan),
        lambda x: laconic.Levels(x * np.inf, 1.0),
        lambda x: laconic.Levels(x, np.inf),
        lambda x: x / 0,
        lambda x: laconic.Kept([0], x[:1] / 0),
        lambda x: laconic.Values(x / 0, "float16"),
    ):
        own = returning(form, sparse=True)
        with (
            np.errstate(all="ignore"),
            pytest.raises(laconic.ConfigError, match="compressor 'own': compress returned NaN or infinity for finite"),
        ):
            encode(torch.ones(4), own)
        with np.errstate(all="ignore"), pytest.raises(laconic.PacketError, match="not finite"):
            encode(torch.tensor([1.0, torch.nan]), own)


def test_a_compressor_that_would_go_wrong_later_is_refused_where_it_is_written() -> None:
    with pytest.raises(laconic.ConfigError, match="it has no function `compress`"):

        @laconic.compressor("misspelled")
        class Misspelled(laconic.Compressor):
            def compres(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
                return x

    with pytest.raises(laconic.ConfigError, match=r"the function must be `compress\(self, x, rng\)`"):

        @laconic.compressor("without_rng")
        class WithoutRng(laconic.Compressor):
            def compress(self, x: np.ndarray) -> np.ndarray:
                return x

    with pytest.raises(laconic.ConfigError, match="choose another"):

        @laconic.compressor("sign")
        class Sign(laconic.Compressor):
            def compress(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
                return x

    with pytest.raises(laconic.ConfigError, match="argument = 'nosuch': must be one of its parameters: ratio"):

        @laconic.compressor("unread", argument="nosuch")
        class Unread(laconic.Compressor):
            ratio: float = 0.5

            def compress(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
                return x

    assert "unread" not in COMPRESSORS
    with pytest.raises(
        laconic.ConfigError, match=r"^compressor 'ternary' .*: the class is already registered as 'ternary'"
    ):
        laconic.compressor("ternary")(ternary())


def test_a_parameter_of_zero_has_a_spelling() -> None:
    own = ternary()
    assert [str(own(value)) for value in (0.0, 0.25, 0.3, 2.0, -0.5)] == [
        *("ternary:0.0", "ternary:1/4", "ternary:0.3", "ternary:2", "ternary:-0.5")
    ]
    assert laconic.compression.parse_compressor("ternary:0.0") == own(0.0)


def test_a_refused_class_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text('import laconic\n\n@laconic.compressor("wrong")\nclass Wrong(laconic.Compressor):\n    pass\n')
    with pytest.raises(laconic.ConfigError, match=r"^compressor 'wrong' \(wrong.py:Wrong\): it has no function"):
        import_file(path)


def test_the_refusal_to_remember_says_that_it_works_without_memory() -> None:
    returning(lambda x: x, contractive=False)
    with pytest.raises(laconic.ConfigError, match=r"own is not contractive.*: memory=False, --no-memory$"):
        laconic.fed_cams(compressor="own")
    assert not laconic.fed_cams(compressor="own", memory=False).uplink.has_memory
    with pytest.raises(laconic.ConfigError, match=r"own is not contractive, as error feedback requires$"):
        laconic.Broadcast("own")


def test_alone_a_tensor_of_any_shape_comes_back_flat_and_bytes_are_checked() -> None:
    matrix = torch.randn(8, 16, dtype=torch.float64)
    data = encode(matrix)
    assert torch.equal(decode(data, 128), matrix.flatten())
    assert encode(matrix.numpy()) == data
    assert encode(matrix, "qsgd:4", seed=1) == encode(matrix, "qsgd:4", seed=1) != encode(matrix, "qsgd:4", seed=2)
    assert decode(encode(matrix, laconic.Sign()), 128).dtype == torch.float64
    for wrong in (b"", data[:-1], data + b"\0", b"Lb" + data[2:], bytes([*data[:40], data[40] ^ 1, *data[41:]])):
        with pytest.raises(laconic.PacketError):
            decode(wrong, 128)
    with pytest.raises(laconic.PacketError, match="not a vector of 127 entries"):
        decode(data, 127)


@pytest.mark.parametrize("second", ["uniform:4", "uniform:4,rounding=authors", "qsgd:4", "sign", "cast", "natural"])
def test_a_chain_whose_first_compressor_keeps_nothing(second: str) -> None:
    @laconic.compressor("large_only")
    class LargeOnly(laconic.Compressor):
        sparse = True
        exact = True

        def compress(self, x: np.ndarray, rng: np.random.Generator) -> laconic.Form:
            positions = np.flatnonzero(np.abs(x) > 1)
            return laconic.Kept(positions, x[positions])

    vector = torch.full((8,), 0.5)
    assert torch.equal(decode(encode(vector, f"large_only+{second}"), 8), torch.zeros(8))
