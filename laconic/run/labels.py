"""How an algorithm and its settings are written in one word: `fed_ams:server_lr=0.1,compressor=qsgd:4,norm=max`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from laconic.compression import COMPRESSORS
from laconic.core.errors import ConfigError
from laconic.run.keys import parse_setting


def split_label(label: str) -> dict[str, Any]:
    """The settings that a label stands for, the algorithm among them.

    >>> split_label("fed_cams:compressor=qsgd:4,norm=max,server_lr=0.1")
    {'algorithm': 'fed_cams', 'compressor': 'qsgd:4,norm=max', 'server_lr': 0.1}
    """
    name, colon, rest = label.partition(":")
    settings: list[str] = []
    # What can be said of compressors, after a comma. No part has a parameter of such a name.
    of_compressors = {field.name for cls in COMPRESSORS.values() for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for piece in re.split(r",(?=[\w.]+=)", rest) if colon else []:
        if settings and _key(settings[-1]).endswith("compressor") and _key(piece) in of_compressors:
            settings[-1] += f",{piece}"
        else:
            settings.append(piece)
    try:
        return {"algorithm": name} | dict(map(parse_setting, settings))
    except ConfigError:
        raise ConfigError(f"'{label}': write NAME:key=value,key=value, as in fed_ams:server_lr=0.1") from None


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip()
