"""The progress of a queue as a page that reloads itself, and as text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from laconic.run import write_atomically

PAGE = "progress.html"
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.2rem .6rem;text-align:left;border-bottom:1px solid #ddd}"
    ".done{color:#1a7f37}.running{font-weight:bold}.failed,.stopped{color:#b35900}.waiting{color:#777}"
)


@dataclass(frozen=True)
class Line:
    """One job on the page."""

    study: str
    claims: int
    label: str
    seed: int
    hours: float
    state: str
    note: str


def write(folder: Path, lines: Sequence[Line], skipped: Mapping[str, str], until: float) -> Path:
    """Write the page to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PAGE, html(lines, skipped, until).encode())
    return folder / PAGE


def newest(folder: Path) -> str:
    """Return the round of the run below a folder that was written last, as in ", fed_avg-seed-1: round 12"."""
    files = sorted(folder.glob("*/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    return f", {files[-1].parent.name}: round {len(files[-1].read_bytes().splitlines())}" if files else ""


def summary(lines: Sequence[Line]) -> str:
    """Count the jobs by state, as in "3 done, 1 running, 8 waiting (about 2.5 hours on one core)"."""
    counts = Counter(line.state for line in lines)
    left = sum(line.hours for line in lines if line.state not in ("done", "skipped", "failed"))
    text = ", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing to run"
    return f"{text} (about {left:.1f} hours on one core are left)" if left else text


def html(lines: Sequence[Line], skipped: Mapping[str, str], until: float) -> str:
    """Return the page: jobs in their order, running and waiting ones first."""
    order = {"running": 0, "failed": 1, "stopped": 1, "waiting": 2, "done": 3}
    rows = "\n".join(_row(line) for line in sorted(lines, key=lambda line: order.get(line.state, 4)))
    left_out = "".join(f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in skipped.items())
    stop = time.strftime("%d %b %H:%M", time.localtime(until))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="10">
<title>Reproductions</title><style>{STYLE}</style></head><body>
<h1>Reproductions</h1>
<p>{escape(summary(lines))}. Written at {time.strftime("%H:%M:%S")}; no run starts after {stop}.
<code>laconic watch</code> with this folder shows the curves.</p>
<table><tr><th>study</th><th>claims</th><th>setting</th><th>seed</th><th>hours, about</th><th>state</th></tr>
{rows}
</table>
{f"<p>Skipped:</p><ul>{left_out}</ul>" if left_out else ""}
</body></html>
"""


def _row(line: Line) -> str:
    cells = [line.study, str(line.claims), line.label, str(line.seed), f"{line.hours:.2f}"]
    texts = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="{line.state}">{texts}<td>{escape(line.state)} {escape(line.note)}</td></tr>'
