"""The running mean: the same to the bit, whoever does the adding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from laconic.compression import DensePayload, Payload, SparsePayload, SumPayload
from laconic.federation.aggregation import RunningMean, mean_loss

SIZE = 3_000_000


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def sparse(seed: int, dtype: torch.dtype) -> SparsePayload:
    generator = np.random.default_rng(seed)
    positions = torch.from_numpy(np.flatnonzero(generator.random(SIZE) < 1 / 30))
    return SparsePayload(positions, torch.from_numpy(generator.standard_normal(len(positions))).to(dtype), SIZE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    one, two, three, four = (sparse(seed, dtype) for seed in range(4))
    payloads: list[Payload] = [one, two, DensePayload(three.dense()), SumPayload(one, four), four, two, one]
    expected = torch.zeros(SIZE, dtype=dtype)
    for number, payload in enumerate(payloads, 1):
        if isinstance(payload, DensePayload):
            expected.add_(payload.values, alpha=number)  # torch does not round in between, kernels do
            continue
        for part in [payload.first, payload.second] if isinstance(payload, SumPayload) else [payload]:
            expected += number * part.dense()
    expected /= sum(range(1, len(payloads) + 1))
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        mean = RunningMean(SIZE, dtype, torch.device("cpu"))
        for number, payload in enumerate(payloads, 1):
            mean.add(payload, number)
        found = mean.mean()
        assert found is not None and torch.equal(found, expected)


def test_clients_without_counted_targets_do_not_hide_the_loss_of_others() -> None:
    assert mean_loss([(0.5, 4.0), (0.0, 0.0), (0.0, 0.0)], limit=5.0) == 0.5


def test_nothing_folded_is_no_mean() -> None:
    assert RunningMean(3, torch.float32, torch.device("cpu")).mean() is None


def test_what_goes_wrong_in_another_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("broken")

    torch.set_num_threads(2)
    mean = RunningMean(SIZE, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(SparsePayload, "pieces", lambda *_: [fail, fail])
    with pytest.raises(OSError, match="broken"):
        mean.add(sparse(0, torch.float32), 1.0)
        mean.mean()
