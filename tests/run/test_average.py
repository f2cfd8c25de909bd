"""The moving average of the model is evaluated and saved; training does not depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import laconic
from laconic.run import load_config
from laconic.run.driver import run_config

SMALL = {"participants": 3, "threads": 1, "eval_every": 1, "model": "logistic", "numerics": {"strategy": "loop"}}


class Models(laconic.Callback):
    def __init__(self) -> None:
        self.models: list[torch.Tensor] = []
        self.final = torch.zeros(0)

    def on_round_end(self, run: laconic.Run, record: dict) -> None:
        self.models.append(run.training.server.model.double())
        parameters = run.training.trained().parameters()
        self.final = torch.cat([parameter.detach().double().flatten() for parameter in parameters])


def run(folder: Path, rounds: int, average: float, resume: bool = False) -> tuple[Models, list[dict]]:
    seen = Models()
    settings = {"rounds": rounds} if resume else SMALL | {"rounds": rounds, "optimizer": {"average": average}}
    finished = run_config(load_config(None, settings), folder, [seen], resume=resume)
    return seen, finished.result.history


def test_the_average_is_the_formula_and_changes_no_training(tmp_path: Path) -> None:
    """The weight of the newest model is 2 / (t + 1), at least 1 / 3."""
    plain, one = run(tmp_path / "plain", 7, 1)
    averaged, other = run(tmp_path / "averaged", 7, 3)
    for ours, theirs in zip(plain.models, averaged.models, strict=True):
        assert torch.equal(ours, theirs)
    expected = torch.zeros_like(plain.models[0])
    for number, model in enumerate(plain.models, start=1):
        expected += max(2 / (number + 1), 1 / 3) * (model - expected)
    torch.testing.assert_close(averaged.final, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(plain.final, plain.models[-1])
    assert [record["bytes_up"] for record in one] == [record["bytes_up"] for record in other]
    assert one[-1]["loss"] != other[-1]["loss"]


def test_an_average_over_a_share_of_the_rounds_is_the_formula(tmp_path: Path) -> None:
    """The weight of the newest model is m / (t + m - 1) for the share 1 / m; here m = 4."""
    averaged, _ = run(tmp_path / "share", 7, 0.25)
    expected = torch.zeros_like(averaged.models[0])
    for number, model in enumerate(averaged.models, start=1):
        expected += 4 / (number + 3) * (model - expected)
    torch.testing.assert_close(averaged.final, expected, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_continues_the_average(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", 6, 4)
    run(tmp_path / "parts", 3, 4)
    rest, _ = run(tmp_path / "parts", 6, 4, resume=True)
    assert torch.equal(rest.final, whole.final)


@pytest.mark.parametrize("average", [0, 1.5])
def test_an_average_of_no_rounds_or_of_a_part_of_a_round_is_refused(average: float) -> None:
    with pytest.raises(laconic.ConfigError, match="average"):
        laconic.fed_avg(average=average)
