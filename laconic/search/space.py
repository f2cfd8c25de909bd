"""Search spaces: lists of values or ranges by config key."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laconic import ConfigError, unknown_name
from laconic.run import parse_setting

_LOCAL = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
PRESETS: dict[str, tuple[str, dict[str, tuple[Any, ...]]]] = {
    "fedamd": (
        "Wu et al. 2023, appendix F.1",
        {"local_lr": (0.1, 0.03, 0.02, 0.01, 0.008, 0.005), "server_lr": (1.0, 0.8, 0.1)},
    ),
    "fedcams": ("Wang, Lin and Chen 2022, appendix E.1", {"local_lr": _LOCAL, "server_lr": (1e-3, 1e-2, 1e-1, 1.0)}),
    "fedcams-adaptive": (
        "the same with the epsilon of adaptive optimizers",
        {
            "local_lr": _LOCAL,
            "server_lr": (1e-3, 1e-2, 1e-1, 1.0),
            "optimizer.epsilon": (1e-8, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        },
    ),
    "fed-ef": (
        "Li and Li 2023, appendix D.1",
        {"local_lr": _LOCAL, "server_lr": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 5.0, 10.0)},
    ),
}
"""The papers' grids of rates, with their source."""


@dataclass(frozen=True)
class Range:
    """An interval of numbers, on a logarithmic scale if it spans more than a factor of ten."""

    low: float
    high: float

    @property
    def logarithmic(self) -> bool:
        """Whether to sample on a logarithmic scale."""
        return self.low > 0 and self.high / self.low > 10


Choices = tuple[Any, ...] | Range
Space = dict[str, Choices]


def parse_choice(text: str) -> tuple[str, Choices]:
    """Parse `key=value,value,…` or the interval `key=low..high`.

    >>> parse_choice("local_lr=0.1,0.03"), parse_choice("compressor=sign,qsgd:4,norm=max")
    (('local_lr', (0.1, 0.03)), ('compressor', ('sign', 'qsgd:4,norm=max')))
    >>> parse_choice("server_lr=0.001..1")
    ('server_lr', Range(low=0.001, high=1.0))
    """
    key, equals, values = text.partition("=")
    key = key.strip().replace("-", "_")
    if not equals or not key or not values.strip():
        raise ConfigError(f"--try '{text}': write key=value,value, or key=low..high, as in local_lr=0.1,0.03")
    between = re.fullmatch(r"\s*([0-9.e+-]+?)\.\.([0-9.e+-]+)\s*", values)
    if between:
        try:
            low, high = float(between[1]), float(between[2])
        except ValueError:
            low = high = math.nan
        if not low < high:
            raise ConfigError(f"--try '{text}': the range must go from a lower to a higher number")
        return key, Range(low, high)
    # A comma before `name=` belongs to a compressor's parameters.
    pieces = re.split(r",(?!\w+=)", values)
    return key, tuple(parse_setting(f"{key}={piece.strip()}")[1] for piece in pieces)


def space_of(choices: Sequence[str], preset: str | None) -> Space:
    """Return the search space of the preset and the choices. Choices take precedence over the preset."""
    if preset is not None and preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    space: Space = dict(PRESETS[preset][1]) if preset else {}
    space |= dict(map(parse_choice, choices))
    if not space:
        raise ConfigError(
            f"nothing to try: use --try, as in --try local_lr=0.1,0.03, or a paper's grid: --preset {', '.join(PRESETS)}"
        )
    return space


def grid(space: Mapping[str, Choices]) -> Iterator[dict[str, Any]]:
    """Iterate over all combinations. The last key changes fastest."""
    for key, choices in space.items():
        if isinstance(choices, Range):
            shown = f"--try {key}={choices.low:g}..{choices.high:g}"
            raise ConfigError(f"{shown}: a range needs --optuna; write a list for a grid")
    for values in itertools.product(*(choices for choices in space.values() if not isinstance(choices, Range))):
        yield dict(zip(space, values, strict=True))


def spelled(settings: Mapping[str, Any]) -> str:
    """Format settings as one word, for a label or a directory name.

    >>> spelled({"local_lr": 0.1, "optimizer.epsilon": 1e-08})
    'local_lr=0.1,optimizer.epsilon=1e-08'
    """
    return ",".join(
        f"{key}={value:.12g}" if isinstance(value, float) else f"{key}={value}" for key, value in settings.items()
    )
