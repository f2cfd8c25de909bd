"""The config of a run: a TOML file, options that override it, and the resolved config that a run directory stores.

algorithm = "fed_ams"
dataset = "digits"
rounds = 60

[method]
local_lr = 0.1

[optimizer]
name = "yogi"          # replaces the algorithm's own optimizer
server_lr = 0.05
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from laconic import data
from laconic.algorithms.algorithm import Algorithm, canonical
from laconic.algorithms.recipes import RECIPES, make
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.part import SLOTS, find_part, parameter_names
from laconic.core.user_code import absolute, check_trusted, is_own, load_parts, trust
from laconic.core.validation import validated
from laconic.data.federated import ClientData
from laconic.data.paths import split_path
from laconic.data.sources import SOURCES
from laconic.engine.settings import Faults, Network, RaySettings
from laconic.federation.settings import Defenses
from laconic.gradients.numerics import Numerics
from laconic.run.keys import SHORT_NAMES, ConfigKeys
from laconic.run.settings import Settings, flattened
from laconic.run.simulation import Simulation, task_of
from laconic.run.training import Training

_TABLES: dict[str, type[BaseModel]] = {
    "numerics": Numerics,
    "defense": Defenses,
    "faults": Faults,
    "network": Network,
    "ray": RaySettings,
}
_SECTIONS = [*SLOTS, *_TABLES]
Table = dict[str, Any]
_FIRST_KEYS = ("algorithm", "dataset", "partition", "clients", "model")


class RunConfig(ConfigKeys):
    """Everything that a run depends on."""

    def settings(self) -> Settings:
        """The settings that do not define the data, the model or the algorithm."""
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})

    def build_algorithm(self) -> Algorithm:
        """The recipe, with the parts and parameters that the config overrides."""
        return make(self.algorithm, **{slot: getattr(self, slot) for slot in SLOTS if getattr(self, slot)})

    def load_data(self) -> ClientData:
        """Load the data set, partitioned over clients."""
        keys = ("clients", "partition", "seed", "data_dir", "augment", "skip_empty")
        return data.load(self.dataset, **{key: getattr(self, key) for key in keys})

    def build(self, loaded: ClientData | None = None) -> Simulation:
        """Build a simulation that is ready to run. `loaded` replaces the config's data set."""
        algorithm = self.build_algorithm()
        clients = self.load_data() if loaded is None else loaded
        task = task_of(self.model or default_model(clients), clients, self.seed)
        return Simulation(algorithm, task, clients, self.settings())

    def resolved(self, training: Training) -> RunConfig:
        """The same config with every default explicit: running it again gives the same model."""
        parts = self._tables(training.algorithm)
        settings = {name: getattr(training.settings, name) for name in Settings.model_fields}
        clients = training.data
        partition = self.partition or _default_partition(self.dataset)
        model = absolute(self.model or default_model(clients))
        own = {"clients": len(clients), "partition": partition, "model": model, "dataset": _absolute_data(self.dataset)}
        return self.model_copy(update=parts | settings | own)

    def _tables(self, algorithm: Algorithm) -> dict[str, Table]:
        """The parts of an algorithm as tables. TOML has no null: a parameter that only the recipe sets is "none"."""
        tables = {slot: part.table() for slot, part in algorithm.parts().items()}
        own = RECIPES[self.algorithm]().parts() if self.algorithm in RECIPES else {}
        for slot, part in algorithm.parts().items():
            if type(part) is type(own.get(slot)):
                table = {key: value for key, value in tables[slot].items() if key != "name"}
                loaded = own[slot].replace(**table).parameters()
                unset = [key for key, value in part.parameters().items() if value is None and loaded[key] is not None]
                tables[slot] |= dict.fromkeys(unset, "none")
        return tables

    def to_toml(self) -> str:
        """The config as TOML, without keys that are not set."""
        table = self.model_dump(exclude_none=True)
        order = [*_FIRST_KEYS, *(key for key in table if key not in _FIRST_KEYS)]
        return tomli_w.dumps({key: table[key] for key in order if key in table and table[key] != {}})


def default_model(clients: ClientData) -> str:
    """The default model for the data: LeNet-5 for images of 28 x 28 or larger, a GRU for text, otherwise an MLP."""
    if clients.kind == "next_token":
        return "char_gru"
    if len(clients.input_shape) == 3 and min(clients.input_shape[1:]) >= 28:
        return "lenet5"
    return "mlp:64" if clients.kind == "classification" else "mlp"


def _absolute_data(name: str) -> str:
    found = None if name in SOURCES else split_path(name)
    return absolute(name) if found is None else f"{found[0].resolve()}{found[1]}"


def _default_partition(dataset: str) -> str | None:
    return next((info.default_partition for info in data.datasets() if info.name == dataset), None)


def load_config(path: Path | None, *layers: Mapping[str, Any]) -> RunConfig:
    """Read a config file and override it with layers of options, "key" or "slot.parameter". The last layer wins.

    Code that the layers name is trusted. Code that only the file names raises `UntrustedCode`, unless it was allowed by
    `trust`. Values are validated before any code runs. User files run before parts are resolved, since they register parts;
    an unknown key may be a parameter of such a part, so it is refused only afterward.
    """
    file = _read(path) if path else {}
    if "local_steps" in file and "local_epochs" in file:
        raise ConfigError(f"config '{path}': local_steps and local_epochs: only one of the two is allowed")
    tables = [_sections(layer) for layer in (file, *layers)]
    known = {key: value for key, value in reduce(_joined, tables).items() if key in RunConfig.model_fields}
    imports = _validated(known).imports
    for layer in layers:
        trust(code_in(layer))
    if path:
        check_trusted(path, code_in(file))
    load_parts(imports)
    tables = [_canonical(table) for table in tables]
    _change_recipe(tables[0], dict(pair for table in tables for pair in table.items()).get("algorithm"))
    _assign_slots(tables)
    return _validated(reduce(_merged, tables))


