"""Users' own arrays: one (inputs, targets) pair per client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import pairwise
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from torch import Tensor

from laconic.core.counts import counted
from laconic.core.errors import DataError
from laconic.data.checks import check_finite
from laconic.data.doubts import doubt_classes, doubt_kind, doubt_scale, doubt_tokens
from laconic.data.federated import Array, Examples, FederatedData, Indices, Kind, Normalize
from laconic.data.scales import checked_normalize

Pair = tuple[Array, Array]
Client = TypeVar("Client")
_ARRAYS = (np.ndarray, Tensor)


def from_arrays(
    clients: Sequence[Pair] | Mapping[str, Pair],
    test: Pair | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    name: str = "arrays",
    normalize: Normalize | None = None,
    labels: Sequence[str] | None = None,
    skip_empty: bool = False,
) -> FederatedData:
    """Build federated data from one (inputs, targets) pair per client.

    Inputs are an array or a pandas DataFrame, a tuple of arrays, or a dict of arrays whose keys are parameter names of
    the model's `forward`.

    Args:
        clients: The (inputs, targets) of each client, in a list or in a dict by the client's name.
        test: The (inputs, targets) that the server evaluates the model on.
        kind: Defaults to classification for integer or text targets, regression for floating-point targets.
        classes: The number of classes. Defaults to the largest class in the data plus one.
        name: The name of the data in tables and reports.
        labels: The class names, if targets are text: class i is labels[i]. Defaults to all names in the data in
            alphabetical order. A node, which has only a part of the data, must pass all labels.
        normalize: (mean, standard deviation): per channel of images, or per column of a table. Pixels that are integers
            are divided by 255 first. New inputs for the trained model are normalized, too.
        skip_empty: Leave out clients without examples instead of refusing them.

    >>> data = from_arrays([(np.zeros((3, 2)), np.array([0, 1, 1])), (np.ones((1, 2)), np.array([2]))])
    >>> data.kind, data.classes, data.sizes().tolist(), data.input_shape
    ('classification', 3, [3, 1], (2,))
    """
    pairs = [*clients.values()] if isinstance(clients, Mapping) else clients
    if not is_bare(clients) and any(hasattr(pair, "iloc") for pair in pairs):
        raise DataError(f"{name}: a client is a DataFrame; pass (inputs, targets), or use laconic.data.from_table")
    if isinstance(clients, Mapping):
        without_empty(name, pairs, lambda pair: len(pair[-1]), skip_empty, [*clients])
    data = pooled(pairs, test, kind, classes, name, normalize, labels, skip_empty)
    if isinstance(clients, Mapping):
        # Empty clients were left out.
        data = data.named([str(owner) for owner, pair in clients.items() if len(pair[-1])])
    doubt_guesses(data, kind, classes)
    if normalize is None:
        remedy = "scale them, or pass normalize=(means, deviations) of the columns"
        doubt_scale(name, data.examples.inputs, None, remedy)
    return data


def doubt_guesses(data: FederatedData, kind: Kind | None, classes: int | None) -> None:
    """Warn if the kind of task or the classes, where they were not given, are probably wrong."""
    targets, test = data.examples.targets, None if data.test is None else data.test.targets
    doubt_tokens(data.name, data.kind, data.examples.tensors()[:-1], targets)
    if kind is None and data.labels is None and doubt_kind(data.name, targets, data.classes):
        return
    guessed = classes is None and (data.labels is None or data.labels_found)
    if guessed and data.kind == "classification" and data.classes is not None:
        doubt_classes(data.name, targets, test, data.classes, data.labels)


def pooled(
    clients: Sequence[Pair],
    test: Pair | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    name: str = "arrays",
    normalize: Normalize | None = None,
    labels: Sequence[str] | None = None,
    skip_empty: bool = False,
) -> FederatedData:
    """The data of `from_arrays`, without its warnings."""
    columns = _columns(name, clients, test)
    clients = _clients(name, clients, skip_empty)
    test = None if test is None else with_named_inputs(test)
    names = _input_names(clients[0])
    clients, test, class_names = _encode_labels(name, clients, test, labels)
    parts = [_tensors(f"{name}, client {client}", pair, names) for client, pair in enumerate(clients)]
    _check_shapes(name, parts, names)
    split = _consecutive([len(targets) for _, targets in parts])
    targets = torch.cat([targets for _, targets in parts])
    kind = kind or ("regression" if targets.is_floating_point() else "classification")
    inputs = [torch.cat(column) for column in zip(*(inputs for inputs, _ in parts), strict=True)]
    normalize = checked_normalize(name, normalize, inputs[0].shape[1:])
    examples = _examples(inputs, of_kind(name, targets, kind), normalize, names)
    test_set = None
    if test is not None:
        where = f"{name} (test)"
        (test_main, *test_more), test_targets = _tensors(where, test, names)
        test_main = like_training(where, test_main, inputs[0].is_floating_point())
        test_set = _examples([test_main, *test_more], of_kind(where, test_targets, kind), normalize, names)
    if kind != "regression" and classes is None:
        classes = len(class_names or ()) or _count(kind, examples, test_set)
    found = (class_names, bool(class_names and not labels))
    return FederatedData(name, kind, examples, split, test_set, classes, *found, columns=columns)


def _columns(name: str, clients: Any, test: Any) -> tuple[Any, ...] | None:
    """The columns of inputs that are DataFrames, which must be the same for all; None if they are arrays."""
    if not isinstance(clients, Sequence):
        return None
    parts = [(f"client {client}", pair) for client, pair in enumerate(clients)] + [("the test", test)]
    frames = [(where, tuple(pair[0].columns)) for where, pair in parts if is_pair(pair) and hasattr(pair[0], "columns")]
    for where, columns in frames:
        if columns != frames[0][1]:
            raise DataError(
                f"{name}: {where} has the columns {', '.join(map(str, columns))}, but {frames[0][0]} has "
                f"{', '.join(map(str, frames[0][1]))}; select them in the same order, as in frame[{[*frames[0][1][:2]]}]"
            )
    return frames[0][1] if frames else None


def like_training(where: str, inputs: Tensor, floating: bool) -> Tensor:
    """Inputs in the form of those of training: integers become floating-point, if those are `floating`."""
    if floating:
        return inputs if inputs.is_floating_point() else inputs.float()
    if inputs.is_floating_point():
        raise DataError(
            f"{where}: the inputs are floating-point, but those of training are integers, such as pixels from 0 to 255 or "
            "tokens; pass them in the same form"
        )
    return inputs


def of_kind(where: str, targets: Tensor, kind: Kind) -> Tensor:
    """Targets in the type that the kind of task needs: integers are numbers, and whole numbers are classes."""
    if kind == "regression" and not targets.is_floating_point():
        return targets.to(torch.float32)
    if kind == "classification" and targets.is_floating_point():
        check_finite(where, "target", targets, range(len(targets)))
        fractions = targets[targets != targets.round()]
        if len(fractions):
            raise DataError(
                f"{where}: kind='classification' needs whole numbers as targets, not {fractions[0].item():.6g}; "
                "for regression leave kind out"
            )
        return targets.to(torch.int64)
    return targets


def _clients(name: str, clients: Sequence[Pair], skip_empty: bool) -> Sequence[Pair]:
    """The clients, with names of their inputs, after checking that there are some."""
    if is_bare(clients):
        raise DataError(
            f"{name}: one (inputs, targets) pair; give a list with a pair per client, [(inputs, targets), …]"
        )
    if len(clients) == 0:
        raise DataError(f"{name}: there are no clients")
    clients = [with_named_inputs(client) for client in clients]
    return without_empty(name, clients, lambda pair: len(pair[1]), skip_empty)


def _count(kind: Kind, examples: Examples, test: Examples | None) -> int:
    """The number of classes: up to the largest number among the targets, and among tokens also of the inputs."""
    parts = [examples.targets, *([] if test is None else [test.targets])]
    parts += [examples.inputs] if kind == "next_token" else []
    return 1 + max(int(part.to(torch.int64).max()) for part in parts if part.numel())


def _consecutive(sizes: Sequence[int]) -> list[Indices]:
    """The indices of clients whose examples follow each other."""
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(np.cumsum([0, *sizes]))]


def _input_names(pair: Pair) -> tuple[str, ...]:
    """The names of the inputs; none if inputs are one array."""
    return tuple(pair[0]) if is_pair(pair) and isinstance(pair[0], Mapping) else ()


def in_order(where: str, inputs: Any, names: Sequence[str], first: str = "client 0") -> list[Any]:
    """The inputs in the order of `names`, those of `first`, which must be the same. Without names, they are one array."""
    given = tuple(inputs) if isinstance(inputs, Mapping) else ()
    if {*given} != {*names}:
        found, wanted = (", ".join(map(repr, keys)) or "one without a name" for keys in (given, names))
        raise DataError(f"{where}: the inputs are {found}, but those of {first} are {wanted}; pass the same to all")
    return [inputs[name] for name in names] if names else [inputs]


def _examples(inputs: Sequence[Tensor], targets: Tensor, normalize: Normalize | None, names: Sequence[str]) -> Examples:
    extra = dict(zip(names[1:], inputs[1:], strict=True))
    return Examples(inputs[0], targets, normalize, extra, next(iter(names), None))


def without_empty(
    name: str,
    clients: Sequence[Client],
    size: Callable[[Client], int],
    skip_empty: bool,
    names: Sequence[object] | None = None,
) -> Sequence[Client]:
    """The clients that have examples. Without `skip_empty`, a client that has none is an error, with its name if known."""
    empty = {client for client, examples in enumerate(clients) if _is_empty(examples, size)}
    if empty and not skip_empty:
        who = min(empty) if names is None else f"'{names[min(empty)]}'"
        raise DataError(
            f"{name}: client {who} has no examples; leave such clients out with --skip-empty (in Python "
            "laconic.data.from_arrays(…, skip_empty=True))"
        )
    if len(empty) == len(clients):
        raise DataError(f"{name}: there are no clients with examples")
    return [examples for client, examples in enumerate(clients) if client not in empty] if empty else clients


def _is_empty(examples: Client, size: Callable[[Client], int]) -> bool:
    try:
        return size(examples) == 0
    except (TypeError, IndexError):  # no arrays: reported with a better message later
        return False


def _check_shapes(name: str, parts: Sequence[tuple[list[Tensor], Tensor]], names: Sequence[str]) -> None:
    """Compare every input and the targets of each client with those of client 0."""
    first_inputs, first_targets = parts[0]
    for client, (all_inputs, targets) in enumerate(parts):
        for number, (inputs, first) in enumerate(zip(all_inputs, first_inputs, strict=True)):
            who = f"client {client}, input '{names[number]}'," if names else f"client {client}"
            if inputs.shape[1:] != first.shape[1:] or targets.shape[1:] != first_targets.shape[1:]:
                raise DataError(
                    f"{name}: {who} has shapes {tuple(inputs.shape)} and {tuple(targets.shape)}, "
                    f"client 0 has {tuple(first.shape)} and {tuple(first_targets.shape)}"
                )
            if len(inputs) != len(targets):
                raise DataError(
                    f"{name}: {who} has {counted(len(inputs), 'input')} but {counted(len(targets), 'target')}"
                )
            if torch.uint8 in (kinds := {inputs.dtype, first.dtype}) and any(kind.is_floating_point for kind in kinds):
                raise DataError(
                    f"{name}: {who} has inputs of {inputs.dtype}, client 0 of {first.dtype}; pass pixels of all clients as "
                    "uint8, or those of none"
                )
            what = f"input '{names[number]}', example" if names else "input"
            check_finite(f"{name}, client {client}", what, inputs, range(len(inputs)))
        check_finite(f"{name}, client {client}", "target", targets, range(len(targets)))


def named_inputs(inputs: Any) -> Any:
    """Several inputs, a tuple of arrays, as a dict. A model gets inputs of these names in order."""
    inputs = tuple(map(without_pandas, inputs)) if isinstance(inputs, tuple) else without_pandas(inputs)
    return {f"input_{number}": part for number, part in enumerate(inputs)} if _are_arrays(inputs) else inputs


def with_named_inputs(value: Any) -> Any:
    """((a, b), targets) and (a, b, targets) as a pair whose inputs have names. Other values are unchanged."""
    if isinstance(value, tuple) or is_pair(value):
        *inputs, targets = value
        value = (*map(without_pandas, inputs), without_pandas(targets, column=True))
    if _are_arrays(value) and len(value) > 2:
        value = (value[:-1], value[-1])
    return (named_inputs(value[0]), value[1]) if is_pair(value) else value


def _are_arrays(value: object) -> bool:
    return isinstance(value, tuple) and len(value) > 1 and all(isinstance(part, _ARRAYS) for part in value)


def is_bare(value: object) -> bool:
    """Whether the value is one (inputs, targets) pair instead of a list of clients."""
    return is_pair(value) and _are_arrays(tuple(map(without_pandas, value)) if isinstance(value, tuple) else value)


def is_pair(value: object) -> TypeGuard[Pair]:
    """Whether the value has two parts."""
    return isinstance(value, (tuple, list)) and len(value) == 2


def _encode_labels(
    name: str, clients: Sequence[Pair], test: Pair | None, given: Sequence[str] | None
) -> tuple[Sequence[Pair], Pair | None, tuple[str, ...] | None]:
    """Replace text targets by class numbers. Return clients, test and the labels in the order of their numbers."""
    pairs = [pair for pair in (*clients, *([] if test is None else [test])) if is_pair(pair)]
    all_targets = [np.asarray(pair[1]) for pair in pairs if has_text(pair[1])]
    if not all_targets:
        return clients, test, None
    labels = check_labels(name, np.concatenate(all_targets), given)
    numbers = {label: number for number, label in enumerate(labels)}

    def encode(where: str, pair: Pair) -> Pair:
        if not is_pair(pair):
            raise DataError(f"{name}: {where} is not a pair of inputs and targets")
        if len(pair[1]) and not has_text(pair[1]):
            raise DataError(f"{name}: {where} has numbers as targets, but others have text")
        return pair[0], np.array([numbers[text] for text in np.asarray(pair[1]).tolist()], dtype=np.int64)

    encoded = [encode(f"client {client}", pair) for client, pair in enumerate(clients)]
    return encoded, None if test is None else encode("the test", test), labels


def check_labels(name: str, texts: np.ndarray[Any, Any], given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the given labels, or else all labels in the data, after checking that every example has one."""
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{name}: '{text}' among text labels; every example needs a non-empty label")
    present = np.unique(texts.astype(str)).tolist()
    if _all_numbers(present):
        raise DataError(f"{name}: targets are numbers as text, such as '{present[0]}'; convert them to int or float")
    labels = tuple(given or present)
    unknown = [label for label in present if label not in labels]
    if unknown:
        raise DataError(f"{name}: '{unknown[0]}' is not among the labels: {', '.join(labels)}")
    return labels


