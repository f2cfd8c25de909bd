"""Labels: an algorithm and its settings in one word, such as `fed_ams:server_lr=0.1,compressor=qsgd:4,norm=max`."""

from __future__ import annotations

import re
from typing import Any

from laconic.algorithms.recipes import RECIPES, make
from laconic.compression import COMPRESSORS
from laconic.core.errors import ConfigError
from laconic.core.part import SLOTS, parameter_names
from laconic.run.keys import parse_setting


def split_label(label: str) -> dict[str, Any]:
    """Parse a label into settings, including the algorithm.

    A key directly after a compressor belongs to the compressor if it has a parameter of that name.

    >>> split_label("fed_cams:compressor=qsgd:4,norm=max,server_lr=0.1")
    {'algorithm': 'fed_cams', 'compressor': 'qsgd:4,norm=max', 'server_lr': 0.1}
    """
    name, colon, rest = label.partition(":")
    settings: list[str] = []
    for piece in re.split(r",(?=[\w.]+=)", rest) if colon else []:
        if settings and _key(piece) in _parameters(settings[-1]):
            _refuse_ambiguous(name, settings, _key(piece))
            settings[-1] += f",{piece}"
        else:
            settings.append(piece)
    try:
        return {"algorithm": name} | dict(map(parse_setting, settings))
    except ConfigError:
        raise ConfigError(f"'{label}': write NAME:key=value,key=value, as in fed_ams:server_lr=0.1") from None


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _parameters(setting: str) -> list[str]:
    """The parameter names of the compressor at the end of a setting; none after a granularity, which ends a compressor."""
    key, _, value = setting.partition("=")
    compressor = re.split("[:,]", value.rpartition("+")[2])[0]
    named = key.strip().endswith("compressor") and "@" not in value and compressor in COMPRESSORS
    return parameter_names(COMPRESSORS[compressor]) if named else []


def _refuse_ambiguous(algorithm: str, settings: list[str], key: str) -> None:
    """Refuse a key that both the compressor and a part of the algorithm have."""
    parts = {_key(setting): setting.partition("=")[2] for setting in settings}
    tables: dict[str, Any] = {slot: {"name": parts[slot]} for slot in SLOTS if slot in parts}
    owners = make(algorithm).owners(key, tables) if algorithm in RECIPES else []
    if owners:
        raise ConfigError(
            f"{algorithm}:{','.join(settings)},{key}=…: both the compressor and the {owners[0]} have '{key}'; write "
            f"{owners[0]}.{key}=… for the {owners[0]}, or {settings[-1]}@model,… to end the compressor"
        )
