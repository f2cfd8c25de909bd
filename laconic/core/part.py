"""What the four slots have in common: a part is a frozen set of named parameters, checked when it is made.

A part keeps nothing else: what changes in training is its *state*, a flat dict of tensors that is handed in and returned
(design rule 3), so it can be checkpointed, hashed, compared and sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from laconic.core.errors import ConfigError, unknown_name
from laconic.core.validation import explain

State = dict[str, Tensor]
"""The state of one part: tensors by name."""

P = TypeVar("P", bound="Part")


V = TypeVar("V")


def section(state: Mapping[str, V], name: str) -> dict[str, V]:
    """The entries of one part in a state that holds several, without their prefix."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


SLOTS: dict[str, dict[str, type[Part]]] = {"method": {}, "uplink": {}, "optimizer": {}, "downlink": {}}
"""Every part that can be named in a config, by slot and name."""


class Part:
    """Something that fills one of the four slots of an `Algorithm`."""

    slot: ClassVar[str]
    name: ClassVar[str]
    absent: ClassVar[Mapping[str, str]] = {}
    """Parameters that similar parts have and this one has not, and why."""
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Other names of the part, or its own, and the parameters that each of them sets."""

    def parameters(self) -> dict[str, Any]:
        """The part's settings, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def replace(self: P, **changes: Any) -> P:
        """The same part with other parameters; an unknown one fails with the nearest name."""
        return make_part(type(self), {**self.parameters(), **changes})

    def table(self) -> dict[str, Any]:
        """The part as a config table: its name, and every parameter that is set."""
        values = {key: value for key, value in self.parameters().items() if value is not None}
        return {"name": self.name} | {key: v if isinstance(v, int | float) else str(v) for key, v in values.items()}


@dataclass_transform(frozen_default=True)
def checked(cls: type[P]) -> type[P]:
    """Class decorator: a frozen dataclass whose values are checked against their types when it is made."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return checked_dataclass(frozen=True, config=config)(cls)  # type: ignore[return-value]


@dataclass_transform(frozen_default=True)
def part(slot: str, name: str) -> Callable[[type[P]], type[P]]:
    """Class decorator: `checked`, and entered in `SLOTS` under its name."""

    def register(cls: type[P]) -> type[P]:
        cls.slot, cls.name = slot, name
        made = checked(cls)
        SLOTS[slot] |= dict.fromkeys((name, *cls.__dict__.get("named", ())), made)
        return made

    return register


def find_part(slot: str, name: str) -> type[Part]:
    """The part with that name; a misspelled one fails with a suggestion."""
    try:
        return SLOTS[slot][name]
    except KeyError:
        raise unknown_name(slot, name, SLOTS[slot]) from None


def parameter_names(cls: type[Part], required: bool = False) -> list[str]:
    """The parameters of a part, or those alone that must be given."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    return [field.name for field in fields if not required or field.default is dataclasses.MISSING]


def make_part(cls: type[P], parameters: Mapping[str, Any]) -> P:
    """Build a part, turning every complaint into one line that names key, value and what is allowed."""
    known = parameter_names(cls)
    for key in parameters:
        if key not in known and key in cls.absent:
            raise ConfigError(f"{cls.slot}.{key}: {cls.slot} '{cls.name}' has none: {cls.absent[key]}")
        if key not in known:
            raise unknown_name("parameter", key, known, of=f"{cls.slot} '{cls.name}'")
    try:
        return cls(**parameters)
    except ValidationError as error:
        raise ConfigError(explain(error, f"{cls.slot}.")) from None