def has_text(targets: Array) -> bool:
    """Whether the targets are labels."""
    if isinstance(targets, Tensor):
        return False
    try:
        values = np.asarray(targets)
    except ValueError:  # ragged rows: _tensors reports them with a better message
        return False
    return values.ndim == 1 and values.dtype.kind in "UO" and any(isinstance(value, str) for value in values)


def _all_numbers(texts: Iterable[Any]) -> bool:
    try:
        [float(text) for text in texts]
    except (TypeError, ValueError):
        return False
    return True


def _tensors(where: str, pair: Pair, names: Sequence[str]) -> tuple[list[Tensor], Tensor]:
    """The inputs in the order of `names`, and the targets, as tensors."""
    if not is_pair(pair):
        raise DataError(f"{where}: not a pair of numeric arrays")
    given = in_order(where, pair[0], names)
    try:
        *inputs, targets = map(tensor_of, (*given, pair[1]))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: not a pair of numeric arrays ({first_line(error)})") from error
    if any(tensor.ndim == 0 for tensor in (*inputs, targets)):
        raise DataError(f"{where}: inputs and targets need a first dimension that counts the examples")
    return inputs, targets


def tensor_of(value: Array) -> Tensor:
    """The value as a tensor, which shares memory with it if the value can be written to."""
    value = without_pandas(value)
    if hasattr(value, "toarray"):
        raise TypeError("a sparse matrix; pass inputs.toarray()")
    if has_text(value):
        raise TypeError("text; convert it to numbers or tokens first")
    # torch has no negative strides, as those of inputs[::-1].
    copied = isinstance(value, np.ndarray) and (not value.flags.writeable or min(value.strides, default=0) < 0)
    return torch.as_tensor(value.copy() if copied else value)


def without_pandas(value: Any, column: bool = False) -> Any:
    """A pandas DataFrame as an array of float32, a Series as an array. Other values are unchanged.

    With `column`, a DataFrame of one column is a Series.
    """
    if not hasattr(value, "iloc"):
        return value
    if column and value.ndim == 2 and value.shape[1] == 1:
        value = value.iloc[:, 0]
    if value.ndim == 1:
        return value.to_numpy()
    for number, (name, dtype) in enumerate(value.dtypes.items()):
        if dtype.kind not in "iufb":
            found, _ = not_a_number(value.iloc[:, number])
            raise DataError(
                f"inputs: column '{name}' has no numbers, such as '{found}'; convert it, or select the columns of numbers"
            )
    return value.to_numpy(np.float32)


def not_a_number(values: Iterable[Any]) -> tuple[Any, int | None]:
    """The first value of a column that is no number, and its position if most others are numbers."""
    bad = [(value, place) for place, value in enumerate(values) if not _all_numbers([value])]
    size = len(values) if isinstance(values, Sized) else 0
    if not bad:
        return next(iter(values), None), None
    return bad[0][0], bad[0][1] if len(bad) < size / 2 else None


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).splitlines() or [""])[0]
