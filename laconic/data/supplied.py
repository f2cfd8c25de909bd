"""Users' own data in any form: objects in Python, and files on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from torch.utils.data import DataLoader, Dataset

from laconic.core.errors import ConfigError, DataError, LaconicError
from laconic.core.user_code import import_file, importable, line_in
from laconic.data.arrays import Pair, first_line, from_arrays, is_bare, is_pair, with_named_inputs, without_empty
from laconic.data.columns import Columns
from laconic.data.divide import divide, some_clients
from laconic.data.federated import ClientData, FederatedData
from laconic.data.hugging_face import from_hugging_face, is_hub_data
from laconic.data.lazy import LazyData, check_map_style, from_datasets, read
from laconic.data.partition import parse_partition

Result = TypeVar("Result")


def is_file(name: str) -> bool:
    """Whether a data set's name refers to a user's Python file."""
    return name.endswith(".py") or ".py:" in name


def from_file(
    name: str, seed: int = 0, clients: int | None = None, partition: str | None = None, skip_empty: bool = False
) -> ClientData:
    """Load data by calling a function of a Python file: `path.py:function` (default function: clients).

    The function takes no argument or `seed`. It returns one of:

    - a ClientData;
    - a list with one (inputs, targets) pair or data set (of torch or Hugging Face) per client;
    - a `datasets.DatasetDict`, or a `FederatedDataset` or partitioner of Flower Datasets: see `from_hugging_face`;
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
    data, undivided = _call_file(path, function_name, seed, skip_empty)
    if undivided and isinstance(data, FederatedData | LazyData):
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
    if not isinstance(data, FederatedData | LazyData):
        raise ConfigError(f"clients is {clients}, but {name} generates {len(data)} of them; change it there")
    return some_clients(data, clients, seed)


def _call_file(path: Path, name: str, seed: int, skip_empty: bool) -> tuple[ClientData, bool]:
    """Return the data that the function returns, and whether its examples are not divided among clients."""
    with importable(path.parent):
        module = _run(path, "importing it", lambda: import_file(path))
        function = getattr(module, name, None)
        if not callable(function):
            raise ConfigError(f"{path} has no function '{name}'; write it, or name another: {path}:name")
        arguments = _arguments(path, name, function, seed)
        returned = _run(path, f"{name}()", lambda: function(**arguments))
        undivided = _as_one_client(returned)
        given = returned if undivided is None else undivided
        data = _run(path, f"{name}()", lambda: as_data(given, path.stem, skip_empty, "it returned"))
    return data, undivided is not None


def _arguments(path: Path, name: str, function: Callable[..., Any], seed: int) -> dict[str, int]:
    parameters = inspect.signature(function).parameters.values()
    accepts_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)
    optional_kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for p in parameters:
        if p.name != "seed" and p.default is p.empty and p.kind not in optional_kinds:
            raise ConfigError(f"{path}: {name}() requires '{p.name}'; only 'seed' is passed")
    return {"seed": seed} if accepts_seed else {}


def _as_one_client(returned: object) -> dict[str, Any] | None:
    """Convert examples without clients to the form with one client. None if `returned` has clients."""
    if is_bare(returned):
        return {"clients": [returned]}
    if isinstance(returned, Mapping) and "examples" in returned and "clients" not in returned:
        others = {key: value for key, value in returned.items() if key != "examples"}
        return others | {"clients": [returned["examples"]]}
    return None


def as_data(given: object, name: str = "data", skip_empty: bool = False, what: str = "data is") -> ClientData:
    """Data in any form that `from_file` describes. `what` starts the message of an error."""
    if isinstance(given, ClientData):
        return given
    if is_hub_data(given):
        return from_hugging_face(given, name=name, skip_empty=skip_empty)
    _refuse_undivided(given, what)
    options: dict[str, Any] = {"name": name, "skip_empty": skip_empty}
    if isinstance(given, Mapping):
        _refuse_streams(given)
        if isinstance(given.get("clients"), Mapping):
            return _named(given, name, skip_empty, what)
        options |= _options(given)
        given = options.pop("clients")
    _refuse_lists_of_arrays(given, what)
    if isinstance(given, Sequence) and len(given):
        test = with_named_inputs(options.pop("test", None))
        if _are_arrays(given):
            return _from_pairs(given, test, options)
        if not any(isinstance(client, int | float | str) for client in given):
            return _from_data_sets(given, test, options)
    raise DataError(
        f"{what} {type(given).__name__}; expected a ClientData, a non-empty list with one "
        '(inputs, targets) pair or torch Dataset per client, or a dictionary with "clients" and "test"'
    )


