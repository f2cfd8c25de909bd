"""The config of a run: a TOML file, options that override it, and the resolved form that a run directory keeps.

algorithm = "fed_ams"
dataset = "digits"
rounds = 60

[method]
local_lr = 0.1

[optimizer]
name = "yogi"          # another part in this slot
server_lr = 0.05
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from laconic import data, models
from laconic.algorithms.algorithm import Algorithm, canonical
from laconic.algorithms.recipes import RECIPES, make
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.part import SLOTS, find_part, parameter_names
from laconic.core.user_code import load_parts
from laconic.core.validation import explain
from laconic.data.federated import ClientData
from laconic.engine.settings import Faults, Network, RaySettings
from laconic.federation.settings import Defenses
from laconic.gradients.numerics import Numerics
from laconic.run.keys import SHORT_NAMES, ConfigKeys
from laconic.run.settings import Settings
from laconic.run.simulation import Simulation, initial_module, make_task
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
_FIRST = ("algorithm", "dataset", "partition", "clients", "model")


class RunConfig(ConfigKeys):
    """Everything that a run depends on."""

    def settings(self) -> Settings:
        """The part that has nothing to do with data, model and algorithm."""
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})

    def build_algorithm(self) -> Algorithm:
        """The recipe, with other parts and parameters where the config has them."""
        return make(self.algorithm, **{slot: getattr(self, slot) for slot in SLOTS if getattr(self, slot)})

    def load_data(self) -> ClientData:
        """The data set, split over clients."""
        return data.load(
            self.dataset, clients=self.clients, partition=self.partition, seed=self.seed, data_dir=self.data_dir
        )

    def build(self, loaded: ClientData | None = None) -> Simulation:
        """A simulation, ready to run."""
        algorithm = self.build_algorithm()
        clients = self.load_data() if loaded is None else loaded
        name = self.model or default_model(clients)
        outputs = clients.classes or 1
        module = initial_module(lambda: models.build(name, clients.input_shape, outputs), self.seed)
        return Simulation(algorithm, make_task(module, clients), clients, self.settings())

    def resolved(self, training: Training) -> RunConfig:
        """The same config with every choice spelled out, so that running it again gives the same model."""
        parts = {slot: part.table() for slot, part in training.algorithm.parts().items()}
        settings = {name: getattr(training.settings, name) for name in Settings.model_fields}
        clients = training.data
        partition = self.partition or _default_partition(self.dataset)
        model = _absolute(self.model or default_model(clients))
        files = {"dataset": _absolute(self.dataset), "imports": [_absolute(file) for file in self.imports]}
        own: dict[str, Any] = {"clients": len(clients), "partition": partition, "model": model, **files}
        return self.model_copy(update=parts | settings | own)

    def to_toml(self) -> str:
        """The config as a file's text; what is not set is left out."""
        table = self.model_dump(exclude_none=True)
        order = [*_FIRST, *(key for key in table if key not in _FIRST)]
        return tomli_w.dumps({key: table[key] for key in order if key in table and table[key] != {}})


def default_model(clients: ClientData) -> str:
    """A model that fits the data: convolutions for images of 28 and more, a recurrent net for text, else an MLP."""
    if clients.kind == "next_token":
        return "char_gru"
    if len(clients.input_shape) == 3 and min(clients.input_shape[1:]) >= 28:
        return "lenet5"
    return "mlp:64" if clients.kind == "classification" else "mlp"


def _absolute(name: str) -> str:
    """A person's own file by its whole path, so that the config works from any folder."""
    path, colon, function = name.partition(".py:")
    if colon:
        return f"{Path(f'{path}.py').resolve()}:{function}"
    return str(Path(name).resolve()) if name.endswith(".py") else name


def _default_partition(dataset: str) -> str | None:
    return next((info.default_partition for info in data.datasets() if info.name == dataset), None)


