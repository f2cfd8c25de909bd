"""Targets and rankings by any metric: which value is better, when a target is reached, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import laconic
from laconic.core.errors import ConfigError
from laconic.report.gather import gather
from laconic.run.target import Target, lower_is_better, reached

RECORDS = [
    {"round": r, "loss": 2 - r / 10, "f1": r / 10, "bytes_up": r, "bytes_down": r, "seconds": r} for r in range(1, 11)
]
SETTINGS = {
    "rounds": 6,
    "eval_every": 1,
    "participants": 3,
    "threads": 1,
    "local_steps": 2,
    "numerics": {"strategy": "loop"},
}
CONTENDERS = {"slow": laconic.fed_avg(local_lr=1e-4), "fast": laconic.fed_avg(local_lr=0.1)}


class Wrong:
    """The share of wrong predictions, with the interface of torchmetrics. Its name does not say that it should be low."""

    higher_is_better = False

    def __init__(self) -> None:
        self.reset()

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.wrong += int((outputs.argmax(-1) != targets).sum())
        self.count += len(targets)

    def compute(self) -> float:
        return self.wrong / self.count

    def reset(self) -> None:
        self.wrong = self.count = 0


def test_a_metric_object_says_which_value_is_better_and_else_its_name():
    metrics = {"share": Wrong(), "score": lambda outputs, targets: 0.0}
    assert lower_is_better("share", metrics) and not lower_is_better("share")
    assert lower_is_better("worst_client_share", metrics) and lower_is_better("share_3", metrics)
    assert not lower_is_better("score", metrics) and lower_is_better("client_score_spread", metrics)
    assert lower_is_better("val_loss", metrics) and not lower_is_better("accuracy", metrics)
    assert lower_is_better("err") and lower_is_better("worst_client_err_2") and not lower_is_better("interrater")
    torchmetrics = pytest.importorskip("torchmetrics", reason="the extra `metrics` is not installed")
    kinds = torchmetrics.classification
    hamming, f1 = kinds.MulticlassHammingDistance(3), kinds.MulticlassF1Score(3)
    assert lower_is_better("h", {"h": hamming}) and not lower_is_better("f1_loss", {"f1_loss": f1})
    collection = torchmetrics.MetricCollection({"h": hamming, "f": f1})
    assert lower_is_better("h", {"": collection}) and not lower_is_better("f", {"": collection})


def test_a_target_of_any_metric_is_reached_from_its_own_side():
    assert reached(RECORDS, Target.of("f1=0.5")).rounds == 7
    assert reached(RECORDS, Target.of("loss=1.5")).rounds == 7
    assert reached(RECORDS, Target.of("loss=1.0")) is None and reached(RECORDS, Target(0.5)) is None
    assert str(Target.of(0.9)) == "90 %" and str(Target.of("f1=0.8")) == "f1 0.8"
    for wrong in ("f1=good", "f1", 90, "accuracy=90"):
        with pytest.raises(ConfigError, match="target = "):
            Target.of(wrong)


def test_a_comparison_by_another_metric(tmp_path: Path):
    options = {**SETTINGS, "metrics": {"share": Wrong()}}
    comparison = laconic.compare(
        CONTENDERS, "logistic", "digits", target="share=0.75", rank_by="share", out=tmp_path / "all", **options
    )
    assert [row[1] for row in comparison.table().rows] == ["fast", "slow"]
    assert comparison.target == Target(0.75, "share", lower=True)
    fast, slow = comparison.summaries()
    expected = reached(comparison["fast"].history, Target(0.75, "share", lower=True))
    assert fast["bytes_to_target"] == expected.bytes and slow["bytes_to_target"] is None
    assert (fast["target"], fast["target_metric"]) == (0.75, "share") and "both to share 0.75" in repr(comparison)
    comparison.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    content = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert content["target"] == {"value": 0.75, "metric": "share", "lower": True} and content["rank_by"] == "share"
    run = next(run for run in content["runs"] if run["label"] == "fast")
    assert next(each for each in run["milestones"] if each[0] <= 0.75)[1] == expected.rounds
    with pytest.raises(ConfigError, match=r"unknown ranking .f1.: .*loss"):
        gather([tmp_path / "all" / "fast"], rank_by="f1")
    with pytest.raises(ConfigError, match="metric 'f1' on test examples, but the run measures only"):
        gather([tmp_path / "all" / "fast"], Target.of("f1=0.5"))


def test_rankings_by_loss_and_by_clients_and_what_is_not_measured():
    for by in ("loss", "worst_client_accuracy"):
        comparison = laconic.compare(CONTENDERS, "logistic", "digits", rank_by=by, client_eval=0.2, **SETTINGS)
        assert [row[1] for row in comparison.table().rows] == ["fast", "slow"], by
    for wrong, said in (
        ({"rank_by": "f1"}, "unknown ranking 'f1'.*allowed: accuracy, bytes, loss"),
        ({"target": "f1=0.5"}, "the metric 'f1' on test examples, but the run measures only: accuracy, loss"),
    ):
        with pytest.raises(ConfigError, match=said):
            laconic.compare(CONTENDERS, "logistic", "digits", **wrong, **SETTINGS)


def test_early_stopping_asks_the_metric():
    stopping = laconic.EarlyStopping("share", patience=100)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    laconic.simulate("fed_avg", model, "digits", callbacks=[stopping], metrics={"share": Wrong()}, **SETTINGS)
    assert stopping.mode == "min"
    assert laconic.EarlyStopping("share", mode="max").mode == "max"