def _are_arrays(clients: Sequence[Any]) -> bool:
    return is_bare(clients) or all(is_pair(with_named_inputs(client)) for client in clients)


def _from_pairs(clients: Sequence[Any], test: Any, options: dict[str, Any]) -> ClientData:
    test_pair = test if test is None or is_pair(test) else read("test", test, Columns())
    return from_arrays(cast(Sequence[Pair], clients), test_pair, **options)


def _from_data_sets(clients: Sequence[Any], test: Any, options: dict[str, Any]) -> ClientData:
    make = from_hugging_face if is_hub_data(clients) else from_datasets
    return make(clients, test=tuple(test) if isinstance(test, list) and len(test) == 2 else test, **options)


def _named(given: Mapping[str, Any], name: str, skip_empty: bool, what: str) -> ClientData:
    """The data of a dictionary whose clients have names."""
    clients = given["clients"]
    without_empty(name, [*clients.values()], _size, skip_empty, [*clients])
    made = as_data({**given, "clients": [*clients.values()]}, name, skip_empty, what)
    assert isinstance(made, FederatedData | LazyData)
    return made.named([str(owner) for owner, part in clients.items() if _size(part)])


def _size(client: Any) -> int:
    return len(client[-1] if is_pair(client) or isinstance(client, tuple) else client)


def _refuse_streams(splits: Mapping[Any, Any]) -> None:
    """Refuse a split that has columns but no length."""
    for split, part in splits.items():
        if hasattr(part, "features") and not hasattr(part, "__len__"):
            check_map_style(f"data, split '{split}'", part)


def _refuse_undivided(given: object, what: str) -> None:
    """Refuse examples without clients, and say how to divide them."""
    if _as_one_client(given) is not None:
        raise DataError(
            f"{what} one (inputs, targets) pair; give a list with a pair per client, [(inputs, targets), …], or divide it: "
            "laconic.data.divide(laconic.data.from_arrays([(inputs, targets)]), clients=10, partition='iid')"
        )
    if hasattr(given, "iloc"):
        raise DataError(f"{what} a DataFrame; pass laconic.data.from_table(frame, TARGET, client=COLUMN)")
    if isinstance(given, Dataset | DataLoader):
        check_map_style("data", given)
        raise DataError(
            f"{what} one data set; give a list with a data set per client, as torch.utils.data.random_split makes it"
        )


def _refuse_lists_of_arrays(given: object, what: str) -> None:
    """Refuse (inputs, targets), each a list with one array per client."""
    if not isinstance(given, tuple) or len(given) != 2 or not all(isinstance(part, list) for part in given):
        return
    inputs, targets = given
    if not inputs or len(inputs) != len(targets) or not all(hasattr(part, "shape") for part in (*inputs, *targets)):
        return
    # Two clients, each a list [inputs, targets], look the same but for the lengths.
    are_clients = len(inputs) == 2 and len(inputs[0]) == len(inputs[1])
    if not are_clients and list(map(len, inputs)) == list(map(len, targets)):
        raise DataError(f"{what} a list of inputs and a list of targets; pair them: list(zip(inputs, targets))")


def _options(returned: Mapping[Any, Any]) -> dict[str, Any]:
    """Convert a returned dictionary to arguments of `from_arrays`."""
    allowed = ("clients", "test", "kind", "classes", "normalize", "labels")
    unknown = [str(key) for key in returned if key not in allowed]
    if unknown or "clients" not in returned:
        fault = f"unknown key '{unknown[0]}'" if unknown else "no key 'clients'"
        pair = (
            "; pass (bunch.data, bunch.target) of scikit-learn in a list" if {"data", "target"} <= set(returned) else ""
        )
        raise DataError(
            f"the dictionary has {fault}; allowed: {', '.join(allowed)}; or examples instead of clients{pair}"
        )
    return dict(returned)


def _run(path: Path, action: str, call: Callable[[], Result]) -> Result:
    try:
        return call()
    except LaconicError as error:
        raise type(error)(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        line = line_in(path, error)
        raise DataError(f"{path}{line}: {action} raised {type(error).__name__}: {first_line(error)}") from error
