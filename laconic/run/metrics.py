"""Metrics by name for the command line: `--metrics f1,auroc`. They are metrics of torchmetrics (extra `metrics`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laconic.core.errors import ConfigError, missing_extra, unknown_name
from laconic.core.task import Metric, Task
from laconic.data.federated import ClientData, Kind
from laconic.run.evaluate import AnyMetric
from laconic.run.settings import Settings

Make = Callable[[Any, int | None], AnyMetric]
"""Creates a metric from the module torchmetrics and the number of classes."""


class OfProbabilities(nn.Module):
    """A metric of class probabilities. torchmetrics would take logits that happen to lie in [0, 1] for probabilities."""

    by_batch = True

    def __init__(self, metric: nn.Module, classes: int | None) -> None:
        super().__init__()
        self.metric: Any = metric
        self.classes = classes

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add the logits and targets of a batch."""
        if self.classes not in (None, outputs.shape[-1]):
            count = outputs.shape[-1]
            raise ConfigError(
                f"metrics: the model has {count} outputs, but the data has {self.classes} classes; pass classes={count} "
                f"to the data, as in laconic.data.from_arrays(clients, classes={count})"
            )
        self.metric.update(outputs.softmax(-1), targets)

    def compute(self) -> Any:
        """The value over all batches since the last reset."""
        return self.metric.compute()

    def reset(self) -> None:
        """Forget all batches."""
        self.metric.reset()


