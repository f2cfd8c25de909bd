"""The base of methods, uplinks, optimizers and downlinks: an immutable object with validated parameters.

A part has no mutable attributes. What changes in training is its *state*, a flat dict of tensors that functions take and
return, so that it can be checkpointed, hashed, compared and sent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_args

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from laconic.core.errors import ConfigError, unknown_name
from laconic.core.user_code import display_name
from laconic.core.validation import explain

State = dict[str, Tensor]
"""The state of one part: tensors by name."""

BOUNDED = "bounded"
"""A client's vector depends only on its data, the model and public settings."""
STATEFUL = "stateful"
"""A client's vector also depends on the rounds in which the client took part before."""
UNSTATED = (
    'its class does not say what one client can change: write sensitivity = "bounded" in it if what a client sends depends '
    'only on its own data, the model and public settings, or "stateful" if also on its own earlier rounds'
)

P = TypeVar("P", bound="Part")


def check_state(state: object, source: str) -> State:
    """The state that a part returned, if it is a dict of tensors."""
    if not isinstance(state, dict):
        raise ConfigError(f"{source} returned a {type(state).__name__}; a state is a dict of tensors")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ConfigError(f"{source}: '{name}' is {value!r}, but a state has tensors only: write torch.tensor(...)")
    return state


SLOTS: dict[str, dict[str, type[Part]]] = {"method": {}, "uplink": {}, "optimizer": {}, "downlink": {}}
"""All registered parts, by slot and name."""


class Part:
    """A value for one of the four slots of an `Algorithm`."""

    slot: ClassVar[str]
    name: ClassVar[str]
    absent: ClassVar[Mapping[str, str]] = {}
    """Parameters of similar parts that this part does not have, and why."""
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Names of the part, and the parameters that each name sets."""

    @property
    def sensitivity(self) -> str:
        """Whether the part keeps the bound that differential privacy needs: `BOUNDED`, `STATEFUL`, or why it does not.

        The bound: given the models so far, adding one client changes a round's sum by at most that client's clipped vector.
        It holds if nothing that a client sends depends on who else takes part, except through the models.

        A subclass of a registered part does not inherit the statement, since it may compute something else.
        """
        return UNSTATED

    def parameters(self) -> dict[str, Any]:
        """The values of the parameters, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def replace(self: P, **changes: Any) -> P:
        """Return a copy with other parameters; an unknown name is a `ConfigError` with a suggestion."""
        return type(self)(**{**self.parameters(), **changes})

    def table(self) -> dict[str, Any]:
        """The part as a config table: its name and its parameters. None is left out, or "none" if it is not the default."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        omitted = {field.name for field in fields if field.default is None and getattr(self, field.name) is None}
        values = {key: value for key, value in self.parameters().items() if key not in omitted}
        values = {key: "none" if value is None else value for key, value in values.items()}
        return {"name": self.name} | {key: v if isinstance(v, int | float) else str(v) for key, v in values.items()}


@dataclass_transform(frozen_default=True)
def checked(cls: type[P]) -> type[P]:
    """Class decorator: a frozen dataclass that validates its values against their types.

    Every invalid parameter is a `ConfigError` of one line that names key, value and what is allowed. The text "none" stands
    for None, for command lines and files.
    """
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    made: Any = checked_dataclass(frozen=True, config=config)(cls)
    validate = made.__init__

    @functools.wraps(validate)
    def initialize(self: Part, *arguments: Any, **parameters: Any) -> None:
        known = parameter_names(type(self))
        _refuse_unknown(type(self), known, parameters)
        positional = dict(zip(known, arguments, strict=False))
        if len(positional) == len(arguments) and not positional.keys() & parameters.keys():
            # By name, so that an error names the parameter.
            arguments, parameters = (), positional | parameters
        unset = {key for key, value in parameters.items() if isinstance(value, str) and value == "none"}
        parameters |= dict.fromkeys(
            key for key in unset if type(None) in get_args(made.__pydantic_fields__[key].annotation)
        )
        try:
            validate(self, *arguments, **parameters)
        except ValidationError as error:
            raise ConfigError(explain(error, f"{self.slot}.")) from None

    made.__init__ = initialize
    return made  # type: ignore[no-any-return]


def _refuse_unknown(cls: type[Part], known: list[str], parameters: Mapping[str, Any]) -> None:
    for key in [key for key in parameters if key not in known]:
        if key in cls.absent:
            raise ConfigError(f"{cls.slot}.{key}: {cls.slot} '{cls.name}' has none: {cls.absent[key]}")
        raise unknown_name("parameter", key, known, of=f"{cls.slot} '{cls.name}'")


@dataclass_transform(frozen_default=True)
def part(slot: str, name: str) -> Callable[[type[P]], type[P]]:
    """Class decorator: `checked`, and registered in `SLOTS` under its name."""

    def register(cls: type[P]) -> type[P]:
        refuse_taken(cls, slot, name, SLOTS[slot])
        cls.slot, cls.name = slot, name
        registered = checked(cls)
        SLOTS[slot] |= dict.fromkeys((name, *cls.__dict__.get("named", ())), registered)
        return registered

    return register


def refuse_taken(cls: type[Part], slot: str, name: str, registered: Mapping[str, type[Part]]) -> None:
    """Refuse a class that is registered already, and a name that both Laconic and the user have given."""
    if "__dataclass_fields__" in vars(cls):
        described = f"{slot} '{name}' ({display_name(cls)})"
        raise ConfigError(f"{described}: the class is already registered as '{cls.name}'; decorate it only once")
    # Laconic's own parts are imported when they are first used: before or after the user's.
    taken = registered.get(name, cls)
    own = [kind for kind in (cls, taken) if not kind.__module__.startswith("laconic.")]
    if len(own) == 1:
        described = f"{slot} '{name}' ({display_name(own[0])})"
        raise ConfigError(f"{described}: Laconic uses this name; choose another")


def stated_sensitivity(part: Part) -> str:
    """`Part.sensitivity`, unless another registered part has stated it."""
    author = next(kind for kind in type(part).__mro__ if "sensitivity" in vars(kind))
    inherited = author is not type(part) and "slot" in vars(author)
    return UNSTATED if inherited else part.sensitivity


def find_part(slot: str, name: str) -> type[Part]:
    """The class of the part with this name; an unknown name is a `ConfigError` with a suggestion."""
    try:
        return SLOTS[slot][name]
    except KeyError:
        raise unknown_name(slot, name, SLOTS[slot], importable=True) from None


def parameter_names(cls: type[Part], required: bool = False) -> list[str]:
    """The names of a part's parameters, or only of the required ones."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    return [field.name for field in fields if not required or field.default is dataclasses.MISSING]
