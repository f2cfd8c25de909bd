"""An algorithm is four parts.

    Method      what a client computes from the model and its data, and what the server folds back
    Uplink      how a client's vector becomes bytes, and what it remembers about what it did not send
    Optimizer   how the mean update moves the server's model
    Downlink    how the model becomes bytes on its way to a client

Parts never know which algorithm they are in, so any combination is an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, Unpack

from laconic.algorithms.downlinks.base import DenseDownlink, Downlink
from laconic.algorithms.link import split_compressor
from laconic.algorithms.methods.base import Method
from laconic.algorithms.methods.exchange import UPDATE, PhaseTable
from laconic.algorithms.optimizers.base import Optimizer
from laconic.algorithms.optimizers.sgd import SGD
from laconic.algorithms.parameters import Changes
from laconic.algorithms.uplinks.base import Compressed, DenseUplink, Uplink
from laconic.compression import Compressor, parse_compressor
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.part import SLOTS, Part, find_part, make_part, parameter_names

LINKS = ("uplink", "downlink")
USUAL_SLOTS = {"compressor": "uplink", "granularity": "uplink", "memory": "uplink", "server_lr": "optimizer"}
"""Whose a parameter is that several parts may have, where nothing else is said."""
Table: TypeAlias = dict[str, Any]
"""What is said of one part: its name, parameters, or both."""


@dataclass(frozen=True)
class Algorithm:
    """Four parts, and the name they go by.

    >>> from laconic.algorithms.recipes import fed_ams
    >>> fed_ams(server_lr=0.1).optimizer.server_lr
    0.1
    """

    method: Method
    uplink: Uplink = DenseUplink()
    optimizer: Optimizer = SGD()
    downlink: Downlink = DenseDownlink()
    name: str = "custom"

    def __post_init__(self) -> None:
        for slot, kind in (("method", Method), ("uplink", Uplink), ("optimizer", Optimizer), ("downlink", Downlink)):
            given = getattr(self, slot)
            if not isinstance(given, kind):
                raise ConfigError(
                    f"{slot} = {given!r}: a part of that kind is needed; name the slots, as in optimizer=AMS()"
                )

    def parts(self) -> dict[str, Part]:
        """The parts by slot."""
        return {slot: getattr(self, slot) for slot in SLOTS}

    @cached_property
    def phases(self) -> PhaseTable:
        """The method's phases by name, and the numbers of its streams."""
        return PhaseTable(self.method.phases(self.uplink))

    def fitted(self) -> Algorithm:
        """With what the method and the downlink leave open settled for the parts beside them; refuses what cannot be."""
        method = self.method.fitted(self.uplink)
        ignored = "memory" if self.uplink.has_memory else "reference" if self.uplink.has_reference else None
        if ignored and not any(UPDATE in phase.up for phase in method.phases(self.uplink)):
            given = f"uplink = '{self.uplink.name}', whose {ignored} '{method.name}' cannot use"
            reason = "it sends no update through the uplink, but vectors of its own with the same compressor"
            raise ConfigError(f"{given}: {reason}; use uplink = 'compressed' without memory")
        return replace(self, method=method, downlink=self.downlink.fitted(self.optimizer, self.method.sends_mean))

    def replace(self, **changes: Unpack[Changes]) -> Algorithm:
        """The same algorithm with other settings or parts.

        Each parameter goes to the part that has it; `uplink={"threshold": 0}` names the part, which is needed where two
        parts have a parameter of the same name. `compressor`, `granularity` and `memory` are the uplink's. A whole part may
        be given too, or its name: `downlink="broadcast"`. Another link keeps the settings of the present one that it has
        too; a compressed downlink in the place of a dense one takes compressor and granularity of the uplink.
        """
        parts, tables = self.parts(), self.placed(changes)
        # The downlink comes last: it may take its compressor from the uplink.
        for slot in SLOTS:
            if slot in tables:
                parts[slot] = _changed(slot, tables[slot], parts)
        made: dict[str, Any] = dict(parts)
        return replace(self, **made)

    def placed(self, changes: Mapping[str, Any]) -> dict[str, Part | Table]:
        """Every change under the slot that it belongs to: a whole part, or a table of parameters."""
        tables = {slot: _table(slot, changes[slot]) for slot in SLOTS if slot in changes}
        alone = [key for key in changes if key not in SLOTS]
        # An uplink that gets a compressor may become another part, with other parameters.
        for key in sorted(alone, key=lambda key: key not in USUAL_SLOTS):
            slot = self.owner(key, tables)
            given, change = tables.get(slot, {}), {key: changes[key]}
            tables[slot] = given.replace(**change) if isinstance(given, Part) else _table(slot, given | change)
        return tables

    def owners(self, key: str, tables: Mapping[str, Part | Table] | None = None) -> list[str]:
        """The slots whose parts have that parameter, once the parts are those that `tables` name."""
        if key in USUAL_SLOTS:
            return [USUAL_SLOTS[key]]
        kinds = {slot: _kind(slot, (tables or {}).get(slot, {}), part) for slot, part in self.parts().items()}
        found = [slot for slot, kind in kinds.items() if key in parameter_names(kind)]
        return found or [slot for slot, kind in kinds.items() if key in kind.absent]

    def owner(self, key: str, tables: Mapping[str, Part | Table] | None = None) -> str:
        """The slot whose part has that parameter; none or two are an error that says so."""
        owners = self.owners(key, tables)
        if not owners:
            known = {name for part in self.parts().values() for name in part.parameters()}
            raise unknown_name("parameter", key, known, of=self.name)
        if len(owners) > 1:
            ways = " or ".join(f"{slot}.{key}" for slot in owners)
            raise ConfigError(
                f"{key}: both {' and '.join(owners)} of {self.name} have it; write {ways}, in Python "
                f"{owners[0]}={{'{key}': …}}"
            )
        return owners[0]


