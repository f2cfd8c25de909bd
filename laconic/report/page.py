"""The page with everything in it: it opens from a file, offline, and asks no other host for anything."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from laconic.report.gather import Table, find_runs, gather
from laconic.run.directory import plain, write_atomically


def report(paths: list[Path], out: Path, target: float | None = None, rank_by: str = "bytes") -> None:
    """The report of some runs as one file."""
    write_atomically(out, html(gather(find_runs(paths), target, rank_by)).encode())


def html(data: Table) -> str:
    """The page that shows `data`."""
    from plotly.offline import get_plotlyjs

    folder = files("laconic.report") / "page"
    scripts = [(folder / name).read_text() for name in ("groups.js", "charts.js", "page.js")]
    # "</script>" inside a string would end the script that it stands in.
    content = json.dumps(plain(data), allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    page = (folder / "index.html").read_text()
    pieces = {"STYLE": (folder / "style.css").read_text(), "DATA": content, "PLOTLY": get_plotlyjs()}
    for name, text in (pieces | {"SCRIPT": "\n".join(scripts)}).items():
        page = page.replace(f"/*{name}*/", text, 1)
    return page
