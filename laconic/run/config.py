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

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from laconic import data, models
from laconic.algorithm import Algorithm
from laconic.data.federated import ClientData
from laconic.engine.faults import Faults
from laconic.engine.numerics import Numerics
from laconic.errors import ConfigError, unknown_name
from laconic.link.uplink import ErrorFeedback
from laconic.parts import SLOTS, Part, explain, find_part, make_part
from laconic.recipes import RECIPES, make
from laconic.run.settings import Settings
from laconic.run.simulation import Simulation, initial_module, make_task

SHORT_NAMES = {
    "local_steps": "method.local_steps",
    "local_epochs": "method.local_epochs",
    "local_lr": "method.local_lr",
    "batch_size": "method.batch_size",
    "batch_order": "method.batch_order",
    "server_lr": "optimizer.server_lr",
    "compressor": "uplink.compressor",
    "dtype": "numerics.dtype",
    "strategy": "numerics.strategy",
    "vmap_width": "numerics.vmap_width",
    "drop": "faults.drop",
    "late": "faults.late",
    "duplicate": "faults.duplicate",
    "crash": "faults.crash",
    "lose_state": "faults.lose_state",
}
"""Parameters of parts that are common enough to stand at the top of a config, or to be options."""


_SECTIONS = [*SLOTS, "numerics", "faults"]
_FIRST = ("algorithm", "dataset", "partition", "clients", "model")


class RunConfig(Settings):
    """Everything that a run depends on."""

    algorithm: str = "fed_avg"
    dataset: str = "digits"
    partition: str | None = None
    """How the data set is split over clients; each data set has its own default."""
    clients: int | None = Field(None, ge=1)
    model: str | None = None
    """The data set's usual model when not given."""
    data_dir: str | None = None
    memory: bool = True
    """False: the uplink forgets what it did not send."""
    method: dict[str, Any] = {}
    uplink: dict[str, Any] = {}
    optimizer: dict[str, Any] = {}
    downlink: dict[str, Any] = {}

    def settings(self) -> Settings:
        """The part that has nothing to do with data, model and algorithm."""
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})

    def build_algorithm(self) -> Algorithm:
        """The recipe, with other parts and parameters where the config has them."""
        algorithm = make(self.algorithm)
        for slot in SLOTS:
            table = dict(getattr(self, slot))
            present = algorithm.parts()[slot]
            if slot == "uplink" and "compressor" in table and "compressor" not in present.parameters():
                # A compressor for an uplink that has none: with error feedback, unless another is named.
                table.setdefault("name", ErrorFeedback.name)
            name = table.pop("name", present.name)
            if name != present.name:
                kind = find_part(slot, name)
                algorithm = algorithm.replace(**{slot: make_part(kind, _inherited(kind, algorithm) | table)})
            elif table:
                algorithm = algorithm.replace(**{slot: table})
        return algorithm if self.memory else algorithm.replace(uplink=algorithm.uplink.without_memory())

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

    def resolved(self, simulation: Simulation) -> RunConfig:
        """The same config with every choice spelt out, so that running it again gives the same model."""
        parts = {slot: part.table() for slot, part in simulation.algorithm.parts().items()}
        settings = {name: getattr(simulation.settings, name) for name in Settings.model_fields}
        clients = simulation.data
        partition = self.partition or _default_partition(self.dataset)
        model = _absolute(self.model or default_model(clients))
        own = {"clients": len(clients), "partition": partition, "model": model, "dataset": _absolute(self.dataset)}
        return self.model_copy(update=parts | settings | own)

    def to_toml(self) -> str:
        """The config as a file's text; what is not set is left out."""
        table = self.model_dump(exclude_none=True)
        order = [*_FIRST, *(key for key in table if key not in _FIRST)]
        return tomli_w.dumps({key: table[key] for key in order if key in table and table[key] != {}})


def _inherited(kind: type[Part], algorithm: Algorithm) -> dict[str, Any]:
    """A link that is put in another's place keeps the compressor; one for the downlink takes the uplink's."""
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    uplink = algorithm.uplink.parameters()
    kept = {"compressor": uplink["compressor"]} if "compressor" in uplink else {}
    if isinstance(algorithm.uplink, ErrorFeedback):
        kept["memory"] = True
    return {key: value for key, value in kept.items() if key in known}


def default_model(clients: ClientData) -> str:
    """A model that fits the data: convolutions for images of 28 and more, a recurrent net for text, else an MLP."""
    if clients.kind == "next_token":
        return "char_gru"
    if len(clients.input_shape) == 3 and min(clients.input_shape[1:]) >= 28:
        return "lenet5"
    return "mlp:64" if clients.kind == "classification" else "mlp"


def _absolute(name: str) -> str:
    """A person's own file by its whole path, so that the config works from any folder."""
    path, colon, function = name.partition(".py")
    return f"{Path(path + colon).resolve()}{function}" if colon else name


def _default_partition(dataset: str) -> str | None:
    return next((info.default_partition for info in data.datasets() if info.name == dataset), None)


def load_config(path: Path | None, options: Mapping[str, Any]) -> RunConfig:
    """A file, overridden by options given as "key" or "part.parameter"."""
    table = _read(path) if path else {}
    _change_recipe(table, options.get("algorithm"))
    if "local_steps" in table and "local_epochs" in table:
        raise ConfigError(f"config '{path}': local_steps and local_epochs: only one of the two is allowed")
    for key in [key for key in table if key in SHORT_NAMES]:
        _assign(table, SHORT_NAMES[key], table.pop(key))
    for key, value in options.items():
        if value is not None:
            _assign(table, SHORT_NAMES.get(key, key), value)
    for key in [key for key in table if key not in RunConfig.model_fields]:
        # A parameter of one of the algorithm's parts may be named alone, as in Python.
        slots = make(table.get("algorithm", RunConfig.model_fields["algorithm"].default)).parts().items()
        owners = [slot for slot, part in slots if key in part.parameters()]
        if len(owners) != 1:
            raise unknown_name("key", key, [*RunConfig.model_fields, *SHORT_NAMES])
        _assign(table, f"{owners[0]}.{key}", table.pop(key))
    for section, model in (("numerics", Numerics), ("faults", Faults)):
        said = table.get(section)
        for key in said if isinstance(said, dict) else ():
            if key not in model.model_fields:
                raise unknown_name("key", key, model.model_fields, of=section)
    try:
        return RunConfig(**table)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _change_recipe(table: dict[str, Any], wanted: str | None) -> None:
    """Another algorithm than the file's brings its own parts: those that the file has only spelt out go with its own."""
    if wanted is None or wanted == table.get("algorithm") or table.get("algorithm") not in RECIPES:
        return
    before, after = make(table["algorithm"]).parts(), make(wanted).parts()
    for slot in SLOTS:
        section = table.get(slot)
        name = section.get("name") if isinstance(section, dict) else None
        if name == before[slot].name != after[slot].name:
            del table[slot]


def parse_setting(text: str) -> tuple[str, Any]:
    """`part.parameter=value` from the command line; the value is read as TOML, or else as a string.

    >>> parse_setting("optimizer.beta2=0.9"), parse_setting("optimizer.name=yogi")
    (('optimizer.beta2', 0.9), ('optimizer.name', 'yogi'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set '{text}': write part.parameter=value, as in optimizer.beta2=0.9")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"config '{path}': no such file")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config '{path}': not valid TOML: {error}") from None


def _assign(table: dict[str, Any], key: str, value: Any) -> None:
    head, dot, rest = key.partition(".")
    if not dot:
        if head in SLOTS and isinstance(value, str):
            value = {"name": value}
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
