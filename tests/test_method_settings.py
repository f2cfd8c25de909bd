"""What methods settle by themselves for the parts beside them, and which settings they refuse."""

from __future__ import annotations

import pytest

import laconic
from laconic.errors import ConfigError
from laconic.run.config import load_config
from tests.problems import Setting

SETTING = Setting(rounds=4)


def feedback(text: str) -> laconic.ErrorFeedback:
    return laconic.ErrorFeedback(laconic.parse_compressor(text))


def configured(**options: object) -> laconic.Algorithm:
    """The algorithm that the command line would run."""
    return load_config(None, {"algorithm": "fed_comgate", **options}, {}).build_algorithm()


def test_the_global_memory_is_refused_where_there_is_none_to_take_the_mean_out_of() -> None:
    without = [
        laconic.Compressed(laconic.parse_compressor("top_k:0.1")),
        laconic.Lazy(laconic.parse_compressor("top_k:0.1"), threshold=0.5),
        laconic.Lazy(threshold=0.5),
    ]
    for uplink in without:
        with pytest.raises(ConfigError, match=r"method\.memory = 'global'.*has no memory"):
            SETTING.simulation(laconic.fed_gate(uplink=uplink, method={"memory": "global"}))
    dense, lazy = laconic.parse_compressor("dense"), laconic.Lazy(laconic.parse_compressor("sign"), memory=True)
    for uplink in (laconic.DenseUplink(), laconic.Compressed(dense), feedback("sign"), lazy):
        SETTING.simulation(laconic.fed_gate(uplink=uplink, method={"memory": "global"})).close()


@pytest.mark.parametrize(
    ("compressor", "rate"), [("top_k:0.1", 0.1), ("sign", 0.1), ("heavy_sign:0.3", 0.1), ("top_k:0.2+qsgd:4", 0.1)]
)
def test_fed_comgate_remembers_what_a_biased_compressor_leaves_out(compressor: str, rate: float) -> None:
    for algorithm in (laconic.fed_comgate(compressor=compressor), configured(compressor=compressor)):
        assert isinstance(algorithm.uplink, laconic.ErrorFeedback)
        assert algorithm.fitted().method.tracker_rate == pytest.approx(rate)
    bare = [
        configured(compressor=compressor, memory=False),
        laconic.fed_comgate(uplink={"name": "compressed", "compressor": compressor}),
        laconic.fed_comgate(uplink=laconic.Compressed(laconic.parse_compressor(compressor))),
    ]
    for algorithm in bare:
        assert isinstance(algorithm.uplink, laconic.Compressed)
        assert algorithm.fitted().method.tracker_rate == 1


@pytest.mark.parametrize("compressor", ["uniform:4", "uniform:8,rounding=authors", "qsgd:4", "random_k:0.2", "dense"])
def test_fed_comgate_quantises_without_memory(compressor: str) -> None:
    algorithm = laconic.fed_comgate(compressor=compressor)
    assert isinstance(algorithm.uplink, laconic.Compressed)
    assert algorithm.fitted().method.tracker_rate == 1
