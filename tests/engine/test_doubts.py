"""Tasks that train but probably not as the user meant: one warning line that says what to write."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import laconic
from laconic.core.task import classification, next_token, regression
from laconic.engine.doubts import doubt_task

torch.manual_seed(1)
INPUTS = torch.randn(2, 4)
CLASSES, NUMBERS, TAGS = torch.tensor([0, 2]), torch.tensor([0.5, -1.0]), torch.tensor([[1.0, 0, 1], [0, 1, 0]])
WEIGHTS = torch.tensor([1.0, 5, 1])


def model(outputs: int, *last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, outputs), *last)


def warned(task: laconic.Task, targets: torch.Tensor, inputs: torch.Tensor = INPUTS) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        doubt_task(task, (inputs, targets))
    return [str(each.message) for each in caught if issubclass(each.category, laconic.LaconicWarning)]


def task_of(module: nn.Module, loss, **options) -> laconic.Task:
    return laconic.Task(module, lambda module, batch: loss(module(batch[0]), batch[1], **options))


@pytest.mark.parametrize(
    ("task", "targets", "expected"),
    [
        (classification(model(3, nn.Softmax(-1))), CLASSES, "returns probabilities.* return logits: leave out"),
        (task_of(model(3, nn.Softmax(-1)), F.cross_entropy), CLASSES, "returns probabilities"),
        (task_of(model(3), F.nll_loss), CLASSES, "use F.cross_entropy for logits"),
        (task_of(model(3, nn.Sigmoid()), F.binary_cross_entropy_with_logits), TAGS, "leave out the last sigmoid"),
        (task_of(model(1), lambda out, y: ((out - y) ** 2).mean()), NUMBERS, r"\(2, 1\).*squeeze\(-1\)"),
        (regression(model(3)), torch.tensor([[1.0, 0, 1], [0, 0, 1]]), "several labels.*with_logits as its loss"),
        (task_of(model(3), F.cross_entropy, reduction="sum"), CLASSES, "loss is a sum.*reduction='mean'"),
        (task_of(model(3), F.mse_loss, reduction="sum"), TAGS, "loss is a sum"),
        (
            task_of(model(3), F.cross_entropy, weight=WEIGHTS),
            CLASSES,
            r"not a mean over examples.*weight\[targets\] \*",
        ),
        (task_of(model(3), F.cross_entropy, weight=WEIGHTS), torch.tensor([1, 1]), "loss is not a mean over examples"),
        (task_of(model(1, nn.Flatten(0)), lambda out, y: F.mse_loss(out, y).sqrt()), NUMBERS, "loss is not a mean"),
    ],
)
def test_a_doubtful_loss_is_one_line(task, targets, expected):
    (line,) = warned(task, targets)
    assert re.search(expected, line) and "\n" not in line


def test_labels_that_are_shifted_twice():
    tokens = torch.tensor([[0, 1, 2, 3, 4], [3, 1, 4, 0, 2]])
    shifted = laconic.Task(
        nn.Embedding(5, 5),
        lambda module, batch: F.cross_entropy(module(batch[0])[:, :-1].flatten(0, 1), batch[1][:, 1:].flatten()),
    )
    (line,) = warned(shifted, tokens[:, 1:], tokens[:, :-1])
    assert "already the next tokens" in line and "pass the module without a Task" in line
    assert not warned(shifted, tokens, tokens), "labels that are the inputs must be shifted"
    assert not warned(next_token(nn.Embedding(5, 5)), tokens[:, 1:], tokens[:, :-1])


def test_a_mean_that_is_a_count_is_one_line():
    def means(module, batch):
        right = (module(batch[0]).argmax(1) == module(batch[0]).argmax(1)).sum()
        return {"loss": F.cross_entropy(module(batch[0]), batch[1]), "right": right}

    task = laconic.Task(model(3), lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]), means=means)
    (line,) = warned(task, CLASSES)
    assert line.startswith("means: 'right' is a sum")


def test_a_mean_that_is_no_mean_is_one_line():
    def means(module, batch):
        right = (module(batch[0]).argmax(1) == batch[1]).float().mean()
        return {"loss": F.cross_entropy(module(batch[0]), batch[1]), "twice": (1 + right) ** 2}

    task = laconic.Task(model(3), lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]), means=means)
    (line,) = warned(task, CLASSES)
    assert line.startswith("means: 'twice' is not a mean over examples") and "metrics={'twice': …}" in line


def test_a_loss_of_tokens_of_which_some_do_not_count():
    tokens = torch.tensor([[0, 1, 2, 3], [3, -100, -100, -100]])

    def loss(module, batch):
        return F.cross_entropy(module(batch[0]).flatten(0, 1), batch[1].flatten())

    (line,) = warned(laconic.Task(nn.Embedding(5, 5), loss), tokens, tokens.clamp(min=0))
    assert "loss is not a mean over examples" in line and line.endswith("counted=…")
    task = laconic.Task(nn.Embedding(5, 5), loss, counted=lambda batch: (batch[1] != -100).float().mean())
    assert not warned(task, tokens, tokens.clamp(min=0))


@pytest.mark.parametrize(
    ("task", "targets"),
    [
        (classification(model(3)), CLASSES),
        (classification(model(3, nn.LogSoftmax(-1))), CLASSES),
        (classification(model(3, nn.ReLU())), CLASSES),
        (regression(model(1)), NUMBERS),
        (regression(model(3, nn.Sigmoid())), torch.eye(3)[:2]),
        (regression(model(3)), torch.zeros(2, 3)),
        (task_of(model(3, nn.LogSoftmax(-1)), F.nll_loss), CLASSES),
        (task_of(model(3, nn.Softmax(-1)), lambda out, y: F.nll_loss(out.log(), y)), CLASSES),
        (task_of(model(3, nn.Sigmoid()), F.binary_cross_entropy), TAGS),
        (task_of(model(3), F.binary_cross_entropy_with_logits), TAGS),
        (task_of(model(3), lambda out, y: (WEIGHTS[y] * F.cross_entropy(out, y, reduction="none")).mean()), CLASSES),
        (task_of(model(3), lambda out, y: F.cross_entropy(out + torch.randn(len(out), 3), y)), CLASSES),
        (task_of(model(1, nn.Flatten(0)), F.mse_loss), NUMBERS),
        (task_of(nn.Linear(4, 1), lambda out, y: F.mse_loss(out.squeeze(-1), y)), NUMBERS),
    ],
)
def test_ordinary_tasks_are_not_doubted(task, targets):
    assert warned(task, targets) == []


def test_one_hot_outputs_are_not_those_of_a_softmax():
    assert warned(classification(nn.Embedding.from_pretrained(torch.eye(3))), CLASSES, torch.tensor([1, 2])) == []


def test_tokens_and_tasks_of_other_forms_are_not_doubted():
    tokens = torch.randint(0, 5, (2, 6))
    assert warned(next_token(nn.Embedding(5, 5)), tokens, tokens) == []

    def of_pairs(module, batch):
        if len(batch[0]) != 2:
            raise ValueError("pairs only")
        return (module(batch[0])[0] - module(batch[0])[1]).square().mean()

    assert warned(laconic.Task(model(3), of_pairs), CLASSES) == []


def test_a_simulation_warns_at_the_line_that_started_it():
    random = np.random.default_rng(0)
    data = [(random.normal(size=(8, 4)).astype("float32"), np.arange(8) % 3)]
    with pytest.warns(laconic.LaconicWarning, match="returns probabilities") as caught:
        laconic.simulate("fed_avg", model(3, nn.Softmax(-1)), data, rounds=1)
    assert [each.filename for each in caught] == [__file__]


def test_a_classifier_with_more_outputs_than_classes_is_one_line():
    clients = [(np.zeros((8, 4), np.float32), np.arange(8) % 3)] * 2
    data = laconic.data.from_arrays(clients, test=clients[0])
    for outputs, expected in (
        (3, []),
        (5, ["model has 5 outputs, but the data has 3 classes, with labels from 0 to 2"]),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            laconic.simulate("fed_avg", model(outputs), data, rounds=1)
        assert [str(each.message) for each in caught if "outputs" in str(each.message)] == expected


def test_arguments_of_compare_are_named():
    with pytest.raises(laconic.ConfigError, match=r"^target: an argument of laconic.compare, as in .* target=0.9\)$"):
        laconic.simulate("fed_avg", "mlp:8", "digits", target=0.9)
