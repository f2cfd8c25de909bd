"""The colors of runs and streams, the same in the report, on the live page and in plots."""

from __future__ import annotations

from collections.abc import Iterable

COLORS = ("#2b7bd0", "#d9541e", "#159566", "#9a5bd6", "#b07d00", "#d6418f", "#0e93a8", "#8a6d5a")
"""One color per group of runs. Each has a contrast of at least 3:1 to a white and to a dark page."""
TONES = {"up": ("#3f4c5c", "#5a697b", "#748396"), "down": ("#a7b3c0", "#bcc6d0", "#d0d7df")}
"""Streams are grays, since colors belong to runs: dark up, light down."""
SHADES = {
    "model": 0,
    **dict.fromkeys(("control", "gradient", "drift", "anchor", "first_moment", "arrays"), 1),
    **dict.fromkeys(("mean", "base", "buffers", "scale", "confirm", "evaluation"), 2),
}
"""The tone of a stream, the same whatever else is shown. Other streams have the last one."""
HEADERS = "headers"
HEADER_TONE = "#8593a2"
"""Headers are also hatched."""
COLORED = {"colors": COLORS, "tones": TONES | {HEADERS: [HEADER_TONE]}, "shades": SHADES}
"""The palette as the page reads it."""


def stream_tones(names: Iterable[str]) -> dict[str, str]:
    """Return the tone of each stream, whose name starts with its direction.

    >>> stream_tones(["up/control", "up/model", "down/model", "headers"])["down/model"]
    '#a7b3c0'
    """
    tones = {}
    for name in names:
        direction, _, stream = name.partition("/")
        tones[name] = TONES["down" if direction == "down" else "up"][SHADES.get(stream, -1)]
    return tones | ({HEADERS: HEADER_TONE} if HEADERS in tones else {})
