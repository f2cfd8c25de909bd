"""An algorithm is a combination of four parts.

    Method      what a client computes, and how the server combines the answers
    Uplink      how a client encodes its update, and what compression error it keeps for later
    Optimizer   how the mean update changes the server's model
    Downlink    how the server encodes the model for a client

A part does not depend on the other parts, so any combination is an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, Unpack, cast

from laconic.algorithms.downlinks.base import Downlink
from laconic.algorithms.downlinks.dense import DenseDownlink
from laconic.algorithms.link import split_compressor
from laconic.algorithms.methods.base import Method
from laconic.algorithms.methods.exchange import UPDATE, PhaseTable
from laconic.algorithms.optimizers.base import Optimizer
from laconic.algorithms.optimizers.sgd import SGD
from laconic.algorithms.parameters import Changes
from laconic.algorithms.uplinks.base import Uplink
from laconic.algorithms.uplinks.compressed import Compressed
from laconic.algorithms.uplinks.dense import DenseUplink
from laconic.compression import Compressor, parse_compressor
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.part import SLOTS, Part, find_part, parameter_names

LINKS = ("uplink", "downlink")
DEFAULT_SLOTS = {"compressor": "uplink", "granularity": "uplink", "memory": "uplink", "server_lr": "optimizer"}
"""The slot of a parameter that several parts can have, unless the caller names another slot."""
Table: TypeAlias = dict[str, Any]
"""Settings of one part: its name, some of its parameters, or both."""


@dataclass(frozen=True)
class Algorithm:
    """Four parts and a name.

    >>> from laconic.algorithms.recipes import fed_ams
    >>> fed_ams(server_lr=0.1).optimizer.server_lr
    0.1
    """

    method: Method
    uplink: Uplink = DenseUplink()
    optimizer: Optimizer = SGD()
    downlink: Downlink = DenseDownlink()
    name: str = "custom"
    weighting: Literal["uniform", "size"] = "uniform"
    """The default weight of a client's update in the mean: equal for all, or its number of examples."""
    replaced: tuple[str, ...] = ()
    """The slots whose part is of another kind than the recipe's, or has another compressor; and "memory", if the uplink has
    error feedback and that of the recipe has none, or the other way round."""

    def __post_init__(self) -> None:
        for slot, kind in (("method", Method), ("uplink", Uplink), ("optimizer", Optimizer), ("downlink", Downlink)):
            if not isinstance(part := getattr(self, slot), kind):
                raise ConfigError(f"{slot} = {part!r}: must be a {kind.__name__}; name the slot, as in optimizer=AMS()")

    @property
    def title(self) -> str:
        """The name, and the parts, compressors and error feedback that have replaced the recipe's own.

        >>> from laconic.algorithms.recipes import fed_avg
        >>> fed_avg(compressor="sign", server_lr=0.5).title
        'fed_avg (uplink compressed sign)'
        """
        memory = "with memory" if self.uplink.has_memory else "without memory"
        parts = ", ".join(
            memory if slot == "memory" else f"{slot} {_described(getattr(self, slot))}" for slot in self.replaced
        )
        return f"{self.name} ({parts})" if parts else self.name

    def parts(self) -> dict[str, Part]:
        """The parts by slot."""
        return {slot: getattr(self, slot) for slot in SLOTS}

    @cached_property
    def phases(self) -> PhaseTable:
        """The phases of the method by name, and the numbers of its streams."""
        return PhaseTable(self.method.phases(self.uplink))

    def resolve(self) -> Algorithm:
        """Choose the open settings of the method and the downlink for the other parts; reject what does not fit together."""
        uplink, method = self.uplink, self.method.resolve(self.uplink)
        has_state = uplink.has_memory or uplink.has_reference
        if has_state and not any(UPDATE in phase.up for phase in method.phases(uplink)):
            refused = f"uplink '{uplink.name}'{' with memory' if uplink.has_memory else ''}"
            reason = "it sends no update through the uplink, but vectors of its own with the same compressor"
            advice = "use uplink = 'compressed' without memory"
            raise ConfigError(f"method '{method.name}' cannot use {refused}: {reason}; {advice}")
        return replace(self, method=method, downlink=self.downlink.resolve(self.optimizer, self.method.sends_mean))

    def replace(self, **changes: Unpack[Changes]) -> Algorithm:
        """Return a copy with other parameters or parts.

        A parameter goes to the part that has it: `replace(server_lr=0.1)`. If two parts have a parameter of that name, name
        the slot: `replace(uplink={"threshold": 0})`. `compressor`, `granularity` and `memory` go to the uplink.

        A slot accepts a part or its name: `replace(downlink="broadcast")`. A new link keeps the old link's values of
        the settings that both have. A compressed downlink that replaces a dense one uses the uplink's compressor and
        granularity.
        """
        parts, tables = self.parts(), self.by_slot(changes)
        # SLOTS ends with the downlink, which may take its compressor from the new uplink.
        for slot in SLOTS:
            if slot in tables:
                parts[slot] = _changed(slot, tables[slot], parts)
        new = {slot for slot, old in self.parts().items() if not _alike(old, parts[slot])}
        changed = replace(self, **cast(dict[str, Any], parts))
        if self.uplink.parameters().get("memory") is not None and changed.uplink.has_memory != self.uplink.has_memory:
            new.add("memory")
        return replace(changed, replaced=tuple(slot for slot in (*SLOTS, "memory") if slot in {*self.replaced, *new}))

    def by_slot(self, changes: Mapping[str, Any]) -> dict[str, Part | Table]:
        """The changes by slot: a whole part, or a table of parameters."""
        tables = {slot: _table(slot, changes[slot]) for slot in SLOTS if slot in changes}
        parameters = [key for key in changes if key not in SLOTS]
        # First the compressor: with it, a dense uplink becomes a compressed one, which has other parameters.
        for key in sorted(parameters, key=lambda key: key not in DEFAULT_SLOTS):
            slot = self.owner(key, tables)
            table, change = tables.get(slot, {}), {key: changes[key]}
            tables[slot] = table.replace(**change) if isinstance(table, Part) else _table(slot, table | change)
        return tables

    def kinds(self, tables: Mapping[str, Part | Table] | None = None) -> dict[str, type[Part]]:
        """The classes of the parts by slot, after the changes in `tables`."""
        return {slot: _kind(slot, (tables or {}).get(slot, {}), part) for slot, part in self.parts().items()}

    def owners(self, key: str, tables: Mapping[str, Part | Table] | None = None) -> list[str]:
        """The slots whose parts have the parameter, after the changes in `tables`."""
        if key in DEFAULT_SLOTS:
            return [DEFAULT_SLOTS[key]]
        kinds = self.kinds(tables)
        owners = [slot for slot, kind in kinds.items() if key in parameter_names(kind)]
        return owners or [slot for slot, kind in kinds.items() if key in kind.absent]

    def owner(self, key: str, tables: Mapping[str, Part | Table] | None = None) -> str:
        """The slot whose part has the parameter; `ConfigError` if there is none, or more than one."""
        owners = self.owners(key, tables)
        if not owners:
            kinds = self.kinds(tables)
            for slot, part in self.parts().items():
                if key in part.parameters():
                    # The part that had the parameter is replaced.
                    raise unknown_name(
                        "parameter", key, parameter_names(kinds[slot]), of=f"{slot} '{kinds[slot].name}'"
                    )
            known = {name for kind in kinds.values() for name in parameter_names(kind)}
            raise unknown_name("parameter", key, known, of=self.name)
        if len(owners) > 1:
            ways = " or ".join(f"{slot}.{key}" for slot in owners)
            raise ConfigError(
                f"{key}: both {' and '.join(owners)} of {self.name} have it; write {ways}, in Python "
                f"{owners[0]}={{'{key}': …}}"
            )
        return owners[0]


