"""The report as one self-contained HTML file that works offline."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from laconic.report.gather import find_runs, gather
from laconic.report.reading import Table
from laconic.run.directory import plain, write_atomically


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
    return page.replace("POLICY", policy(page), 1)


def policy(page: str) -> str:
    """Return the page's content-security policy: its own scripts and styles by their hashes, and nothing else.

    The live page may also request its own data.
    """
    hashes = {
        tag: " ".join(f"'sha256-{_hash(text)}'" for text in re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL))
        for tag in ("script", "style")
    }
    # Plotly adds an empty style element and fills it by script, and saves charts as images.
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']} 'sha256-{_hash('')}'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()