def load_config(path: Path | None, *layers: Mapping[str, Any]) -> RunConfig:
    """A file, overridden by options given as "key" or "part.parameter"; of several layers of them the last wins."""
    file = _read(path) if path else {}
    _load_own_parts(file, *layers)
    if "local_steps" in file and "local_epochs" in file:
        raise ConfigError(f"config '{path}': local_steps and local_epochs: only one of the two is allowed")
    tables = [_sections(layer) for layer in (file, *layers)]
    _change_recipe(tables[0], dict(pair for table in tables for pair in table.items()).get("algorithm"))
    _place_parameters(tables)
    table = reduce(_merged, tables)
    for section, model in _TABLES.items():
        for key in table.get(section, {}):
            if key not in model.model_fields:
                raise unknown_name("key", key, model.model_fields, of=section)
    try:
        return RunConfig(**table)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _load_own_parts(*layers: Mapping[str, Any]) -> None:
    """Before anything is looked up: names in a config may be those of a person's own parts."""
    for layer in layers:
        files = layer.get("imports") or []
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            raise ConfigError(f"imports = {files!r}: a list of Python files is allowed")
        load_parts(files)


def _sections(layer: Mapping[str, Any]) -> Table:
    """What one layer says, each setting in the section that it belongs to; options that were not given are left out.

    >>> _sections({"local_lr": 0.1, "uplink": "error_feedback", "rounds": None})
    {'method': {'local_lr': 0.1}, 'uplink': {'memory': True, 'name': 'compressed'}}
    """
    table: Table = {}
    for key, value in layer.items():
        head, dot, rest = SHORT_NAMES.get(key, key).partition(".")
        if value is None:
            continue
        if dot and head not in _SECTIONS:
            raise unknown_name("part", head, _SECTIONS)
        if head not in _SECTIONS:
            table[head] = value
            continue
        if head in SLOTS and not dot and isinstance(value, str):
            value = {"name": value}
        if not dot and not isinstance(value, dict):
            raise ConfigError(f"{head} = {value!r}: a table is allowed")
        table[head] = table.get(head, {}) | ({rest: value} if dot else value)
    return table | {slot: canonical(slot, table[slot]) for slot in SLOTS if slot in table}


def _merged(earlier: Table, later: Table) -> Table:
    """Two layers as one: what the later one says wins."""
    sections = {key: _replaced(key, earlier.get(key, {}), later[key]) for key in _SECTIONS if key in later}
    return earlier | later | sections


def _replaced(section: str, earlier: Table, later: Table) -> Table:
    before, now = earlier.get("name"), later.get("name")
    if section in SLOTS and before is not None and now not in (None, before):
        # Another part keeps those settings of the one before it that it knows.
        gone = {*parameter_names(find_part(section, before))} - {*parameter_names(find_part(section, str(now)))}
        earlier = {key: value for key, value in earlier.items() if key not in gone}
    # Steps and epochs exclude each other: what comes later wins.
    either = {"local_steps", "local_epochs"}
    if section == "method" and either & later.keys():
        earlier = {key: value for key, value in earlier.items() if key not in either}
    return earlier | later


def _place_parameters(tables: list[Table]) -> None:
    """A parameter of one of the algorithm's parts may be named alone, as in Python."""
    alone = [(table, key) for table in tables for key in table if key not in RunConfig.model_fields]
    if not alone:
        return
    merged = reduce(_merged, tables)
    algorithm, parts = (
        make(merged.get("algorithm", "fed_avg")),
        {slot: merged[slot] for slot in SLOTS if slot in merged},
    )
    for table, key in alone:
        if not algorithm.owners(key, parts):
            raise unknown_name("key", key, [*RunConfig.model_fields, *SHORT_NAMES])
        slot = algorithm.owner(key, parts)
        table[slot] = canonical(slot, table.get(slot, {}) | {key: table.pop(key)})


def _change_recipe(file: Table, wanted: str | None) -> None:
    """Another algorithm than the file's brings its own parts: those that the file has only spelled out go with its own."""
    if wanted is None or wanted == file.get("algorithm") or file.get("algorithm") not in RECIPES:
        return
    before, after = make(file["algorithm"]).parts(), make(wanted).parts()
    for slot in SLOTS:
        usual, new, given = before[slot].table(), after[slot].table(), file.get(slot, {})
        # A memory makes another uplink of one that has the same name.
        kinds = [tuple(table.get(key, usual.get(key)) for key in ("name", "memory")) for table in (given, usual, new)]
        if "name" in given and kinds[0] == kinds[1] != kinds[2]:
            del file[slot]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"config '{path}': no such file")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config '{path}': not valid TOML: {error}") from None
