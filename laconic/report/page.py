"""The report as one self-contained HTML file that works offline."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from laconic.report.gather import Table, find_runs, gather
from laconic.run.directory import plain
from laconic.run.files import write_atomically


def report(paths: list[Path], out: Path, target: float | None = None, rank_by: str = "bytes") -> dict[str, str]:
    """Write the report of some runs to one file. Return the skipped, unreadable runs: path to reason."""
    data = gather(find_runs(paths), target, rank_by)
    write_atomically(out, html(data).encode())
    unreadable: dict[str, str] = data["unreadable"]
    return unreadable


def html(data: Table) -> str:
    """Return the page that shows `data`."""
    from plotly.offline import get_plotlyjs  # late: start-up time

    folder = files("laconic.report") / "page"
    scripts = [(folder / name).read_text() for name in ("groups.js", "charts.js", "page.js")]
    # Escape "<": a tag inside a string could end the script element or start another.
    content = json.dumps(plain(data), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = (folder / "index.html").read_text()
    pieces = {"STYLE": (folder / "style.css").read_text(), "PLOTLY": get_plotlyjs(), "SCRIPT": "\n".join(scripts)}
    # Insert the data last, so that text in it that looks like a placeholder is not replaced.
    for name, text in (pieces | {"DATA": content}).items():
        page = page.replace(f"/*{name}*/", text, 1)
    return page
