"""Every partition: disjoint, covering, and with the labels that its definition promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.core.errors import ConfigError
from laconic.core.randomness import Randomness
from laconic.data.partition import Dirichlet, Pairs, parse_partition


def generator(seed: int = 0) -> np.random.Generator:
    return Randomness(seed).numpy("partition")


def assert_covers(split, count):
    assert all(part.dtype == np.int64 and len(part) > 0 for part in split)
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(count))


labeled = st.integers(2, 8).flatmap(
    lambda classes: st.lists(st.integers(0, classes - 1), min_size=20, max_size=300).map(np.array)
)


@settings(max_examples=60, deadline=None)
@given(labels=labeled, clients=st.integers(1, 20), seed=st.integers(0, 1000))
def test_iid(labels, clients, seed):
    split = parse_partition("iid").split(labels, clients, generator(seed))
    assert_covers(split, len(labels))
    assert len(split) == clients
    assert max(map(len, split)) - min(map(len, split)) <= 1


@settings(max_examples=60, deadline=None)
@given(labels=labeled, clients=st.integers(1, 5), per_client=st.integers(1, 4), seed=st.integers(0, 1000))
def test_shards(labels, clients, per_client, seed):
    split = parse_partition(f"shards:{per_client}").split(labels, clients, generator(seed))
    assert_covers(split, len(labels))
    assert len(split) == clients
    assert max(map(len, split)) - min(map(len, split)) <= per_client
    # Each shard is a run of the examples sorted by label, so a client is at most `per_client` such runs.
    rank = np.empty(len(labels), dtype=np.int64)
    rank[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    for held in split:
        assert 1 + np.count_nonzero(np.diff(rank[held]) != 1) <= per_client


def test_shards_of_fed_ef_hold_one_label_each():
    labels = generator(3).permutation(np.repeat(np.arange(10), 6000))
    split = parse_partition("shards:2").split(labels, 200, generator())
    assert {len(held) for held in split} == {300}
    for held in split:
        assert len(np.unique(labels[held[:150]])) == len(np.unique(labels[held[150:]])) == 1


@settings(max_examples=60, deadline=None)
@given(labels=labeled, clients=st.integers(1, 8), per_client=st.integers(1, 4), seed=st.integers(0, 1000))
def test_single_label_shards(labels, clients, per_client, seed):
    partition, count = parse_partition(f"shards:{per_client}:single"), clients * per_client
    if count > len(labels) or count < len(np.unique(labels)) or clients > len(labels):
        with pytest.raises(ConfigError):
            partition.split(labels, clients, generator(seed))
        return
    split = partition.split(labels, clients, generator(seed))
    assert_covers(split, len(labels))
    for held in split:
        assert len(held) and len(np.unique(labels[held])) <= per_client


def test_single_label_shards_of_mnist():
    """Its counts do not divide by 150: each label gets its share of the 400 shards, to the nearest whole number."""
    counts = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    labels = generator(3).permutation(np.repeat(np.arange(10), counts))
    mixed = parse_partition("shards:2").split(labels, 200, generator())
    assert max(len(np.unique(labels[held])) for held in mixed) > 2, "the reason for the other form"
    split = parse_partition("shards:2:single").split(labels, 200, generator())
    assert max(len(np.unique(labels[held])) for held in split) == 2
    # 5923 / 150 = 39.49, 6742 / 150 = 44.95, …: 394 whole shards, and the six largest remainders.
    shards = Counter(label for held in split for label in labels[held][[0, -1]])
    assert [shards[label] for label in range(10)] == [39, 45, 40, 41, 39, 36, 39, 42, 39, 40]
    assert min(map(len, split)) >= 2 * 145 and max(map(len, split)) <= 2 * 155


@settings(max_examples=60, deadline=None)
@given(labels=labeled, clients=st.integers(1, 20), alpha=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_dirichlet(labels, clients, alpha, seed):
    split = Dirichlet(alpha).split(labels, clients, generator(seed))
    assert len(split) == clients
    assert_covers(split, len(labels))


def test_the_concentration_decides_how_unlike_clients_are():
    labels = np.repeat(np.arange(10), 1000)

    def largest_share(alpha):
        split = Dirichlet(alpha).split(labels, 20, generator())
        return np.mean([np.bincount(labels[held]).max() / len(held) for held in split])

    assert largest_share(0.05) > 0.6 > 0.4 > largest_share(1) > 0.15 > largest_share(1000)


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(2, 7),
    factor=st.integers(1, 4),
    seed=st.integers(0, 1000),
    shuffled=st.booleans(),
    data=st.data(),
)
def test_pairs(classes, factor, seed, shuffled, data):
    clients = classes * factor
    counts = data.draw(st.lists(st.integers(2 * factor, 40), min_size=classes, max_size=classes))
    labels = generator(seed).permutation(np.repeat(np.arange(classes) + 3, counts))
    split = Pairs("shuffled" if shuffled else "by_label").split(labels, clients, generator(seed))
    assert_covers(split, len(labels))
    holders = np.zeros(classes, dtype=int)
    for held in split:
        present = np.unique(labels[held])
        assert len(present) == 2
        holders[present - 3] += 1
        if not shuffled:
            assert np.count_nonzero(np.diff(labels[held])) == 1, "label by label"
    assert set(holders) == {2 * factor}, "every label has as many holders"
    for label in np.unique(labels):
        parts = [np.count_nonzero(labels[held] == label) for held in split if label in labels[held]]
        assert max(parts) - min(parts) <= 1


def test_pairs_of_fed_amd():
    labels = generator(1).permutation(np.repeat(np.arange(10), 6000))
    ordered = parse_partition("pairs").split(labels, 100, generator())
    shuffled = parse_partition("pairs:shuffled").split(labels, 100, generator())
    for held, mixed in zip(ordered, shuffled, strict=True):
        assert len(held) == 600
        assert len(np.unique(labels[held[:300]])) == len(np.unique(labels[held[300:]])) == 1
        assert np.array_equal(np.sort(held), np.sort(mixed))
        assert len(np.unique(labels[mixed[:64]])) == 2


def test_natural():
    groups = [np.array([3, 1]), np.array([0]), np.array([2, 4, 5]), np.array([6])]
    labels = np.zeros(7, dtype=int)
    whole = parse_partition("natural").split(labels, 4, generator(), groups)
    assert [part.tolist() for part in whole] == [[3, 1], [0], [2, 4, 5], [6]]
    chosen = [parse_partition("natural").split(labels, 2, generator(seed), groups) for seed in range(20)]
    for split in chosen:
        positions = [next(i for i, group in enumerate(groups) if group is part) for part in split]
        assert positions == sorted(set(positions))
    assert len({tuple(len(part) for part in split) for split in chosen}) > 1, "the choice depends on the seed"


@pytest.mark.parametrize("text", ["iid", "shards:2", "pairs", "pairs:shuffled", "dirichlet:0.3", "natural"])
def test_the_seed_decides(text):
    labels = np.repeat(np.arange(5), 20)
    groups = np.split(np.arange(100), 50)
    partition = parse_partition(text)
    assert str(partition) == text

    def split(seed):
        return np.concatenate(partition.split(labels, 10, generator(seed), groups)).tolist()

    assert split(1) == split(1)
    assert split(1) != split(2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet", "concentration: required.*write it as dirichlet:CONCENTRATION"),
        ("dirichlet:x", "concentration = 'x': must be a valid number; write it as dirichlet:CONCENTRATION"),
        ("dirichlet:0", "greater than 0"),
        ("dirichlet:-1", "greater than 0"),
        ("dirichlet:nan", "finite"),
        ("dirichlet:inf", "finite"),
        ("shards", "write it as shards:PER_CLIENT"),
        ("shards:2.5", "must be a valid integer; write it as shards:PER_CLIENT"),
        ("shards:0", "greater than 0"),
        ("iid:3", "takes no arguments; write it as iid"),
        ("natural:3", "write it as natural"),
        ("pairs:3", "'by_label' or 'shuffled'; write it as pairs"),
        ("dirichet:0.3", "did you mean 'dirichlet'"),
        ("", "unknown name ''"),
    ],
)
def test_text_that_cannot_be_read(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_partition(text)
    assert "\n" not in str(caught.value)
    assert text in str(caught.value) or text.partition(":")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "labels", "clients", "message"),
    [
        ("iid", np.zeros(5, int), 6, "clients is 6, but the data has only 5 examples"),
        ("iid", np.zeros(5, int), 0, "clients is 0; at least 1"),
        ("dirichlet:1", np.zeros(5, int), 6, "clients is 6"),
        ("shards:3", np.zeros(5, int), 2, "needs 6 shards, but the data has only 5"),
        ("pairs", np.arange(100) % 10, 33, "multiple of 5 clients.*33 is not: use 30 or 35"),
        ("pairs", np.arange(100) % 10, 3, "use 5$"),
        ("pairs", np.arange(100) % 7, 8, "multiple of 7 clients.*use 7 or 14"),
        ("pairs", np.arange(20) % 10, 20, "gives label 0 to 4 of them, but it has only 2"),
        ("pairs", np.zeros(5, int), 2, "at least 2 labels"),
        ("natural", np.zeros(5, int), 2, "no natural clients"),
        ("shards:2", np.zeros(5, np.float32), 2, "'shards:2' needs one class label per example; use iid"),
        ("pairs", np.zeros(5, np.float32), 2, "'pairs' needs one class label"),
        ("dirichlet:0.5", np.zeros((5, 2), int), 2, "'dirichlet:0.5' needs one class label"),
    ],
)
def test_impossible_splits(text, labels, clients, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_partition(text).split(labels, clients, generator())
    assert "\n" not in str(caught.value)


def test_more_clients_than_natural_ones():
    with pytest.raises(ConfigError, match="clients is 3, but the data has only 2 natural clients"):
        parse_partition("natural").split(np.zeros(2), 3, generator(), [np.array([0]), np.array([1])])


def test_regression_data_can_be_divided_iid():
    assert_covers(parse_partition("iid").split(np.linspace(0, 1, 10), 3, generator()), 10)
