"""Users' own data: arrays, torch data sets, or a Python file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from laconic.core.errors import ConfigError, DataError, LaconicError
from laconic.core.randomness import Draw, Randomness
from laconic.core.user_code import import_file, importable, line_in
from laconic.data.federated import Array, ClientData, Examples, FederatedData, Kind, Normalize, compact
from laconic.data.partition import natural, parse_partition

Pair = tuple[Array, Array]
_ARRAYS = (np.ndarray, Tensor)
Result = TypeVar("Result")


def from_arrays(
    clients: Sequence[Pair],
    test: Pair | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    name: str = "arrays",
    normalize: Normalize | None = None,
    labels: Sequence[str] | None = None,
) -> FederatedData:
    """Build federated data from one (inputs, targets) pair per client.

    Args:
        kind: Defaults to classification for integer or text targets, regression for floating-point targets.
        labels: The class names, if targets are text: class i is labels[i]. Defaults to all names in the data in
            alphabetical order. A node, which has only a part of the data, must pass all labels.
        normalize: For uint8 images: (mean, standard deviation) per channel of the values divided by 255.

    >>> data = from_arrays([(np.zeros((3, 2)), np.array([0, 1, 1])), (np.ones((1, 2)), np.array([2]))])
    >>> data.kind, data.classes, data.sizes().tolist(), data.input_shape
    ('classification', 3, [3, 1], (2,))
    """
    if len(clients) == 0:
        raise DataError(f"{name}: there are no clients")
    if _bare(clients):
        raise DataError(
            f"{name}: one (inputs, targets) pair; give a list with a pair per client, [(inputs, targets), …]"
        )
    clients, test, class_names = _encode_labels(name, clients, test, labels)
    pairs = [_tensors(f"{name}, client {client}", pair) for client, pair in enumerate(clients)]
    _check_shapes(name, pairs)
    ends = np.cumsum([0, *(len(inputs) for inputs, _ in pairs)])
    split = [np.arange(start, end, dtype=np.int64) for start, end in pairwise(ends)]
    inputs, targets = (torch.cat(list(parts)) for parts in zip(*pairs, strict=True))
    test_pair = None if test is None else _tensors(f"{name} (test)", test)
    kind = kind or ("regression" if targets.is_floating_point() else "classification")
    if kind != "regression" and classes is None:
        both = [targets] if test_pair is None else [targets, test_pair[1]]
        classes = len(class_names or ()) or 1 + max(int(part.max()) for part in both if part.numel())
    test_set = None if test_pair is None else Examples(*test_pair, normalize)
    examples = Examples(inputs, targets, normalize)
    labels_found = bool(class_names and not labels)
    return FederatedData(name, kind, examples, split, test_set, classes, class_names, labels_found)


def _check_shapes(name: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    first_inputs, first_targets = pairs[0]
    for client, (inputs, targets) in enumerate(pairs):
        if inputs.shape[1:] != first_inputs.shape[1:] or targets.shape[1:] != first_targets.shape[1:]:
            raise DataError(
                f"{name}: client {client} has shapes {tuple(inputs.shape)} and {tuple(targets.shape)}, "
                f"client 0 has {tuple(first_inputs.shape)} and {tuple(first_targets.shape)}"
            )
        if len(inputs) != len(targets):
            raise DataError(f"{name}: client {client} has {len(inputs)} inputs but {len(targets)} targets")


def from_datasets(
    clients: Sequence[Dataset[Any]],
    test: Dataset[Any] | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    name: str = "datasets",
    normalize: Normalize | None = None,
    labels: Sequence[str] | None = None,
) -> FederatedData:
    """Build federated data from one torch data set of (input, target) samples per client, read once and stacked.

    The other arguments are those of `from_arrays`.
    """
    pairs = [_stack(f"{name}, client {client}", dataset) for client, dataset in enumerate(clients)]
    test_pair = None if test is None else _stack(f"{name} (test)", test)
    return from_arrays(pairs, test_pair, kind, classes, name, normalize, labels)


def divide(data: FederatedData, clients: int, partition: str, seed: int = 0) -> FederatedData:
    """Return the same examples with a new partition, as `load` partitions a named data set.

    >>> whole = from_arrays([(np.zeros((6, 2)), np.array([0, 1, 2, 0, 1, 2]))])
    >>> divide(whole, clients=3, partition="shards:1").label_counts().max(axis=1).tolist()
    [2, 2, 2]
    """
    generator = Randomness(seed).numpy(Draw.PARTITION)
    split = parse_partition(partition).split(data.examples.targets.numpy(), clients, generator)
    return replace(data, clients=split)


def is_file(name: str) -> bool:
    """Whether a data set's name refers to a user's Python file."""
    return name.endswith(".py") or ".py:" in name


def from_file(name: str, seed: int = 0, clients: int | None = None, partition: str | None = None) -> ClientData:
    """Load data by calling a function of a Python file: `path.py:function` (default function: clients).

    The function takes no argument or `seed`. It returns one of:

    - a ClientData;
    - a list with one (inputs, targets) pair or torch data set per client;
    - a dictionary with "clients" (such a list) and optionally "test", "kind", "classes", "normalize" and "labels";
    - examples without clients, which `partition` divides: one pair of arrays, or a dictionary with "examples"
      instead of "clients".

    If the function returns clients, `clients` may select a random subset of them.
    """
    chosen = None if partition is None else parse_partition(partition)
    head, extension, function_name = name.partition(".py:")
    path = Path(head + ".py" if extension else name)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    function_name = function_name or "clients"
    data, undivided = _call_file(path, function_name, seed)
    if undivided and isinstance(data, FederatedData):
        if clients is None or partition is None:
            raise ConfigError(
                f"{path}: {function_name}() returned examples without clients: divide them, as by --partition iid "
                "--clients 20 (or dirichlet:0.3, shards:2, …), or return a list with one (inputs, targets) pair per client"
            )
        return divide(data, clients, partition, seed)
    if chosen is not None and chosen.name != "natural":
        raise ConfigError(
            f"partition '{partition}': {name} makes its own clients; leave partition out, or return "
            '{"examples": (inputs, targets)} to have them divided'
        )
    if clients is None or clients == len(data):
        return data
    if not isinstance(data, FederatedData):
        raise ConfigError(f"clients is {clients}, but {name} generates {len(data)} of them; change it there")
    return replace(data, clients=natural(data.clients, clients, Randomness(seed).numpy(Draw.PARTITION)))


def _call_file(path: Path, name: str, seed: int) -> tuple[ClientData, bool]:
    """Return the data that the function returns, and whether its examples are not divided among clients."""
    with importable(path.parent):
        module = _run(path, "importing it", lambda: import_file(path))
        function = getattr(module, name, None)
        if not callable(function):
            raise ConfigError(f"{path} has no function '{name}'; write it, or name another: {path}:name")
        arguments = _arguments(path, name, function, seed)
        returned = _run(path, f"{name}()", lambda: function(**arguments))
        undivided = _as_one_client(returned)
        data = _run(path, f"{name}()", lambda: _as_data(returned if undivided is None else undivided, path.stem))
    return data, undivided is not None


def _arguments(path: Path, name: str, function: Callable[..., Any], seed: int) -> dict[str, int]:
    parameters = inspect.signature(function).parameters.values()
    accepts_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)
    optional_kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for p in parameters:
        if p.name != "seed" and p.default is p.empty and p.kind not in optional_kinds:
            raise ConfigError(f"{path}: {name}() requires '{p.name}'; only 'seed' is passed")
    return {"seed": seed} if accepts_seed else {}


def _bare(value: object) -> bool:
    """Whether the value is one (inputs, targets) pair instead of a list of clients."""
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, _ARRAYS) for part in value)


def _as_one_client(returned: object) -> dict[str, Any] | None:
    """Convert examples without clients to the form with one client. None if `returned` has clients."""
    if _bare(returned):
        return {"clients": [returned]}
    if isinstance(returned, Mapping) and "examples" in returned and "clients" not in returned:
        others = {key: value for key, value in returned.items() if key != "examples"}
        return others | {"clients": [returned["examples"]]}
    return None


def _as_data(returned: object, name: str) -> ClientData:
    if isinstance(returned, ClientData):
        return returned
    options: dict[str, Any] = {"name": name}
    if isinstance(returned, Mapping):
        options |= _options(returned)
        returned = options.pop("clients")
    if isinstance(returned, Sequence) and len(returned):
        if all(_is_pair(client) for client in returned):
            return from_arrays(cast(Sequence[Pair], returned), **options)
        if all(hasattr(client, "__getitem__") and hasattr(client, "__len__") for client in returned):
            pairs = [_stack(f"client {client}", dataset) for client, dataset in enumerate(returned)]
            return from_arrays(pairs, **options)
    raise DataError(
        f"it returned {type(returned).__name__}; expected a ClientData, a non-empty list with one "
        '(inputs, targets) pair or torch Dataset per client, or a dictionary with "clients" and "test"'
    )


def _options(returned: Mapping[Any, Any]) -> dict[str, Any]:
    """Convert a returned dictionary to arguments of `from_arrays`."""
    allowed = ("clients", "test", "kind", "classes", "normalize", "labels")
    unknown = [str(key) for key in returned if key not in allowed]
    if unknown or "clients" not in returned:
        fault = f"unknown key '{unknown[0]}'" if unknown else "no key 'clients'"
        raise DataError(f"the dictionary has {fault}; allowed: {', '.join(allowed)}; or examples instead of clients")
    test = returned.get("test")
    return {**returned, "test": test if test is None or _is_pair(test) else _stack("test", test)}


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _encode_labels(
    name: str, clients: Sequence[Pair], test: Pair | None, given: Sequence[str] | None
) -> tuple[Sequence[Pair], Pair | None, tuple[str, ...] | None]:
    """Replace text targets by class numbers. Return clients, test and the labels in the order of their numbers."""
    pairs = [pair for pair in (*clients, *([] if test is None else [test])) if _is_pair(pair)]
    all_targets = [np.asarray(pair[1]) for pair in pairs if _has_text(pair[1])]
    if not all_targets:
        return clients, test, None
    labels = _labels(name, np.concatenate(all_targets), given)
    numbers = {label: number for number, label in enumerate(labels)}

    def encode(where: str, pair: Pair) -> Pair:
        if not _is_pair(pair):
            raise DataError(f"{name}: {where} is not a pair of inputs and targets")
        if len(pair[1]) and not _has_text(pair[1]):
            raise DataError(f"{name}: {where} has numbers as targets, but others have text")
        return pair[0], np.array([numbers[text] for text in np.asarray(pair[1]).tolist()], dtype=np.int64)

    encoded = [encode(f"client {client}", pair) for client, pair in enumerate(clients)]
    return encoded, None if test is None else encode("the test", test), labels


def _labels(name: str, texts: np.ndarray[Any, Any], given: Sequence[str] | None) -> tuple[str, ...]:
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


def _has_text(targets: Array) -> bool:
    if isinstance(targets, Tensor):
        return False
    try:
        values = np.asarray(targets)
    except ValueError:  # ragged rows: _tensors reports them with a better message
        return False
    return values.ndim == 1 and values.dtype.kind in "UO" and any(isinstance(value, str) for value in values)


def _all_numbers(texts: Iterable[str]) -> bool:
    try:
        [float(text) for text in texts]
    except ValueError:
        return False
    return True


def _tensors(where: str, pair: Pair) -> tuple[Tensor, Tensor]:
    try:
        inputs, targets = (torch.as_tensor(part) for part in pair)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: not a pair of numeric arrays ({_first_line(error)})") from error
    if inputs.ndim == 0 or targets.ndim == 0:
        raise DataError(f"{where}: inputs and targets need a first dimension that counts the examples")
    return compact(inputs), compact(targets)


def _stack(where: str, dataset: Any) -> Pair:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{where}: a data set needs a length and numbered samples, not {type(dataset).__name__}")
    if len(dataset) == 0:
        raise DataError(f"{where} has no examples")
    inputs: list[Tensor] = []
    targets: list[Any] = []
    for position in range(len(dataset)):
        try:
            sample, target = dataset[position]
            inputs.append(torch.as_tensor(sample))
            targets.append(target if isinstance(target, str) else torch.as_tensor(target))
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{where}: sample {position} is not a pair of numbers or arrays ({_first_line(error)})"
            ) from error
    try:
        is_text = isinstance(targets[0], str)
        return torch.stack(inputs), np.array(targets, dtype=object) if is_text else torch.stack(targets)
    except (RuntimeError, TypeError) as error:
        raise DataError(f"{where}: the samples differ in shape ({_first_line(error)})") from error


def _run(path: Path, action: str, call: Callable[[], Result]) -> Result:
    try:
        return call()
    except LaconicError as error:
        raise type(error)(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        line = line_in(path, error)
        raise DataError(f"{path}{line}: {action} raised {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
