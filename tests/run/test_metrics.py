"""Metrics over all test examples, compared with scikit-learn."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryF1Score,
    MulticlassAUROC,
    MulticlassF1Score,
    MulticlassRecall,
)

import laconic
from laconic.core.errors import ConfigError

CLASSES = 3


def data(*, ordered: bool, regression: bool = False) -> laconic.data.FederatedData:
    """More than three evaluation batches of unbalanced classes, shuffled or sorted by label."""
    random = np.random.default_rng(5)
    labels = random.choice(CLASSES, size=1700, p=[0.8, 0.15, 0.05])
    inputs = random.normal(size=(1700, 4)).astype("float32") + labels[:, None] * 0.5
    order = np.argsort(labels, kind="stable") if ordered else random.permutation(1700)
    targets = (inputs.sum(1) + random.normal(size=1700)).astype("float32") if regression else labels
    pair = inputs[order], targets[order]
    return laconic.data.from_arrays([(inputs[:100], targets[:100]), (inputs[100:300], targets[100:300])], test=pair)


def outputs(result: laconic.Result, test: laconic.data.Examples) -> tuple[np.ndarray, np.ndarray]:
    inputs, targets = test.batch(torch.arange(len(test)))
    with torch.no_grad():
        return result.model(inputs).numpy(), targets.numpy()


@pytest.mark.parametrize("ordered", [False, True])
def test_named_metrics_equal_scikit_learn(ordered: bool) -> None:
    federated = data(ordered=ordered)
    names = "f1,precision,recall,balanced_accuracy,auroc,average_precision,matthews,kappa,class_accuracy"
    result = laconic.simulate("fed_avg", "mlp:8", federated, rounds=2, local_lr=0.1, metrics=names)
    assert federated.test is not None
    logits, targets = outputs(result, federated.test)
    predicted = logits.argmax(1)
    probabilities = torch.from_numpy(logits).softmax(-1).numpy()
    one_hot = np.eye(CLASSES)[targets]
    recalls = reference.recall_score(targets, predicted, average=None)
    expected = {
        "accuracy": reference.accuracy_score(targets, predicted),
        "f1": reference.f1_score(targets, predicted, average="macro"),
        "precision": reference.precision_score(targets, predicted, average="macro", zero_division=0),
        "recall": recalls.mean(),
        "balanced_accuracy": reference.balanced_accuracy_score(targets, predicted),
        "auroc": reference.roc_auc_score(targets, probabilities, multi_class="ovr"),
        "average_precision": reference.average_precision_score(one_hot, probabilities, average="macro"),
        "matthews": reference.matthews_corrcoef(targets, predicted),
        "kappa": reference.cohen_kappa_score(targets, predicted),
        **{f"class_accuracy_{label}": recall for label, recall in enumerate(recalls)},
    }
    found = {name: result.history[-1][name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-5)
    assert 0 < found["f1"] < found["accuracy"]


def test_regression_metrics_equal_scikit_learn() -> None:
    federated = data(ordered=True, regression=True)
    result = laconic.simulate("fed_avg", "mlp:8", federated, rounds=3, local_lr=0.02, metrics="r2,rmse,pearson")
    assert federated.test is not None
    predicted, targets = outputs(result, federated.test)
    assert result.metrics["r2"] == pytest.approx(reference.r2_score(targets, predicted[:, 0]), abs=1e-4)
    assert result.metrics["rmse"] == pytest.approx(
        reference.root_mean_squared_error(targets, predicted[:, 0]), rel=1e-4
    )
    assert result.metrics["pearson"] == pytest.approx(np.corrcoef(targets, predicted[:, 0])[0, 1], abs=1e-4)


NAMES = "auroc,average_precision,balanced_accuracy,class_accuracy"


def without(*absent: int) -> tuple[Tensor, Tensor]:
    """Logits with ties, and targets of three classes without some of them."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(0, 3, (60, CLASSES), generator=generator).float()
    targets = torch.arange(60) % CLASSES
    kept = ~torch.isin(targets, torch.tensor(absent, dtype=torch.int64))
    return logits[kept], targets[kept]


