"""Data that people bring: arrays, torch data sets, or a Python file of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from laconic.data.federated import Array, ClientData, Examples, FederatedData, Kind, Normalise, compact
from laconic.errors import ConfigError, DataError, LaconicError
from laconic.own_code import import_file, importable, line_in

Pair = tuple[Array, Array]
Result = TypeVar("Result")


def from_arrays(
    clients: Sequence[Pair],
    test: Pair | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    name: str = "arrays",
    normalise: Normalise | None = None,
) -> FederatedData:
    """One (inputs, targets) pair per client. Integer labels mean classification, floating targets regression.

    `normalise` is for uint8 images: (mean, standard deviation) per channel of the values over 255.

    >>> data = from_arrays([(np.zeros((3, 2)), np.array([0, 1, 1])), (np.ones((1, 2)), np.array([2]))])
    >>> data.kind, data.classes, data.sizes().tolist(), data.input_shape
    ('classification', 3, [3, 1], (2,))
    """
    if len(clients) == 0:
        raise DataError(f"{name}: there are no clients")
    pairs = [_tensors(f"{name}, client {client}", pair) for client, pair in enumerate(clients)]
    for client, (inputs, targets) in enumerate(pairs):
        first_inputs, first_targets = pairs[0]
        if inputs.shape[1:] != first_inputs.shape[1:] or targets.shape[1:] != first_targets.shape[1:]:
            raise DataError(
                f"{name}: client {client} has shapes {tuple(inputs.shape)} and {tuple(targets.shape)}, "
                f"client 0 has {tuple(first_inputs.shape)} and {tuple(first_targets.shape)}"
            )
        if len(inputs) != len(targets):
            raise DataError(f"{name}: client {client} has {len(inputs)} inputs but {len(targets)} targets")
    ends = np.cumsum([0, *(len(inputs) for inputs, _ in pairs)])
    split = [np.arange(start, end, dtype=np.int64) for start, end in pairwise(ends)]
    inputs, targets = (torch.cat(list(parts)) for parts in zip(*pairs, strict=True))
    test_pair = None if test is None else _tensors(f"{name} (test)", test)
    kind = kind or ("regression" if targets.is_floating_point() else "classification")
    if kind != "regression" and classes is None:
        both = [targets] if test_pair is None else [targets, test_pair[1]]
        classes = 1 + max(int(part.max()) for part in both if part.numel())
    held_out = None if test_pair is None else Examples(*test_pair, normalise)
    return FederatedData(name, kind, Examples(inputs, targets, normalise), split, held_out, classes)


def from_datasets(
    clients: Sequence[Dataset[Any]],
    test: Dataset[Any] | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    name: str = "datasets",
    normalise: Normalise | None = None,
) -> FederatedData:
    """One torch data set of (input, target) samples per client; the samples are read once and stacked."""
    pairs = [_stack(f"{name}, client {client}", dataset) for client, dataset in enumerate(clients)]
    held_out = None if test is None else _stack(f"{name} (test)", test)
    return from_arrays(pairs, held_out, kind, classes, name, normalise)


def is_file(name: str) -> bool:
    """Whether a data set's name means a person's own file."""
    return name.endswith(".py") or ".py:" in name


def from_file(name: str, seed: int = 0) -> ClientData:
    """Data from `path.py` or `path.py:function` (default function: clients).

    The function takes nothing or `seed`, and returns a ClientData, a list of (inputs, targets) pairs or of
    torch data sets (one per client), or a dictionary with "clients" (such a list) and, if wished, "test",
    "kind", "classes" and "normalise".
    """
    head, extension, function_name = name.partition(".py:")
    path = Path(head + ".py" if extension else name)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    function_name = function_name or "clients"
    with importable(path.parent):
        module = _run(path, "importing it", lambda: import_file(path))
        function = getattr(module, function_name, None)
        if not callable(function):
            raise ConfigError(f"{path} has no function '{function_name}'; write it, or name another: {path}:name")
        arguments = _arguments(path, function_name, function, seed)
        returned = _run(path, f"{function_name}()", lambda: function(**arguments))
        return _run(path, f"{function_name}()", lambda: _as_data(returned, path.stem))


def _arguments(path: Path, name: str, function: Callable[..., Any], seed: int) -> dict[str, int]:
    parameters = inspect.signature(function).parameters.values()
    accepts_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)
    optional_kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for p in parameters:
        if p.name != "seed" and p.default is p.empty and p.kind not in optional_kinds:
            raise ConfigError(f"{path}: {name}() asks for '{p.name}'; only 'seed' is given")
    return {"seed": seed} if accepts_seed else {}


def _as_data(returned: object, name: str) -> ClientData:
    if isinstance(returned, ClientData):
        return returned
    options: dict[str, Any] = {"name": name}
    if isinstance(returned, Mapping):
        allowed = ("clients", "test", "kind", "classes", "normalise")
        unknown = [str(key) for key in returned if key not in allowed]
        if unknown or "clients" not in returned:
            fault = f"unknown key '{unknown[0]}'" if unknown else "no key 'clients'"
            raise DataError(f"the dictionary has {fault}; allowed: {', '.join(allowed)}")
        options |= returned
        returned = options.pop("clients")
        test = options.get("test")
        options["test"] = test if test is None or _is_pair(test) else _stack("test", test)
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


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _tensors(where: str, pair: Pair) -> tuple[Tensor, Tensor]:
    try:
        inputs, targets = (torch.as_tensor(part) for part in pair)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: not a pair of numeric arrays ({_first_line(error)})") from error
    if inputs.ndim == 0 or targets.ndim == 0:
        raise DataError(f"{where}: inputs and targets need a first dimension that counts the examples")
    return compact(inputs), compact(targets)


def _stack(where: str, dataset: Any) -> tuple[Tensor, Tensor]:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{where}: a data set needs a length and numbered samples, not {type(dataset).__name__}")
    if len(dataset) == 0:
        raise DataError(f"{where} has no examples")
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for position in range(len(dataset)):
        try:
            sample, target = dataset[position]
            inputs.append(torch.as_tensor(sample))
            targets.append(torch.as_tensor(target))
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{where}: sample {position} is not a pair of numbers or arrays ({_first_line(error)})"
            ) from error
    try:
        return torch.stack(inputs), torch.stack(targets)
    except RuntimeError as error:
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
