"""One part in another's place: what is given of the new one, what it keeps of the old, and what a compressor leaves open."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from laconic.algorithms.uplinks.base import Compressed, ErrorFeedback, Uplink
from laconic.compression import Compressor, Dense
from laconic.core.errors import ConfigError
from laconic.core.part import Part, find_part, make_part

LINKS = ("uplink", "downlink")
"""The slots whose parts keep what they have in common with the part before them."""


def changed(slot: str, given: Any, parts: Mapping[str, Part], before: Mapping[str, Part]) -> Part:
    """The part in that slot once it is changed to what is given: a part, its name, or a table of parameters.

    A table may have a `name`, and then is another part, which keeps the settings of the old one that it has too. `parts`
    are the parts as they are now, `before` as they were before any change.
    """
    if isinstance(given, Part):
        return given
    if not isinstance(given, str | Mapping):
        raise ConfigError(f"{slot} = {given!r}: a part, the name of one, or a table of its parameters is allowed")
    table: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    present = parts[slot]
    kind = _kind(slot, table, present)
    if "compressor" in table:
        table["compressor"] = in_groups(table["compressor"], slot, before)
        if "memory" in known(kind) and _sends_all(present) and not _is_dense(table["compressor"]):
            # Where nothing was left out, nothing had to be remembered; now something is.
            table.setdefault("memory", True)
    if kind is type(present):
        return present.replace(**table)
    table = _kept(kind, slot, parts) | table
    if slot in LINKS and "compressor" in known(kind, required=True) - table.keys():
        alone = f", or --set {slot}.compressor=top_k:1/64 for the {slot} alone" if slot != "uplink" else ""
        raise ConfigError(f"{slot} '{kind.name}' needs a compressor: say --compressor top_k:1/64{alone}")
    return make_part(kind, table)


def _kind(slot: str, table: dict[str, Any], present: Part) -> type[Part]:
    """What the table is a table of; its name is taken out."""
    name = table.pop("name", present.name)
    if name != present.name:
        return find_part(slot, str(name))
    if slot == "uplink" and "compressor" in table and "compressor" not in present.parameters():
        # A compressor for an uplink that has none: with error feedback, unless another is named.
        return ErrorFeedback
    return type(present)


def _kept(kind: type[Part], slot: str, parts: Mapping[str, Part]) -> dict[str, Any]:
    """What a link keeps of the one before it; a downlink that had no compressor takes the uplink's."""
    if slot not in LINKS:
        return {}
    kept = parts[slot].parameters()
    compressor = _compressor(slot, parts)
    if compressor is not None:
        kept["compressor"] = compressor
    if isinstance(parts[slot], ErrorFeedback):
        kept["memory"] = True
    return {key: value for key, value in kept.items() if key in known(kind)}


def known(kind: type[Part], required: bool = False) -> set[str]:
    """The names of a part's parameters, or of those alone that must be given."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return {field.name for field in fields if not required or field.default is dataclasses.MISSING}


def _compressor(slot: str, parts: Mapping[str, Part]) -> Compressor | None:
    """The compressor of a link; for a downlink that has none, the uplink's, if that makes anything smaller."""
    own: Compressor | None = parts[slot].parameters().get("compressor")
    if own is not None or slot == "uplink":
        return own
    other = _compressor("uplink", parts)
    return None if other is None or _is_dense(str(other)) else other


def _sends_all(part: Part) -> bool:
    return _is_dense(part.parameters().get("compressor", Dense()))


def _is_dense(compressor: Compressor | str) -> bool:
    return str(compressor).partition("@")[0] == Dense.name


def in_groups(spelling: Any, slot: str, parts: Mapping[str, Part]) -> Any:
    """A compressor's spelling, by layer if it does not say and the compressor in whose place it comes is by layer.

    One that is by layer of itself stays so in an algorithm that takes the model as a whole.
    """
    own = _compressor(slot, parts)
    if not isinstance(spelling, str) or "@" in spelling or _is_dense(spelling) or own is None:
        return spelling
    return f"{spelling}@layer" if own.by == "layer" else spelling


def with_memory(uplink: Uplink) -> Uplink:
    """The same uplink with error feedback; one that sends everything has nothing to remember."""
    if isinstance(uplink, Compressed):
        return ErrorFeedback(uplink.compressor)
    return uplink.replace(memory=True) if "memory" in uplink.parameters() else uplink
