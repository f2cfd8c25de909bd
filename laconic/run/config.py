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
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from laconic import data, models
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.combine import LINKS, in_groups, known, with_memory
from laconic.algorithms.recipes import RECIPES, make
from laconic.algorithms.uplinks.base import Compressed
from laconic.compression import Compressor
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.part import SLOTS, Part, find_part
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
_FIRST = ("algorithm", "dataset", "partition", "clients", "model")


class RunConfig(ConfigKeys):
    """Everything that a run depends on."""

    def settings(self) -> Settings:
        """The part that has nothing to do with data, model and algorithm."""
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})

    def build_algorithm(self) -> Algorithm:
        """The recipe, with other parts and parameters where the config has them."""
        tables = {slot: getattr(self, slot) for slot in SLOTS}
        changes = {slot: table for slot, table in tables.items() if table}
        if self.memory is not False:
            algorithm = make(self.algorithm, **changes)
            return algorithm.replace(uplink=with_memory(algorithm.uplink)) if self.memory else algorithm
        # Before the changes, too: a compressor may be one that a memory could not use.
        algorithm = make(self.algorithm)
        uplink = algorithm.uplink.without_memory()
        if "compressor" in self.uplink and "compressor" not in uplink.parameters():
            changes["uplink"] = {"name": Compressed.name} | self.uplink
        algorithm = algorithm.replace(uplink=uplink).replace(**changes)
        return algorithm.replace(uplink=algorithm.uplink.without_memory())

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
        parts = {slot: spelled_out(part) for slot, part in training.algorithm.parts().items()}
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


def spelled_out(part: Part) -> dict[str, Any]:
    """A part as a table that means the same in any recipe: with the groups of its compressor, also where they are usual."""
    table = part.table()
    compressor: Compressor | None = part.parameters().get("compressor")
    if compressor is not None and "@" not in table["compressor"]:
        table["compressor"] += f"@{compressor.by}"
    return table


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
    table = _read(path) if path else {}
    _load_own_parts(table, *layers)
    said = [pair for layer in layers for key, value in layer.items() for pair in _placed(key, value)]
    _change_recipe(table, dict(said).get("algorithm"))
    if "local_steps" in table and "local_epochs" in table:
        raise ConfigError(f"config '{path}': local_steps and local_epochs: only one of the two is allowed")
    for key in [key for key in table if key in SHORT_NAMES]:
        _assign(table, SHORT_NAMES[key], table.pop(key))
    _change_parts(table, dict(said))
    for key, value in said:
        _assign(table, key, value)
    for section, model in _TABLES.items():
        given = table.get(section)
        for key in given if isinstance(given, dict) else ():
            if key not in model.model_fields:
                raise unknown_name("key", key, model.model_fields, of=section)
    _place_parameters(table)
    config = _checked(table)
    return config.model_copy(update=_grouped(config))


def _load_own_parts(*layers: Mapping[str, Any]) -> None:
    """Before anything is looked up: names in a config may be those of a person's own parts."""
    for layer in layers:
        files = layer.get("imports") or []
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            raise ConfigError(f"imports = {files!r}: a list of Python files is allowed")
        load_parts(files)


def _checked(table: dict[str, Any]) -> RunConfig:
    try:
        return RunConfig(**table)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _place_parameters(table: dict[str, Any]) -> None:
    """A parameter of one of the algorithm's parts may be named alone, as in Python."""
    alone = {key: table.pop(key) for key in [*table] if key not in RunConfig.model_fields}
    if not alone:
        return
    algorithm = _checked(table).build_algorithm()
    for key, value in alone.items():
        owners = algorithm.owners(key)
        if not owners:
            raise unknown_name("key", key, [*RunConfig.model_fields, *SHORT_NAMES])
        if len(owners) > 1:
            ways = " or ".join(f"{slot}.{key}" for slot in owners)
            raise ConfigError(f"{key}: both {' and '.join(owners)} of {algorithm.name} have it; write {ways}")
        _assign(table, f"{owners[0]}.{key}", value)


def _grouped(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The tables of links, with the groups that the recipe gives to a compressor that does not say its own."""
    tables = {slot: getattr(config, slot) for slot in LINKS if "compressor" in getattr(config, slot)}
    parts = make(config.algorithm).parts()
    return {slot: table | {"compressor": in_groups(table["compressor"], slot, parts)} for slot, table in tables.items()}


def _change_recipe(table: dict[str, Any], wanted: str | None) -> None:
    """Another algorithm than the file's brings its own parts: those that the file has only spelled out go with its own."""
    if wanted is None or wanted == table.get("algorithm") or table.get("algorithm") not in RECIPES:
        return
    before, after = make(table["algorithm"]).parts(), make(wanted).parts()
    for slot in SLOTS:
        section = table.get(slot)
        name = section.get("name") if isinstance(section, dict) else None
        if name == before[slot].name != after[slot].name:
            del table[slot]


def _change_parts(table: dict[str, Any], said: Mapping[str, Any]) -> None:
    """Another part than the file's keeps those of the file's settings that it knows."""
    for slot in SLOTS:
        name, section = said.get(f"{slot}.name"), table.get(slot)
        if isinstance(name, str) and isinstance(section, dict) and section.get("name") != name:
            allowed = known(find_part(slot, name))
            table[slot] = {key: value for key, value in section.items() if key in allowed}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"config '{path}': no such file")
    try:
        table = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config '{path}': not valid TOML: {error}") from None
    for slot in SLOTS:
        if isinstance(table.get(slot), str):
            table[slot] = {"name": table[slot]}
    uplink = table.get("uplink")
    bare = isinstance(uplink, dict) and (uplink.get("name") == Compressed.name or uplink.get("memory") is False)
    if bare and table.get("memory") is True:
        # The first runs wrote this beside every uplink; one that is spelled out without memory is meant so.
        del table["memory"]
    return table


def _placed(key: str, value: Any) -> list[tuple[str, Any]]:
    """What an option says, each under the key that it has in the table; nothing if the option was not given.

    >>> _placed("local_lr", 0.1), _placed("downlink", "broadcast")
    ([('method.local_lr', 0.1)], [('downlink.name', 'broadcast')])
    """
    if value is None:
        return []
    if key in SLOTS and isinstance(value, dict):
        return [(f"{key}.{name}", each) for name, each in value.items()]
    return [(f"{key}.name" if key in SLOTS else SHORT_NAMES.get(key, key), value)]


def _assign(table: dict[str, Any], key: str, value: Any) -> None:
    head, dot, rest = key.partition(".")
    if not dot:
        table[head] = value
        return
    if head not in _SECTIONS:
        raise unknown_name("part", head, _SECTIONS)
    section = table.setdefault(head, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{head} = {section!r}: a table is allowed")
    # Steps and epochs exclude each other: what comes later wins over what the file says.
    if head == "method":
        section.pop({"local_steps": "local_epochs", "local_epochs": "local_steps"}.get(rest, ""), None)
    section[rest] = value
