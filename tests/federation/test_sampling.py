"""Who takes part.

The seeds are fixed, so these tests always give the same answer. Each statistical bound is set so that a right sampler would
pass it with another seed but for one in a million.
"""

from __future__ import annotations

import functools
from collections import Counter
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import laconic
from laconic.core.errors import LaconicWarning
from laconic.core.randomness import Randomness
from laconic.federation.sampling import participants
from laconic.federation.settings import Sampling

# What chi-square passes with a probability of at most 1e-6, by degrees of freedom.
CHI_SQUARE = {3: 30.67, 4: 33.38, 9: 45.08}
# A normal deviate passes this one time in 1.7 million.
DEVIATIONS = 5.0


def draw(kind: Sampling, sizes: list[int], count: int, rounds: int, seed: int = 0) -> list[list[int]]:
    randomness = Randomness(seed)
    return [participants(kind, len(sizes), count, t, randomness, lambda: np.array(sizes)) for t in range(rounds)]


def chi_square(observed: list[int], probabilities: list[float]) -> float:
    expected = sum(observed) * np.asarray(probabilities)
    return float(((np.asarray(observed) - expected) ** 2 / expected).sum())


def successive(sizes: list[int], count: int) -> dict[tuple[int, ...], float]:
    """The probability of every set when clients are drawn one after the other, each in proportion to its size."""
    chances: dict[tuple[int, ...], float] = Counter()
    for order in permutations(range(len(sizes)), count):
        chance, left = 1.0, float(sum(sizes))
        for client in order:
            chance *= sizes[client] / left
            left -= sizes[client]
        chances[tuple(sorted(order))] += chance
    return chances


def test_given_probabilities_include_each_client_independently() -> None:
    """FedCAMS, section 4.2: p_i = w_i, with a varying number of participants."""
    chances, rounds = (0.0, 0.1, 0.5, 0.9, 1.0), 4000
    found = draw(chances, [1] * 5, 2, rounds)
    counts = Counter(client for chosen in found for client in chosen)
    assert counts[0] == 0 and counts[4] == rounds
    for client, p in enumerate(chances):
        assert abs(counts[client] - rounds * p) <= DEVIATIONS * np.sqrt(rounds * p * (1 - p))
    both = sum({1, 2} <= set(chosen) for chosen in found)
    assert abs(both - rounds * 0.05) <= DEVIATIONS * np.sqrt(rounds * 0.05 * 0.95)
    assert {len(chosen) for chosen in found} == {1, 2, 3, 4}


def test_given_probabilities_are_a_setting() -> None:
    data = laconic.data.load("digits", clients=4)
    run = functools.partial(laconic.simulate, "fed_avg", "logistic", data, rounds=3, local_steps=1, diagnostics=True)
    for spelling in ((1, 0, 1, 0.5), "1,0,1,0.5"):
        history = run(sampling=spelling).history
        assert all({0, 2} <= {*record["clients"]["train"]} <= {0, 2, 3} for record in history)
    for wrong, message in (((0.5,), "one for each"), ((0.5, 2, 0, 0), "less than or equal to 1")):
        with pytest.raises(laconic.ConfigError, match=message):
            run(sampling=wrong)
    with pytest.raises(laconic.ConfigError, match="add up to 2"):
        run(sampling=(1, 0, 1, 0.5), participants=3)
    with pytest.raises(laconic.ConfigError, match="given probabilities"):
        run(sampling=(1, 0, 1, 0.5), defense={"noise": 1.0, "clip": 1.0})


def test_size_counts_once() -> None:
    """Weighted sampling already prefers large clients, so the weights of FedAvg by size would count it again."""
    data = laconic.data.load("digits", clients=4)

    def weighting(**settings) -> str:
        result = laconic.simulate("fed_avg", "logistic", data, rounds=1, local_steps=1, **settings)
        return result.settings.weighting

    assert weighting(sampling="weighted", participants=2) == weighting(sampling="0.1,1,0.5,1") == "uniform"
    assert weighting(sampling="weighted") == weighting(sampling="0.9,0.9,0.9,0.9") == "size"
    assert weighting(sampling="poisson", participants=2) == weighting(participants=2) == "size"
    with pytest.warns(LaconicWarning, match="'weighted' count a client's size twice; leave weighting out"):
        assert weighting(sampling="weighted", participants=2, weighting="size") == "size"


@given(
    st.sampled_from(["uniform", "weighted"]),
    st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    st.data(),
    st.integers(0, 10**6),
)
def test_participants_are_distinct_ascending_and_as_many_as_asked(
    kind: Sampling, sizes: list[int], data: st.DataObject, round: int
) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    chosen = participants(kind, len(sizes), count, round, Randomness(1), lambda: np.array(sizes))
    assert len(chosen) == count
    assert chosen == sorted(set(chosen))
    assert all(type(client) is int and 0 <= client < len(sizes) for client in chosen)


def test_uniform_sampling_makes_every_set_equally_likely() -> None:
    counts = Counter(tuple(chosen) for chosen in draw("uniform", [1] * 5, 2, 5000))
    sets = list(combinations(range(5), 2))
    assert chi_square([counts[each] for each in sets], [0.1] * 10) < CHI_SQUARE[9]


def test_uniform_sampling_does_not_look_at_sizes() -> None:
    assert draw("uniform", [1, 1, 1, 1000], 2, 50) == draw("uniform", [1, 1, 1, 1], 2, 50)


def test_weighted_sampling_of_one_follows_the_sizes() -> None:
    sizes = [1, 2, 3, 4, 10]
    counts = Counter(chosen[0] for chosen in draw("weighted", sizes, 1, 6000))
    assert chi_square([counts[client] for client in range(5)], [size / 20 for size in sizes]) < CHI_SQUARE[4]


def test_weighted_sampling_of_several_draws_one_after_the_other() -> None:
    sizes = [1, 2, 3, 10]
    chances = successive(sizes, 3)
    assert sum(chances.values()) == pytest.approx(1)
    counts = Counter(tuple(chosen) for chosen in draw("weighted", sizes, 3, 6000))
    assert chi_square([counts[each] for each in chances], list(chances.values())) < CHI_SQUARE[3]


def test_rounds_are_drawn_independently_and_seeds_differ() -> None:
    first = draw("uniform", [1] * 10, 3, 3000)
    both = sum(0 in one and 0 in other for one, other in pairwise(first))
    # A client takes part in two rounds in a row with probability 0.09; neighboring pairs overlap, which at most
    # doubles the variance.
    assert abs(both - 0.09 * 2999) < DEVIATIONS * np.sqrt(2 * 2999 * 0.09 * 0.91)
    assert first[:20] != draw("uniform", [1] * 10, 3, 20, seed=1)
    assert first[:20] == draw("uniform", [1] * 10, 3, 20)


def test_when_all_take_part_nobody_asks_for_sizes() -> None:
    def sizes() -> np.ndarray:
        raise AssertionError

    assert participants("weighted", 4, 4, 0, Randomness(0), sizes) == [0, 1, 2, 3]


def test_a_round_costs_what_its_participants_cost_and_not_what_the_population_does() -> None:
    """Anything that went through all clients, or kept a byte of each, would not come back from this."""
    chosen = participants("uniform", 10**15, 1000, 3, Randomness(0), lambda: pytest.fail("sizes are not needed"))
    assert len(set(chosen)) == 1000 and chosen[0] >= 0 and chosen[-1] < 10**15
