"""What methods settle by themselves for the parts beside them, and which settings they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import laconic
from laconic.algorithms.recipes import make
from laconic.core.errors import ConfigError
from laconic.run.config import load_config
from tests.compression.test_compressors import layout_of
from tests.problems import Setting

SETTING = Setting(rounds=4)


def feedback(text: str) -> laconic.Compressed:
    return laconic.Compressed(text, memory=True)


def configured(**options: object) -> laconic.Algorithm:
    """The algorithm that the command line would run."""
    return load_config(None, {"algorithm": "fed_comgate", **options}, {}).build_algorithm()


def test_the_global_memory_is_refused_where_there_is_none_to_take_the_mean_out_of() -> None:
    without = [
        laconic.Compressed("top_k:0.1"),
        laconic.Lazy("top_k:0.1", threshold=0.5),
        laconic.Lazy(threshold=0.5),
    ]
    for uplink in without:
        with pytest.raises(ConfigError, match=r"method\.memory = 'global'.*has no memory"):
            SETTING.simulation(laconic.fed_gate(uplink=uplink, method={"memory": "global"}))
    dense, lazy = "dense", laconic.Lazy("sign", memory=True)
    for uplink in (laconic.DenseUplink(), laconic.Compressed(dense), feedback("sign"), lazy):
        SETTING.simulation(laconic.fed_gate(uplink=uplink, method={"memory": "global"})).close()


@pytest.mark.parametrize(
    ("compressor", "rate"), [("top_k:0.1", 0.1), ("sign", 0.1), ("heavy_sign:0.3", 0.1), ("top_k:0.2+qsgd:4", 0.1)]
)
def test_fed_comgate_remembers_what_a_biased_compressor_leaves_out(compressor: str, rate: float) -> None:
    for algorithm in (laconic.fed_comgate(compressor=compressor), configured(compressor=compressor)):
        assert isinstance(algorithm.uplink, laconic.Compressed)
        assert algorithm.resolve().method.beta(layout_of(1000)) == pytest.approx(rate)
    bare = [
        configured(compressor=compressor, memory=False),
        laconic.fed_comgate(uplink={"name": "compressed", "compressor": compressor}),
        laconic.fed_comgate(uplink=laconic.Compressed(compressor)),
    ]
    for algorithm in bare:
        assert isinstance(algorithm.uplink, laconic.Compressed)
        assert algorithm.resolve().method.tracker_rate == 1


@pytest.mark.parametrize("compressor", ["uniform:4", "uniform:8,rounding=authors", "qsgd:4", "dense"])
def test_fed_comgate_quantizes_without_memory(compressor: str) -> None:
    algorithm = laconic.fed_comgate(compressor=compressor)
    assert isinstance(algorithm.uplink, laconic.Compressed)
    assert algorithm.resolve().method.tracker_rate == 1


@pytest.mark.parametrize(("compressor", "beta"), [("random_k:1/4@model", 1 / 4), ("stochastic:1/20@model", 1 / 20)])
def test_sparse_updates_without_memory_move_the_trackers_slowly(compressor: str, beta: float) -> None:
    """A rate of 1 diverges (test_quadratic.py)."""
    method = laconic.scaffnew(compressor=compressor, memory=False).resolve().method
    assert method.beta(laconic.Layout.of(torch.nn.Linear(99, 8))) == pytest.approx(beta)


@pytest.mark.parametrize("name", ["diana", "marina"])
def test_methods_without_memory_refuse_a_biased_compressor(name: str) -> None:
    for compressor in ("sign", "top_k:0.1", "heavy_sign:0.1", "top_k:0.5+qsgd:4", "uniform:4,rounding=nearest"):
        for uplink in (laconic.Compressed(compressor), feedback(compressor)):
            with pytest.raises(ConfigError, match=f"{name} needs an unbiased compressor"):
                SETTING.simulation(make(name, uplink=uplink))
    for compressor in ("dense", "qsgd:4", "uniform:4", "random_k:0.2", "random_k:0.5+qsgd:4"):
        SETTING.simulation(make(name, compressor=compressor)).close()


@pytest.mark.parametrize(
    ("compressor", "alpha"), [("dense", 1.0), ("random_k:1/3@model", 1 / 3), ("uniform:4@layer", 1 / (1 + 18 / 15**2))]
)
def test_the_shifts_of_diana_follow_the_variance_of_its_compressor(compressor: str, alpha: float) -> None:
    """The problem has 18 weights and 3 biases."""
    own, given = laconic.diana(compressor=compressor), laconic.diana(compressor=compressor, alpha=alpha)
    for mine, theirs in zip(SETTING.models(own), SETTING.models(given), strict=True):
        assert np.abs(mine - theirs).max() < 1e-12
    if alpha < 0.9:
        other = SETTING.models(own.replace(alpha=1.0))
        assert np.abs(SETTING.models(own)[-1] - other[-1]).max() > 1e-6
