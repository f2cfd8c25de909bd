"""The whole objective, its gradient and the clients' likeness, against the same numbers by hand in double precision."""

from __future__ import annotations

import numpy as np
import pytest

import laconic
from laconic.core.layout import Layout
from tests.problems import CLASSES, FEATURES, SIZES, client_arrays, data, gradient, module


def loss(client: int, w: np.ndarray) -> float:
    inputs, labels = client_arrays()[client]
    logits = inputs @ w[: FEATURES * CLASSES].reshape(CLASSES, FEATURES).T + w[FEATURES * CLASSES :]
    largest = logits.max(1, keepdims=True)
    normalizer = np.log(np.exp(logits - largest).sum(1)) + largest[:, 0]
    return float((normalizer - logits[np.arange(len(labels)), labels]).mean())


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_it_is_the_mean_over_all_clients(weighting: str) -> None:
    result = laconic.simulate(
        laconic.fed_avg(local_lr=0.1, local_steps=3, batch_size=4),
        laconic.classification(module()),
        data(),
        participants=4,
        rounds=3,
        eval_every=3,
        weighting=weighting,
        full_gradient=True,
        numerics={"dtype": "float64"},
    )
    w = Layout.of(result.model).flatten(result.model).double().numpy()
    gradients = np.stack([gradient(client, w, np.arange(size)) for client, size in enumerate(SIZES)])
    weights = np.ones(len(SIZES)) if weighting == "uniform" else np.array(SIZES, dtype=float)
    mean = weights @ gradients / weights.sum()
    last = result.history[-1]
    assert last["gradient_norm_squared"] == pytest.approx(float(mean @ mean), rel=1e-9)
    losses = [loss(client, w) for client in range(len(SIZES))]
    assert last["objective"] == pytest.approx(float(weights @ losses / weights.sum()), rel=1e-9)