@pytest.mark.parametrize("absent", [(), (0,), (2,)])
def test_classes_without_examples_do_not_count(absent: tuple[int, ...]) -> None:
    logits, targets = without(*absent)
    found = identity_task().evaluate((logits.numpy(), targets.numpy()))
    scores, present = logits.double().softmax(-1), [label for label in range(CLASSES) if label not in absent]
    for name, function in (
        ("auroc", reference.roc_auc_score),
        ("average_precision", reference.average_precision_score),
    ):
        expected = np.mean([function(targets == label, scores[:, label]) for label in present])
        assert found[name] == pytest.approx(expected, abs=1e-6), name
    recalls = {label: float((logits[targets == label].argmax(1) == label).float().mean()) for label in present}
    assert found["balanced_accuracy"] == pytest.approx(np.mean([*recalls.values()]), abs=1e-6)
    for label in range(CLASSES):
        assert found[f"class_accuracy_{label}"] == pytest.approx(recalls.get(label, np.nan), nan_ok=True)


def test_one_class_cannot_be_ranked() -> None:
    logits, targets = without(0, 2)
    found = identity_task().evaluate((logits.numpy(), targets.numpy()))
    assert np.isnan([found["auroc"], found["average_precision"]]).all()
    assert found["balanced_accuracy"] == pytest.approx(found["accuracy"])


def test_labels_from_one_add_no_class_to_the_metrics() -> None:
    """Class 0 has no examples. A perfect ranking of the others has an AUROC of exactly 1."""
    targets = np.arange(40) % 2 + 1
    logits = np.eye(3, dtype="float32")[targets]
    assert identity_task().evaluate((logits, targets))["auroc"] == 1.0


def identity_task() -> laconic.Result:
    """A result whose model returns its inputs, up to a shift by training with a rate of almost 0."""
    module = nn.Linear(CLASSES, CLASSES, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.eye(CLASSES))
    inputs = np.eye(CLASSES, dtype="float32")
    arrays = [(inputs, np.arange(CLASSES))]
    federated = laconic.data.from_arrays(arrays, test=arrays[0])
    return laconic.simulate("fed_avg", module, federated, rounds=1, local_lr=1e-30, metrics=NAMES)