def _table(slot: str, given: Any) -> Part | Table:
    """What is given for a slot, as a part or as a table in canonical words."""
    if isinstance(given, Part):
        return given
    if not isinstance(given, str | Mapping):
        raise ConfigError(f"{slot} = {given!r}: a part, the name of one, or a table of its parameters is allowed")
    return canonical(slot, {"name": given} if isinstance(given, str) else dict(given))


def canonical(slot: str, table: Table) -> Table:
    """A table with the part's own name, with what another name of it sets, and with a compressor's `@` as a granularity.

    >>> canonical("uplink", {"name": "error_feedback", "compressor": "sign@layer"})
    {'memory': True, 'name': 'compressed', 'compressor': 'sign', 'granularity': 'layer'}
    """
    if slot in LINKS:
        table = split_compressor(table)
    if "name" not in table:
        return table
    kind = find_part(slot, str(table["name"]))
    return {**kind.named.get(table["name"], {}), **table, "name": kind.name}


def _kind(slot: str, change: Part | Table, present: Part) -> type[Part]:
    """The class of the part that a change leads to."""
    if isinstance(change, Part):
        return type(change)
    kind = find_part(slot, str(change["name"])) if "name" in change else type(present)
    # A compressor for an uplink that has none makes another uplink of it.
    wanted = slot == "uplink" and kind is type(present) and "compressor" in change
    return Compressed if wanted and "compressor" not in parameter_names(kind) else kind


def _changed(slot: str, change: Part | Table, parts: Mapping[str, Part]) -> Part:
    """The part in that slot once it is changed; `parts` are the parts as they are now."""
    if isinstance(change, Part):
        return change
    present, kind = parts[slot], _kind(slot, change, parts[slot])
    known, table = parameter_names(kind), {key: value for key, value in change.items() if key != "name"}
    if slot == "uplink" and "memory" in known and _compresses(table) and not _compresses(present.parameters()):
        # Where nothing was left out, nothing had to be remembered; now something is.
        table.setdefault("memory", True)
    if kind is type(present):
        return present.replace(**table)
    if slot in LINKS:
        kept = present.parameters()
        uplink = parts["uplink"].parameters()
        if slot == "downlink" and "compressor" not in kept and _compresses(uplink):
            kept |= {key: uplink[key] for key in ("compressor", "granularity") if key in uplink}
        table = {key: value for key, value in kept.items() if key in known and value is not None} | table
        if "compressor" in parameter_names(kind, required=True) and "compressor" not in table:
            alone = f", or --set {slot}.compressor=top_k:1/64 for the {slot} alone" if slot != "uplink" else ""
            raise ConfigError(f"{slot} '{kind.name}' needs a compressor: say --compressor top_k:1/64{alone}")
    return make_part(kind, table)


def _compresses(parameters: Mapping[str, Any]) -> bool:
    """Whether there is a compressor, and it leaves something out."""
    given: Compressor | str | None = parameters.get("compressor")
    compressor = parse_compressor(given) if isinstance(given, str) else given
    return compressor is not None and not compressor.lossless