def stored_config(path: Path) -> RunConfig:
    """The config file of a run directory, which needs no defaults. Code that it names is not loaded."""
    return _validated(_read(path))


def code_in(table: Mapping[str, Any]) -> list[str]:
    """The code that settings name: Python files and functions, and a Ray cluster, whose machines exchange code.

    >>> code_in({"imports": ["own.py"], "model": "mlp:64", "method": {"function": "own:train"}})
    ['own.py', 'own:train']
    """
    found = []
    for key, value in flattened(dict(table)).items():
        word = key.rpartition(".")[2]
        for name in value if isinstance(value, list | tuple) else [value]:
            named = (
                word in ("dataset", "model", "probability")
                and isinstance(name, str)
                and (".py" in name or is_own(name))
            )
            if named or (word in ("imports", "function", "address", "ray_address") and name is not None):
                found.append(str(name))
    return found


def _validated(table: Table) -> RunConfig:
    for section, model in _TABLES.items():
        for key in table.get(section, {}):
            if key not in model.model_fields:
                raise unknown_name("key", key, model.model_fields, of=section)
    return validated(RunConfig, table)


def _sections(layer: Mapping[str, Any]) -> Table:
    """Group the settings of one layer by section, without those that are None.

    >>> _sections({"local_lr": 0.1, "uplink": "error_feedback", "rounds": None})
    {'method': {'local_lr': 0.1}, 'uplink': {'name': 'error_feedback'}}
    """
    table: Table = {}
    for key, value in layer.items():
        head, dot, rest = SHORT_NAMES.get(key, key).partition(".")
        if value is None:
            continue
        if dot and head not in _SECTIONS:
            raise unknown_name("part", head, _SECTIONS)
        if head not in _SECTIONS:
            table[head] = _files(value) if head == "imports" else value
            continue
        if head in SLOTS and not dot and isinstance(value, str):
            value = {"name": value}
        if not dot and not isinstance(value, dict):
            raise ConfigError(f"{head} = {value!r}: a table is allowed")
        table[head] = table.get(head, {}) | ({rest: value} if dot else value)
    return table


def _files(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(file, str) for file in value):
        raise ConfigError(f"imports = {value!r}: a list of Python files is allowed")
    return [absolute(file) for file in value]


def _canonical(table: Table) -> Table:
    return table | {slot: canonical(slot, table[slot]) for slot in SLOTS if slot in table}


def _joined(earlier: Table, later: Table) -> Table:
    """Merge two layers by key, whatever the parts are. Imports of both count."""
    sections = {key: earlier.get(key, {}) | later[key] for key in _SECTIONS if key in later}
    imports = dict.fromkeys([*earlier.get("imports", []), *later.get("imports", [])])
    return earlier | later | sections | ({"imports": [*imports]} if imports else {})


def _merged(earlier: Table, later: Table) -> Table:
    """Merge two layers; the later one takes precedence."""
    kept = {key: _kept(key, earlier[key], later[key]) for key in SLOTS if key in earlier and key in later}
    return _joined(earlier | kept, later)


def _kept(section: str, earlier: Table, later: Table) -> Table:
    """The settings of an earlier layer that a later one leaves valid."""
    old, new = earlier.get("name"), later.get("name")
    if old is not None and new not in (None, old):
        # The new part keeps the earlier settings of parameters that both parts have.
        dropped = {*parameter_names(find_part(section, old))} - {*parameter_names(find_part(section, str(new)))}
        earlier = {key: value for key, value in earlier.items() if key not in dropped}
    # Steps and epochs exclude each other: the later layer decides.
    exclusive = {"local_steps", "local_epochs"}
    if section == "method" and exclusive & later.keys():
        earlier = {key: value for key, value in earlier.items() if key not in exclusive}
    return earlier


def _assign_slots(tables: list[Table]) -> None:
    """Move parameters that are given without a slot, as in Python, into the section of the part that has them."""
    without_slot = [(table, key) for table in tables for key in table if key not in RunConfig.model_fields]
    if not without_slot:
        return
    merged = reduce(_merged, tables)
    algorithm = make(merged.get("algorithm", "fed_avg"))
    parts = {slot: merged[slot] for slot in SLOTS if slot in merged}
    for table, key in without_slot:
        if not algorithm.owners(key, parts):
            raise unknown_name("key", key, [*RunConfig.model_fields, *SHORT_NAMES])
        slot = algorithm.owner(key, parts)
        table[slot] = canonical(slot, table.get(slot, {}) | {key: table.pop(key)})


def _change_recipe(file: Table, wanted: str | None) -> None:
    """If another algorithm overrides the file's, drop parts that the file names only as the old algorithm's defaults.

    The config of a run directory names every part. Without this, the new algorithm would get the old one's parts.
    """
    if wanted is None or wanted == file.get("algorithm") or file.get("algorithm") not in RECIPES:
        return
    old_parts, new_parts = make(file["algorithm"]).parts(), make(wanted).parts()
    for slot in SLOTS:
        old, new, given = old_parts[slot].table(), new_parts[slot].table(), file.get(slot, {})
        # Uplinks with and without memory share a name but are different parts.
        kinds = [tuple(table.get(key, old.get(key)) for key in ("name", "memory")) for table in (given, old, new)]
        if "name" in given and kinds[0] == kinds[1] != kinds[2]:
            del file[slot]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        hint = f"; for the algorithm, write --algorithm {path}" if str(path) in RECIPES else ""
        raise ConfigError(f"config '{path}': no such file{hint}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config '{path}': not valid TOML: {error}") from None
