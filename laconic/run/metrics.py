"""Metrics by name for the command line: `--metrics f1,auroc`. They are metrics of torchmetrics (extra `metrics`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from laconic.core.errors import ConfigError, unknown_name
from laconic.core.task import Metric
from laconic.data.federated import Kind

Make = Callable[[Any, int | None], Metric]
"""Creates a metric from the module torchmetrics and the number of classes."""


class OfProbabilities(nn.Module):
    """A metric of class probabilities. torchmetrics would take logits that happen to lie in [0, 1] for probabilities."""

    def __init__(self, metric: nn.Module) -> None:
        super().__init__()
        self.metric: Any = metric

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add the logits and targets of a batch."""
        self.metric.update(outputs.softmax(-1), targets)

    def compute(self) -> Any:
        """The value over all batches since the last reset."""
        return self.metric.compute()

    def reset(self) -> None:
        """Forget all batches."""
        self.metric.reset()


def _multiclass(name: str, torchmetrics: Any, classes: int | None, **options: Any) -> Metric:
    return OfProbabilities(getattr(torchmetrics.classification, f"Multiclass{name}")(num_classes=classes, **options))


def _plain(name: str, torchmetrics: Any, classes: int | None, **options: Any) -> Metric:
    metric: Metric = getattr(torchmetrics, name)(**options)
    return metric


_CLASSIFICATION: dict[str, Make] = {
    "f1": partial(_multiclass, "F1Score", average="macro"),
    "precision": partial(_multiclass, "Precision", average="macro"),
    "recall": partial(_multiclass, "Recall", average="macro"),
    "balanced_accuracy": partial(_multiclass, "Accuracy", average="macro"),
    "top5_accuracy": partial(_multiclass, "Accuracy", average="micro", top_k=5),
    "auroc": partial(_multiclass, "AUROC", average="macro"),
    "average_precision": partial(_multiclass, "AveragePrecision", average="macro"),
    "matthews": partial(_multiclass, "MatthewsCorrCoef"),
    "kappa": partial(_multiclass, "CohenKappa"),
    "calibration_error": partial(_multiclass, "CalibrationError"),
    "class_accuracy": partial(_multiclass, "Accuracy", average="none"),
}
_REGRESSION: dict[str, Make] = {
    "r2": partial(_plain, "R2Score"),
    "rmse": partial(_plain, "MeanSquaredError", squared=False),
    "pearson": partial(_plain, "PearsonCorrCoef"),
    "spearman": partial(_plain, "SpearmanCorrCoef"),
}
NAMES: dict[Kind, dict[str, Make]] = {
    "classification": _CLASSIFICATION,
    "regression": _REGRESSION,
    "next_token": {name: _CLASSIFICATION[name] for name in ("f1", "top5_accuracy", "calibration_error")},
}
"""The metrics of each kind of task. Averages over classes are macro averages."""


def metrics_by_name(names: str, kind: Kind, classes: int | None) -> dict[str, Metric]:
    """The metrics of a list of names separated by commas."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in NAMES[kind]:
            raise unknown_name("metric", name, NAMES[kind])
    try:
        import torchmetrics  # an extra
    except ImportError:
        raise ConfigError("metrics: needs torchmetrics: pip install 'laconic[metrics]'") from None
    return {name: NAMES[kind][name](torchmetrics, classes) for name in wanted}
