"""The report as one self-contained HTML file that works offline."""

from __future__ import annotations

import ast
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from laconic.report.gather import entitle, find_runs, gather
from laconic.report.palette import COLORED
from laconic.report.reading import Table
from laconic.run.directory import plain
from laconic.run.files import write_atomically
from laconic.run.target import Target

SHARP_PIXELS = "".join(
    f"image-rendering: {value}; "
    for value in (
        *("optimizeSpeed", "-moz-crisp-edges", "-o-crisp-edges", "-webkit-optimize-contrast"),
        *("optimize-contrast", "crisp-edges", "pixelated"),
    )
)
"""The style attribute of Plotly's heat maps."""


def report(
    paths: list[Path],
    out: Path,
    target: Target | None = None,
    rank_by: str = "bytes",
    labels: Mapping[Path, str] | None = None,
) -> dict[str, str]:
    """Write the report of some runs to one file. Return the skipped, unreadable runs: path to reason.

    `labels` names runs by their directory. Default: the settings that distinguish them.
    """
    data = gather(find_runs(paths), target, rank_by)
    entitle(data["runs"], {str(path): label for path, label in (labels or {}).items()})
    write_atomically(out, html(data).encode())
    unreadable: dict[str, str] = data["unreadable"]
    return unreadable


def html(data: Table) -> str:
    """Return the page that shows `data`."""
    # Escape "<": a tag inside a string could end the script element or start another.
    content = json.dumps(plain(data | COLORED), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    # Insert the data last, so that text in it is neither taken for a placeholder nor part of the policy.
    return _template().replace("POLICY", policy(), 1).replace("/*DATA*/", content, 1)


@cache
def _template() -> str:
    """The page without data and policy."""
    from plotly.offline import get_plotlyjs  # late: start-up time

    folder = files("laconic.report") / "page"
    scripts = [
        (folder / name).read_text() for name in ("groups.js", "tables.js", "headline.js", "charts.js", "page.js")
    ]
    page = (folder / "index.html").read_text()
    pieces = {"STYLE": (folder / "style.css").read_text(), "PLOTLY": get_plotlyjs(), "SCRIPT": "\n".join(scripts)}
    for name, text in pieces.items():
        page = page.replace(f"/*{name}*/", text, 1)
    return page


@cache
def policy() -> str:
    """Return the page's content-security policy: its own scripts and styles by their hashes, and nothing else.

    The live page may also request its own data, and Plotly saves charts as images.
    """
    page = _template()
    scripts, styles = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style"))
    # Plotly adds style elements, one with the text of a string in its code and empty ones, and two style attributes.
    added = [ast.literal_eval(text) for text in re.findall(r"\.textContent=('(?:[^'\\\n]|\\.)*')", page)]
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; "
        f"style-src 'unsafe-hashes' {_hashes([*styles, *added, '', SHARP_PIXELS])}; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)
