"""The page with everything in it: it opens from a file, offline, and asks no other host for anything."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from laconic.report.gather import Table, find_runs, gather
from laconic.run.directory import plain, write_atomically


def report(paths: list[Path], out: Path, target: float | None = None, rank_by: str = "bytes") -> dict[str, str]:
    """The report of some runs as one file; returns why runs that could not be read are not in it, by their paths."""
    data = gather(find_runs(paths), target, rank_by)
    write_atomically(out, html(data).encode())
    unreadable: dict[str, str] = data["unreadable"]
    return unreadable


def html(data: Table) -> str:
    """The page that shows `data`."""
    from plotly.offline import get_plotlyjs

    folder = files("laconic.report") / "page"
    scripts = [(folder / name).read_text() for name in ("groups.js", "charts.js", "page.js")]
    # A tag inside a string could end the script that it stands in, or begin another.
    content = json.dumps(plain(data), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = (folder / "index.html").read_text()
    pieces = {"STYLE": (folder / "style.css").read_text(), "PLOTLY": get_plotlyjs(), "SCRIPT": "\n".join(scripts)}
    # The data come last: what looks like a place for the others inside them stays as it is.
    for name, text in (pieces | {"DATA": content}).items():
        page = page.replace(f"/*{name}*/", text, 1)
    return page