def loss(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def test_objects_and_functions_are_metrics_of_a_task() -> None:
    federated = data(ordered=True)
    seen = []

    def macro_f1(predictions: Tensor, targets: Tensor) -> float:
        seen.append(len(targets))
        return float(reference.f1_score(targets, predictions.argmax(1), average="macro"))

    module = nn.Linear(4, CLASSES)
    task = laconic.Task(module, loss, metrics={"f1": MulticlassF1Score(CLASSES), "function": macro_f1})
    result = laconic.simulate("fed_avg", task, federated, rounds=3, eval_every=1)
    for record in result.history:
        assert record["f1"] == pytest.approx(record["function"], abs=1e-6)
    assert {*result.history[-1]} >= {"loss", "f1", "function"}
    assert seen == [1700] * 3
    collection = MetricCollection({"f1": MulticlassF1Score(CLASSES), "recall": MulticlassRecall(CLASSES)})
    together = laconic.simulate("fed_avg", laconic.Task(module, loss, metrics=collection), federated, rounds=3)
    assert together.metrics["f1"] == result.metrics["f1"]
    assert "recall" in together.metrics


def binary(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(module(batch[0]).flatten(), batch[1])


class Shifted(nn.Module):
    """Returns its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs + self.shift).squeeze(-1)


def test_objects_see_all_outputs_at_once() -> None:
    """A batch of 500 whose logits all lie in [0, 1] is not taken for one of probabilities."""
    random = np.random.default_rng(0)
    logits = np.linspace(-1.9, 1.9, 2000, dtype="float32")[:, None]
    labels = (random.uniform(size=2000) < 1 / (1 + np.exp(-3 * logits[:, 0]))).astype("float32")
    chosen = random.permutation(2000)[:100]
    arrays = {"clients": [(logits[chosen], labels[chosen])], "test": (logits, labels)}

    metrics = {"auroc": BinaryAUROC(), "f1": BinaryF1Score(), "accuracy": BinaryAccuracy()}
    task = laconic.Task(Shifted(), binary, metrics=metrics)
    result = laconic.simulate("fed_avg", task, arrays, rounds=1, local_lr=1e-30)
    outputs = logits[:, 0]
    assert result.metrics["auroc"] == pytest.approx(reference.roc_auc_score(labels, outputs), abs=1e-5)
    assert result.metrics["f1"] == pytest.approx(reference.f1_score(labels, outputs > 0), abs=1e-5)
    assert result.metrics["accuracy"] == pytest.approx(np.mean((outputs > 0) == labels), abs=1e-5)
    assert result.metrics == pytest.approx(result.evaluate((logits, labels)))


def test_objects_for_several_classes_see_all_outputs_at_once() -> None:
    random = np.random.default_rng(0)
    logits = random.uniform(0, 1, size=(1000, CLASSES)).astype("float32")
    logits[500:] *= 6
    labels = np.array([random.choice(CLASSES, p=row) for row in torch.from_numpy(logits).double().softmax(-1).numpy()])
    task = laconic.Task(Shifted(), loss, metrics={"auroc": MulticlassAUROC(CLASSES)})
    result = laconic.simulate(
        "fed_avg", task, {"clients": [(logits, labels)], "test": (logits, labels)}, rounds=1, local_lr=1e-30
    )
    scores = torch.from_numpy(logits).softmax(-1).numpy()
    assert result.metrics["auroc"] == pytest.approx(
        reference.roc_auc_score(labels, scores, multi_class="ovr"), abs=1e-5
    )


def test_metrics_are_given_as_a_list_or_as_objects() -> None:
    federated = data(ordered=False)

    def found(**settings) -> dict[str, float]:
        return laconic.simulate("fed_avg", "mlp:8", federated, rounds=1, **settings).metrics

    expected = found(metrics="f1,recall")
    objects = {"f1": MulticlassF1Score(CLASSES), "recall": MulticlassRecall(CLASSES)}
    for given in (["f1", "recall"], objects, MetricCollection(objects)):
        assert found(metrics=given) == pytest.approx(expected)
    for wrong in ([MulticlassF1Score(CLASSES)], 3):
        with pytest.raises(ConfigError, match=r"metrics = .*names are allowed, such as 'f1,auroc'"):
            found(metrics=wrong)
    with pytest.raises(ConfigError, match="a metric has no name; pass a dict"):
        found(metrics=MulticlassF1Score(CLASSES))


def test_a_metric_that_does_not_fit_is_named_before_the_first_round() -> None:
    started = []
    for metric in (BinaryAUROC(), MulticlassF1Score(CLASSES + 1)):
        with pytest.raises(ConfigError, match=r"metric 'mine': failed on outputs and targets of shapes \(2, 3\) and"):
            laconic.simulate(
                "fed_avg",
                "logistic",
                data(ordered=False),
                rounds=1,
                metrics={"mine": metric},
                on_round=started.append,
            )
    assert not started


def test_outputs_with_a_dimension_too_many_say_what_to_do() -> None:
    task = laconic.Task(nn.Linear(4, 1), binary, metrics={"f1": BinaryF1Score()})
    arrays = np.zeros((3, 4), "float32"), np.array([0.0, 1.0, 1.0], "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the loss says what the targets are: no doubt about the kind
        with pytest.raises(
            ConfigError, match=r"shapes \(2, 1\) and \(2,\) \(squeeze .*squeeze\(-1\), or pass predict="
        ):
            laconic.simulate("fed_avg", task, {"clients": [arrays], "test": arrays}, rounds=1)


def test_a_function_that_fails_is_named() -> None:
    def mine(outputs: Tensor, targets: Tensor) -> float:
        raise ValueError("no such thing")

    with pytest.raises(ConfigError, match=r"metric 'mine': failed.*ValueError: no such thing"):
        laconic.simulate("fed_avg", "logistic", data(ordered=False), rounds=1, metrics={"mine": mine})


def test_metrics_need_examples() -> None:
    clients = [(np.eye(4, dtype="float32"), np.arange(4) % 2)] * 2
    with pytest.raises(ConfigError, match=r"metrics = 'f1': there are no test examples .* client_eval=0.2"):
        laconic.simulate("fed_avg", "logistic", clients, rounds=1, metrics="f1")
    result = laconic.simulate("fed_avg", "logistic", clients, rounds=1, metrics="f1", client_eval=0.5)
    assert "client_f1" in result.history[-1]


def test_regression_metrics_of_one_example_are_not_defined() -> None:
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(size, 2)).astype("float32"), np.linspace(0, 1, size)) for size in (2, 12)]
    names = "r2,rmse,pearson,spearman"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchmetrics
        last = laconic.simulate("fed_avg", "logistic", clients, rounds=1, metrics=names, client_eval=0.5).history[-1]
    assert last["clients_evaluated"] == 2
    assert last["client_r2"] == last["worst_client_r2"], "one of two clients is left out"


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_metric_does_not_replace_a_mean_of_the_task(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"metrics: '{name}' is the name of a mean that the task has already; choose"
    ):
        laconic.simulate(
            "fed_avg", "logistic", data(ordered=False), metrics={name: lambda outputs, targets: 7.0}, rounds=1
        )
    task = laconic.Task(nn.Linear(4, CLASSES), loss, metrics={"accuracy": lambda outputs, targets: 0.5})
    assert laconic.simulate("fed_avg", task, data(ordered=False), rounds=1).metrics["accuracy"] == 0.5


def test_a_metric_must_return_numbers() -> None:
    with pytest.raises(ConfigError, match=r"metric 'none' must return a number, .*; it returned NoneType"):
        laconic.simulate(
            "fed_avg", "logistic", data(ordered=False), metrics={"none": lambda outputs, targets: None}, rounds=1
        )


def test_a_model_with_more_outputs_than_classes() -> None:
    with pytest.raises(ConfigError, match=r"the model has 5 outputs, but the data has 3 classes; pass classes=5"):
        laconic.simulate("fed_avg", nn.Linear(4, 5), data(ordered=False), metrics=["f1", "auroc"], rounds=1)


def test_several_labels_per_example_have_metrics_of_their_own() -> None:
    inputs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    tags = laconic.data.from_arrays([(inputs, np.float32(inputs > 0))], test=(inputs, np.float32(inputs > 0)))
    with pytest.raises(ConfigError, match=r"targets are 4 numbers; .*metrics=\{'f1': MultilabelF1Score\(4\)\}"):
        laconic.simulate("fed_avg", nn.Linear(4, 4), tags, metrics=["f1"], rounds=1)


def test_misuse_is_explained() -> None:
    federated = data(ordered=False)
    with pytest.raises(ConfigError, match="unknown metric 'recal': did you mean 'recall'"):
        laconic.simulate("fed_avg", "mlp", federated, metrics="recal")
    with pytest.raises(ConfigError, match="metrics: 'top5_accuracy' needs at least 5 classes; the data has 3"):
        laconic.simulate("fed_avg", "mlp", federated, metrics="top5_accuracy")
    with pytest.raises(ConfigError, match="means="):
        laconic.Task(nn.Linear(4, CLASSES), loss, lambda module, batch: {"loss": loss(module, batch)})  # type: ignore[arg-type]
    task = laconic.Task(nn.Linear(4, CLASSES), loss, metrics={"round": MulticlassF1Score(CLASSES)})
    with pytest.raises(ConfigError, match="'round' is the name of another value"):
        laconic.simulate("fed_avg", task, federated)
    collection = MetricCollection({"round": MulticlassF1Score(CLASSES)})
    with pytest.raises(ConfigError, match="'round' is the name of another value"):
        laconic.simulate("fed_avg", "mlp", federated, metrics=collection)