class ClassAccuracy(Metric):
    """The accuracy of each class, or its mean over the classes with examples. A class without examples has NaN."""

    by_batch = True

    def __init__(self, balanced: bool) -> None:
        self.balanced = balanced
        self._right = self._examples = torch.zeros(1, dtype=torch.int64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        classes, right = outputs.shape[-1], targets[outputs.argmax(-1) == targets]
        self._right = self._right + torch.bincount(right, minlength=classes).cpu()
        self._examples = self._examples + torch.bincount(targets, minlength=classes).cpu()

    def compute(self) -> Tensor:
        accuracies = self._right / self._examples
        return accuracies.nanmean() if self.balanced else accuracies

    def reset(self) -> None:
        self._right = self._examples = torch.zeros(1, dtype=torch.int64)


def auroc(outputs: Tensor, targets: Tensor) -> Tensor:
    """The area under the ROC curve: each class against all others, averaged over classes. See `_of_classes`."""
    return _of_classes(_class_auroc, outputs, targets)


def average_precision(outputs: Tensor, targets: Tensor) -> Tensor:
    """The average precision: each class against all others, averaged over classes. See `_of_classes`."""
    return _of_classes(_class_average_precision, outputs, targets)


def _of_classes(measure: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of a measure over the classes that have both positives and negatives; NaN if there are none.

    `measure` gets the numbers of positives and negatives with each predicted probability, highest probability first.
    """
    values = []
    for label, scores in enumerate(outputs.double().softmax(-1).unbind(-1)):
        distinct, group = torch.unique(scores, return_inverse=True)
        positives, negatives = (
            torch.bincount(group[chosen], minlength=len(distinct)).flip(0).double()
            for chosen in (targets == label, targets != label)
        )
        if positives.any() and negatives.any():
            values.append(measure(positives, negatives))
    return torch.stack(values).mean() if values else torch.tensor(torch.nan)


def _class_auroc(positives: Tensor, negatives: Tensor) -> Tensor:
    # The share of pairs in which the positive has the higher probability. Ties count half.
    below = negatives.sum() - negatives.cumsum(0) + negatives / 2
    return (positives * below).sum() / (positives.sum() * negatives.sum())


def _class_average_precision(positives: Tensor, negatives: Tensor) -> Tensor:
    # The precision at each probability, weighted by the gain in recall.
    precision = positives.cumsum(0) / (positives + negatives).cumsum(0)
    return (positives * precision).sum() / positives.sum()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """The coefficient of determination, averaged over the targets of an example. NaN if the targets are constant."""
    outputs, targets = outputs.double(), targets.double()
    error, spread = ((targets - outputs) ** 2).sum(0), ((targets - targets.mean(0)) ** 2).sum(0)
    return (1 - error / spread)[spread > 0].mean()


def _multiclass(name: str, torchmetrics: Any, classes: int | None, **options: Any) -> Metric:
    metric = getattr(torchmetrics.classification, f"Multiclass{name}")(num_classes=classes, **options)
    return OfProbabilities(metric, classes)


def _top5(torchmetrics: Any, classes: int | None) -> Metric:
    if classes is not None and classes < 5:
        raise ConfigError(f"metrics: 'top5_accuracy' needs at least 5 classes; the data has {classes}")
    return _multiclass("Accuracy", torchmetrics, classes, average="micro", top_k=5)


def _plain(name: str, torchmetrics: Any, classes: int | None, **options: Any) -> Metric:
    metric: Metric = getattr(torchmetrics, name)(**options)
    return metric


_CLASSIFICATION: dict[str, Make] = {
    "f1": partial(_multiclass, "F1Score", average="macro"),
    "precision": partial(_multiclass, "Precision", average="macro"),
    "recall": partial(_multiclass, "Recall", average="macro"),
    "balanced_accuracy": lambda torchmetrics, classes: ClassAccuracy(balanced=True),
    "top5_accuracy": _top5,
    "auroc": lambda torchmetrics, classes: auroc,
    "average_precision": lambda torchmetrics, classes: average_precision,
    "matthews": partial(_multiclass, "MatthewsCorrCoef"),
    "kappa": partial(_multiclass, "CohenKappa"),
    "calibration_error": partial(_multiclass, "CalibrationError"),
    "class_accuracy": lambda torchmetrics, classes: ClassAccuracy(balanced=False),
}
_REGRESSION: dict[str, Make] = {
    "r2": lambda torchmetrics, classes: r2,
    "mae": partial(_plain, "MeanAbsoluteError"),
    "rmse": partial(_plain, "MeanSquaredError", squared=False),
    "pearson": partial(_plain, "PearsonCorrCoef"),
    "spearman": partial(_plain, "SpearmanCorrCoef"),
}
NAMES: dict[Kind, dict[str, Make]] = {
    "classification": _CLASSIFICATION,
    "regression": _REGRESSION,
    "per_position": _CLASSIFICATION | {"iou": partial(_multiclass, "JaccardIndex", average="macro")},
    "next_token": {name: _CLASSIFICATION[name] for name in ("f1", "top5_accuracy", "calibration_error")},
}
"""The metrics of each kind of task. Averages over classes are macro averages."""


_MULTILABEL = {
    "f1": "MultilabelF1Score",
    "precision": "MultilabelPrecision",
    "recall": "MultilabelRecall",
    "auroc": "MultilabelAUROC",
    "average_precision": "MultilabelAveragePrecision",
}
"""The metrics of torchmetrics for several labels per example."""


def requested_metrics(settings: Settings, data: ClientData) -> dict[str, AnyMetric]:
    """The metrics that the settings name. Raises if there are no examples to measure them on."""
    if settings.metrics is None:
        return {}
    check_test(f"metrics = '{settings.metrics}'", settings, data)
    return metrics_by_name(settings.metrics, data.kind, data.classes)


def check_test(what: str, settings: Settings, data: ClientData) -> None:
    """Raise if there are no examples to measure metrics on."""
    if data.test is None and settings.client_eval is None:
        raise ConfigError(
            f"{what}: there are no test examples to measure them on; pass test examples, or in a simulation client_eval=0.2 "
            "(--client-eval 0.2)"
        )


def metrics_by_name(names: str, kind: Kind, classes: int | None) -> dict[str, AnyMetric]:
    """The metrics of a list of names separated by commas."""
    wanted = _split(names)
    for name in wanted:
        if name not in NAMES[kind]:
            raise unknown_name("metric", name, NAMES[kind])
    try:
        import torchmetrics  # an extra
    except ImportError:
        raise missing_extra("metrics need torchmetrics", "metrics") from None
    return {name: NAMES[kind][name](torchmetrics, classes) for name in wanted}


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def check_metrics(settings: Settings, task: Task, data: ClientData) -> None:
    """Raise `ConfigError` for a named metric of another kind of task, and for a task's metrics without examples."""
    if task.metrics:
        check_test("metrics", settings, data)
    for name in _split(settings.metrics or ""):
        kinds = [other for other in NAMES if name in NAMES[other]]
        if kinds and data.kind not in kinds:
            numbers = data.batch(0, np.arange(1))[-1].shape[1:].numel()
            if data.kind == "regression" and numbers > 1:
                several = f"metrics={{'{name}': {_MULTILABEL.get(name, 'Multilabel…')}({numbers})}}"
                raise ConfigError(
                    f"metrics: '{name}' needs one label per example, but the targets are {numbers} numbers; for several "
                    f"labels pass a metric of torchmetrics.classification: {several}"
                )
            reason = "floating-point" if data.kind == "regression" else "integers or text"
            why = f"the data is {data.kind}: the targets are {reason}; pass kind={kinds[0]} to change it"
            raise ConfigError(f"metrics: '{name}' needs {kinds[0]}, but {why}")
