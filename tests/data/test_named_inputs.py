"""Several inputs by name: in the order of the first client, all of them checked; columns and classes by name, too."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import laconic
from laconic.core.errors import DataError, LaconicWarning
from laconic.data import from_arrays, from_datasets, from_hugging_face

GENERATOR = np.random.default_rng(0)
INPUTS = GENERATOR.normal(size=(60, 4)).astype(np.float32)
TARGETS = (INPUTS[:, 0] > 0).astype(np.int64) + (INPUTS[:, 1] > 0.5)
ROUNDS = {"rounds": 2, "threads": 1}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, left, right=None):
        return self.left(left) * 3 + (0 if right is None else self.right(right))


class Samples(Dataset):
    """Samples as dicts, whose keys come in a given order."""

    def __init__(self, rows: slice, order: str, last: str | None = None) -> None:
        self.inputs, self.targets, self.order, self.last = INPUTS[rows], TARGETS[rows], order, last or order

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> dict:
        named = {"left": self.inputs[index, :2], "right": self.inputs[index, 2:]}
        order = self.last if index == len(self) - 1 else self.order
        return {name: named[name] for name in order.split()} | {"label": int(self.targets[index])}


def pair(rows: slice, order: str = "left right") -> tuple:
    named = {"left": INPUTS[rows, :2], "right": INPUTS[rows, 2:]}
    return {name: named[name] for name in order.split()}, TARGETS[rows]


FIRST, REST, ALL = slice(0, 30), slice(30, 60), slice(0, 60)


def outcome(clients: list, test: object) -> tuple[str, float | None]:
    torch.manual_seed(0)
    result = laconic.simulate("fed_avg", Two(), {"clients": clients, "test": test}, **ROUNDS)
    return result.model_sha256, result.loss


@pytest.mark.parametrize(("other", "test"), [("right left", "left right"), ("left right", "right left")])
def test_keys_in_another_order_give_the_same_model_and_metrics(other, test):
    wanted = outcome([pair(FIRST), pair(REST)], pair(ALL))
    assert outcome([pair(FIRST), pair(REST, other)], pair(ALL, test)) == wanted
    lazy = outcome([Samples(FIRST, "left right"), Samples(REST, "left right")], pair(ALL))
    assert outcome([Samples(FIRST, "left right"), Samples(REST, other)], pair(ALL, test)) == lazy
    assert outcome([Samples(FIRST, "left right", last=other), Samples(REST, other)], Samples(ALL, test)) == lazy


@pytest.mark.parametrize(
    ("clients", "test", "said"),
    [
        (
            [pair(FIRST), pair(REST, "left")],
            None,
            "client 1: the inputs are 'left', but those of client 0 are 'left', 'r",
        ),
        (
            [pair(FIRST, "left"), pair(REST)],
            None,
            "client 1: the inputs are 'left', 'right', but those of client 0 are",
        ),
        ([pair(FIRST)], (INPUTS, TARGETS), r"\(test\): the inputs are one without a name, but those of client 0"),
        ([pair(FIRST)], pair(ALL, "left"), r"\(test\): the inputs are 'left', but"),
        (
            [Samples(FIRST, "left right"), Samples(REST, "left")],
            None,
            "client 1: the input columns are left, but those of",
        ),
    ],
)
def test_other_keys_are_refused_by_name(clients, test, said):
    with pytest.raises(DataError, match=said):
        data = laconic.data.as_data({"clients": clients} | ({} if test is None else {"test": test}))
        data.batch(1, np.arange(3))


def changed(rows: slice, **other: np.ndarray) -> tuple:
    return pair(rows)[0] | other, TARGETS[rows]


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (changed(REST, right=INPUTS[30:59, 2:]), "client 1, input 'right', has 29 inputs but 30 targets"),
        (changed(REST, right=INPUTS[30:60]), r"client 1, input 'right', has shapes \(30, 4\)"),
        (changed(REST, right=INPUTS[30:60, 2:] * np.nan), "client 1: input 'right', example 0 contains nan"),
    ],
)
def test_every_input_of_a_client_and_of_the_test_is_checked(client, said):
    with pytest.raises(DataError, match=said):
        from_arrays([pair(FIRST), client])
    with pytest.raises(DataError, match=r"right"):
        from_arrays([pair(FIRST)], test=client)


def test_every_input_that_is_read_lazily_is_checked():
    broken = Samples(REST, "left right")
    broken.inputs = INPUTS[REST].copy()
    broken.inputs[5, 3] = np.nan
    data = from_datasets([Samples(FIRST, "left right"), broken], classes=3)
    with pytest.raises(DataError, match="client 1: input 'right', example 5 contains nan"):
        data.batch(1, np.array([4, 5]))
    broken.inputs = INPUTS[REST, :3]
    with pytest.raises(
        DataError, match=r"client 1: an input 'right' has shape \(1,\), the first input of client 0 \(2,\)"
    ):
        data.batch(1, np.array([4]))


def test_an_input_that_the_model_does_not_get_is_named_once():
    misspelled = {"left": INPUTS[:, :2], "rigth": INPUTS[:, 2:]}
    with pytest.warns(LaconicWarning, match="forward has no parameter 'rigth'.*did you mean 'right'") as caught:
        laconic.simulate("fed_avg", Two(), [(misspelled, TARGETS)], **ROUNDS)
    assert len([warning for warning in caught if "rigth" in str(warning.message)]) == 1
    tokens = {"left": INPUTS[:, :2], "right": INPUTS[:, 2:], "attention_mask": np.ones((60, 2))}
    with warnings.catch_warnings():
        warnings.simplefilter("error", LaconicWarning)
        laconic.simulate("fed_avg", Two(), [(tokens, TARGETS)], **ROUNDS)


def rows(names: list[str], numbers: np.ndarray = TARGETS, columns: str = "abcd") -> object:
    hub = pytest.importorskip("datasets")
    kinds = {name: hub.Value("float32") for name in columns} | {"label": hub.ClassLabel(names=names)}
    table = {name: INPUTS[:, "abcd".index(name)].tolist() for name in columns} | {"label": numbers.tolist()}
    return hub.Dataset.from_dict(table, features=hub.Features(kinds))


ANIMALS = ["cat", "dog", "emu"]


def test_columns_and_classes_of_data_sets_go_by_name():
    hub = pytest.importorskip("datasets")
    data, other = rows(ANIMALS), rows(ANIMALS[::-1], 2 - TARGETS, "dcba")
    net = nn.Linear(4, 3)
    wanted, turned = (
        laconic.simulate("fed_avg", net, hub.DatasetDict(train=data, test=test), participants=5, **ROUNDS)
        for test in (data, other)
    )
    assert turned.metrics == wanted.metrics == wanted.evaluate(data) == wanted.evaluate(other)
    clients = [laconic.simulate("fed_avg", net, [data, second], **ROUNDS).model_sha256 for second in (data, other)]
    assert clients[0] == clients[1]
    assert laconic.data.as_data([data, other]).labels == tuple(ANIMALS)
    with pytest.raises(DataError, match=r"client 1: class 'elk' is not among those of training: cat, dog, emu"):
        from_datasets([data, rows(["cat", "dog", "elk"])])
    with pytest.raises(DataError, match="data: class 'elk' is not among those of training"):
        wanted.evaluate(rows(["cat", "dog", "elk"]))
    with pytest.raises(
        DataError, match="data: its classes are emu, dog, cat, but the model was trained on cat, dog, emu"
    ):
        wanted.evaluate(from_hugging_face(hub.DatasetDict(train=other, test=other)))
    with pytest.raises(
        DataError, match="client 1: the input columns are a, b, but those of the first client are a, b, c"
    ):
        from_datasets([data, rows(ANIMALS, columns="ab")])


def test_secret_test_labels_give_way_to_validation():
    hub = pytest.importorskip("datasets")
    secret = rows(ANIMALS, np.full(60, -1))
    splits = hub.DatasetDict(train=rows(ANIMALS), validation=rows(ANIMALS).select(range(9)), test=secret)
    with pytest.warns(
        LaconicWarning, match="all labels of the split 'test' are -1, so the split 'validation' is the test"
    ):
        data = from_hugging_face(splits, clients=3)
    assert len(data.test) == 9
    with pytest.raises(DataError, match="label -1"):
        from_hugging_face(hub.DatasetDict(train=rows(ANIMALS), test=secret))


TOKENS = GENERATOR.integers(1, 9, (12, 6))
MASK = np.arange(6) < GENERATOR.integers(3, 7, (12, 1))


def test_labels_that_are_the_tokens_mean_next_tokens():
    hub = pytest.importorskip("datasets")
    columns = {"input_ids": TOKENS, "attention_mask": MASK.astype(int), "labels": np.where(MASK, TOKENS, -100)}
    labeled = hub.Dataset.from_dict(columns)
    data, plain = from_hugging_face(labeled, clients=2), from_hugging_face(labeled.remove_columns("labels"), clients=2)
    assert data.kind == plain.kind == "next_token" and data.fingerprint() == plain.fingerprint()
    with pytest.warns(LaconicWarning, match="the targets equal the inputs wherever they count; .* kind='next_token'"):
        assert from_hugging_face(labeled, clients=2, kind="per_position").kind == "per_position"
    samples = [{name: torch.from_numpy(values[row]) for name, values in columns.items()} for row in range(12)]
    assert from_datasets([samples[:6], samples[6:]]).kind == "next_token"


def test_tokens_as_arrays_say_how_to_predict_the_next():
    with pytest.raises(DataError, match="for the next token kind='next_token'"):
        from_arrays([(TOKENS, TOKENS)])
    with pytest.warns(LaconicWarning, match=r"pass tokens\[:, :-1\] as inputs and tokens\[:, 1:\] as targets"):
        from_arrays([(TOKENS, TOKENS)], kind="next_token")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LaconicWarning)
        from_arrays([(TOKENS[:, :-1], TOKENS[:, 1:])], kind="next_token")


def test_metrics_of_a_task_with_a_loss_get_inputs_by_name():
    def loss(module, batch):
        return nn.functional.cross_entropy(module(batch[1], batch[0]), batch[-1])

    right = {"right": lambda outputs, targets: (outputs.argmax(-1) == targets).float().mean()}
    module = Two()
    data = from_arrays([pair(slice(0, 40), "right left")], test=pair(slice(40, 60), "right left"))
    result = laconic.simulate("fed_avg", laconic.Task(module, loss, metrics=right), data, local_lr=0.3, **ROUNDS)
    usual = laconic.simulate("fed_avg", module, data, numerics={"strategy": "loop"}, local_lr=0.3, **ROUNDS)
    assert result.metrics["right"] == pytest.approx(usual.accuracy)
    assert result.metrics["loss"] == pytest.approx(usual.metrics["loss"], rel=1e-5)
