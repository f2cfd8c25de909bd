"""Randomness is named: a key is a stream, and no two keys share one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.core.randomness import Draw, Randomness

KEYS = st.tuples(
    st.integers(0, 2**63),
    st.sampled_from(["batches", "participants", "dropout/0", "dropout/1", "partition"]),
    st.integers(-1, 10_000),
    st.integers(-1, 10**9),
)


@given(KEYS, KEYS)
def test_keys_are_equal_exactly_when_seed_purpose_round_and_client_are(one: tuple, other: tuple) -> None:
    first, second = (Randomness(seed).key(purpose, round, client) for seed, purpose, round, client in (one, other))
    assert (first == second) == (one == other)
    assert len(first) == 16


@given(KEYS)
def test_the_same_key_gives_the_same_draws(key: tuple) -> None:
    seed, *name = key
    one, other = Randomness(seed), Randomness(seed)
    assert np.array_equal(one.numpy(*name).random(5), other.numpy(*name).random(5))
    assert one.integer(*name) == other.integer(*name)


@pytest.mark.parametrize(
    "other",
    [
        (Randomness(1), "batches", 3, 5),
        (Randomness(0), "dropout", 3, 5),
        (Randomness(0), "batches", 4, 5),
        (Randomness(0), "batches", 3, 6),
        (Randomness(0), "batches", 3, -1),
        (Randomness(0), "batches", -1, 5),
    ],
    ids=["seed", "purpose", "round", "client", "no client", "no round"],
)
def test_one_difference_in_the_key_gives_an_unrelated_stream(other: tuple) -> None:
    randomness, *name = other
    first = Randomness(0).numpy("batches", 3, 5).standard_normal(4000)
    second = randomness.numpy(*name).standard_normal(4000)
    # The correlation of independent streams has deviation 1/sqrt(4000): five of them are passed by one seed in 1.7 million.
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(4000)
    assert not np.isin(first, second).any()
    assert Randomness(0).integer("batches", 3, 5) != randomness.integer(*name)


def test_drawing_from_one_stream_leaves_the_others_as_they_were() -> None:
    randomness = Randomness(3)
    alone = randomness.numpy("batches", 1, 2).random(3)
    randomness.numpy("batches", 1, 1).random(1000)
    torch.rand(10)
    assert np.array_equal(randomness.numpy("batches", 1, 2).random(3), alone)


def test_integers_of_many_clients_are_distinct_seeds_of_63_bits() -> None:
    seeds = {Randomness(0).integer("dropout/0", 7, client) for client in range(5000)}
    assert len(seeds) == 5000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_names_of_draws_are_frozen() -> None:
    # A changed value changes results that people have published. New names may be added; these stay.
    assert {draw.name: draw.value for draw in Draw} == {
        "ANCHOR": "anchor",
        "ATTACKERS": "attackers",
        "AUGMENTATION": "augmentation",
        "BANDWIDTH_DOWN": "network/down",
        "BANDWIDTH_UP": "network/up",
        "BATCHES": "batches",
        "CLIENT_EVALUATION": "client evaluation",
        "CRASH": "fault/crash",
        "CRASH_MOMENT": "fault/crash moment",
        "DIAGNOSTICS": "diagnostics",
        "DIRECTION": "direction",
        "DOWNLINK": "downlink",
        "DOWNLINK_MEAN": "downlink/MEAN",
        "DOWNLINK_STREAM": "downlink/{}",
        "DROP": "fault/drop",
        "DROPOUT": "dropout",
        "DUPLICATE": "fault/duplicate",
        "FIRST_LARGE_BATCH": "first large batch",
        "HELD_OUT": "held out",
        "INITIAL_MODEL": "initial model",
        "LARGE_BATCH": "large batch",
        "LATE": "fault/late",
        "LATENCY": "network/latency",
        "LOCAL_STEPS": "local steps",
        "LOSE_STATE": "fault/lose_state",
        "ONE_OF_ANSWERED": "one of answered",
        "OWN_TRAINING": "own training",
        "PARTICIPANTS": "participants",
        "PARTITION": "partition",
        "PRIVACY_NOISE": "privacy noise",
        "RENEWAL": "renewal",
        "STAND_INS": "stand-ins",
        "SUBSPACE": "subspace",
        "UPLINK": "uplink",
        "UPLINK_STREAM": "uplink/{}",
    }


def test_one_key_has_the_bytes_that_it_always_had() -> None:
    assert Randomness(7).key(Draw.BATCHES, round=3, client=2).hex() == "62531d061a5dee6aaeef490a710beb81"
    assert (
        Randomness(7).key(Draw.UPLINK_STREAM.format("CONTROL"), round=3, client=2).hex()
        == "445a6db7e167d475642c7e5452254641"
    )
