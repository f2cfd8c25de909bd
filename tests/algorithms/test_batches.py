"""Batches (algorithms.md): steps give full batches across passes; epochs and the fixed order keep the small last one."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from laconic.algorithms.methods.batches import positions
from laconic.algorithms.methods.local_sgd import LocalSGD

SIZE = st.integers(1, 40)
BATCH = st.integers(1, 50)
COUNT = st.integers(1, 12)
ORDER = st.sampled_from(["shuffled", "fixed"])


def batches(size: int, batch_size: int, steps: int | None, epochs: int | None, order: str, seed: int = 0) -> list:
    made = positions(size, batch_size, steps, epochs, order, np.random.default_rng(seed))
    return [batch.tolist() for batch in made]


@given(SIZE, BATCH, COUNT)
def test_shuffled_steps_have_exactly_the_smaller_of_batch_size_and_data(size: int, batch: int, steps: int) -> None:
    made = batches(size, batch, steps, None, "shuffled")
    assert [len(each) for each in made] == [min(batch, size)] * steps


@given(SIZE, BATCH, COUNT)
def test_a_batch_that_reaches_the_end_of_a_pass_continues_in_the_next(size: int, batch: int, steps: int) -> None:
    together = [position for each in batches(size, batch, steps, None, "shuffled") for position in each]
    for start in range(0, len(together), size):
        one_pass = together[start : start + size]
        assert len(set(one_pass)) == len(one_pass)
        assert set(one_pass) <= set(range(size))
        if len(one_pass) == size:
            assert set(one_pass) == set(range(size))


@given(SIZE, BATCH, COUNT, ORDER)
def test_epochs_are_whole_passes_that_keep_the_small_last_batch(size: int, batch: int, epochs: int, order: str) -> None:
    made = batches(size, batch, None, epochs, order)
    lengths = [batch] * (size // batch) + ([size % batch] if size % batch else [])
    assert [len(each) for each in made] == lengths * epochs
    each_pass = len(lengths)
    for start in range(0, len(made), each_pass):
        assert sorted(chain(*made[start : start + each_pass])) == list(range(size))


@given(SIZE, BATCH, COUNT)
def test_the_fixed_order_is_that_of_the_data_and_starts_again_after_the_small_last_batch(
    size: int, batch: int, steps: int
) -> None:
    one_pass = [list(range(start, min(start + batch, size))) for start in range(0, size, batch)]
    expected = [one_pass[step % len(one_pass)] for step in range(steps)]
    assert batches(size, batch, steps, None, "fixed") == expected
    assert batches(size, batch, steps, None, "fixed", seed=1) == expected


def test_every_pass_is_shuffled_again() -> None:
    first, second = batches(30, 30, 2, None, "shuffled")
    assert first != second
    first, second = batches(30, 30, None, 2, "shuffled")
    assert first != second


def test_another_generator_gives_another_order_and_the_same_one_the_same() -> None:
    assert batches(30, 7, 5, None, "shuffled") == batches(30, 7, 5, None, "shuffled")
    assert batches(30, 7, 5, None, "shuffled") != batches(30, 7, 5, None, "shuffled", seed=1)


@given(SIZE, BATCH, COUNT)
def test_the_papers_count_steps_times_batch_size_and_the_data_for_epochs(size: int, batch: int, count: int) -> None:
    assert LocalSGD(local_steps=count, batch_size=batch).nominal_gradients(size) == count * batch
    taken = sum(len(each) for each in batches(size, batch, None, count, "shuffled"))
    assert LocalSGD(local_epochs=count, batch_size=batch).nominal_gradients(size) == count * size == taken