def _alike(one: Part, other: Part) -> bool:
    """Whether two parts are of one kind and have the same compressor."""
    return type(one) is type(other) and one.parameters().get("compressor") == other.parameters().get("compressor")


def _described(part: Part) -> str:
    """The name of a part, and its compressor if it has one."""
    compressor = part.parameters().get("compressor")
    return part.name if compressor is None else f"{part.name} {compressor}"


def _table(slot: str, value: Any) -> Part | Table:
    """The value of a slot as a part or as a canonical table."""
    if isinstance(value, Part):
        return value
    if not isinstance(value, str | Mapping):
        raise ConfigError(f"{slot} = {value!r}: must be a part, the name of a part, or a table of its parameters")
    return canonical(slot, {"name": value} if isinstance(value, str) else dict(value))


def canonical(slot: str, table: Table) -> Table:
    """A table in canonical form: aliases of parts are resolved, and `compressor="sign@layer"` becomes two settings.

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
    """The class of the part after the change."""
    if isinstance(change, Part):
        return type(change)
    kind = find_part(slot, str(change["name"])) if "name" in change else type(present)
    # A compressor turns an uplink that has none into a compressed one.
    wanted = slot == "uplink" and kind is type(present) and "compressor" in change
    return Compressed if wanted and "compressor" not in parameter_names(kind) else kind


def _changed(slot: str, change: Part | Table, parts: Mapping[str, Part]) -> Part:
    """The part of a slot after the change; `parts` are the current parts."""
    if isinstance(change, Part):
        return change
    present, kind = parts[slot], _kind(slot, change, parts[slot])
    known, table = parameter_names(kind), {key: value for key, value in change.items() if key != "name"}
    if slot == "uplink" and "memory" in known and _compresses(table) and not _compresses(present.parameters()):
        # The uplink was lossless and becomes lossy: error feedback is the default.
        table.setdefault("memory", True)
    if kind is type(present):
        return present.replace(**table)
    return kind(**(_link_table(slot, kind, table, parts) if slot in LINKS else table))


def _link_table(slot: str, kind: type[Part], table: Table, parts: Mapping[str, Part]) -> Table:
    """The parameters of a new link: those given, and those of the current link that it has, too."""
    kept, uplink = parts[slot].parameters(), parts["uplink"].parameters()
    if slot == "downlink" and "compressor" not in kept and _compresses(uplink):
        kept |= {key: uplink[key] for key in ("compressor", "granularity") if key in uplink}
    known = parameter_names(kind)
    table = {key: value for key, value in kept.items() if key in known and value is not None} | table
    if "compressor" in parameter_names(kind, required=True) and "compressor" not in table:
        alone = f", or --set {slot}.compressor=top_k:1/64 for the {slot} alone" if slot != "uplink" else ""
        raise ConfigError(f"{slot} '{kind.name}' needs a compressor: use --compressor top_k:1/64{alone}")
    return table


def _compresses(parameters: Mapping[str, Any]) -> bool:
    """Whether the parameters name a lossy compressor."""
    value: Compressor | str | None = parameters.get("compressor")
    compressor = parse_compressor(value) if isinstance(value, str) else value
    return compressor is not None and not compressor.lossless
