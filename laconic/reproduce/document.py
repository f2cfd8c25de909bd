"""Results on disk, and docs/reproductions.md, which is made of them and of what the studies say."""

from __future__ import annotations

import json
from pathlib import Path

from laconic.reproduce.catalog import REPRODUCTIONS
from laconic.reproduce.findings import FINDINGS
from laconic.reproduce.runner import Data
from laconic.reproduce.study import Reproduction, Study
from laconic.reproduce.tables import BRACKETS, about, draw, grid, verdicts
from laconic.run import plain

PAGE = "reproductions.md"


def save(name: str, study: Study, data: Data, docs: Path) -> list[Path]:
    """A study's data and picture, and the page anew; returns what was written."""
    path, picture = docs / "data" / f"{name}.json", docs / "figures" / f"{name}.svg"
    for each in (path, picture):
        each.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(spelled(data))
    written = [path] + ([picture] if draw(study, data, picture) else [])
    return [*written, render(docs)]


def spelled(data: Data) -> str:
    """JSON with a line for each run or row."""
    lines = []
    for key, value in plain(data).items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load(name: str, docs: Path) -> Data | None:
    """A study's data; None where it was not run."""
    path = docs / "data" / f"{name}.json"
    found: Data | None = json.loads(path.read_text()) if path.exists() else None
    return found


def render(docs: Path) -> Path:
    """Write the page from the data beside it."""
    path = docs / PAGE
    path.write_text(page(docs))
    return path


def page(docs: Path) -> str:
    """All reproductions: what holds, what does not, and why."""
    head = [
        "# Reproductions",
        "",
        "The papers' tables and figures, run with Laconic: their numbers beside ours, and which of their claims hold.",
        "`laconic reproduce NAME` runs one, shortened where the whole takes over an hour on two cores; `--full` runs it as",
        "the paper did, `--quick` checks in seconds that it works. In a clone a run replaces this page's data and figures;",
        "`--docs FOLDER` puts them elsewhere. `laconic reproduce --render` makes the page of the data that are there.",
        "",
        "What came out, in short; one seed each, so that small differences say nothing:",
        "",
        *(f"- **{paper}.** {text}" for paper, text in FINDINGS.items()),
        "",
        "| name | what | claims that hold |",
        "|---|---|---|",
    ]
    sections = []
    for name, reproduction in REPRODUCTIONS.items():
        score = _score(reproduction, docs)
        head.append(f"| [{name}](#{name}) | {reproduction.what} | {score} |")
        sections += [
            "",
            f"## {name}",
            "",
            f"{reproduction.what}. {reproduction.paper}.",
            "",
            f"    laconic reproduce {name}",
        ]
        for study_name, study in reproduction.studies.items():
            sections += _section(study_name, study, docs)
    return "\n".join([*head, *sections]) + "\n"


def _score(reproduction: Reproduction, docs: Path) -> str:
    found = [(study, load(name, docs)) for name, study in reproduction.studies.items()]
    judged = [v.holds for study, data in found if data for _, v in verdicts(study, data) if v.holds is not None]
    if not any(data for _, data in found):
        return "not run yet"
    return f"{sum(judged)} of {len(judged)}" if judged else "none made"


def _section(name: str, study: Study, docs: Path) -> list[str]:
    data = load(name, docs)
    lines = ["", f"### {study.title}", ""]
    if study.experiment is not None:
        lines += [f"Setting: `{study.experiment.common}`", ""]
    if data is None:
        return [*lines, _not_run(study)]
    if data["mode"] == "full" and data.get("runs"):
        seeds = max(len(run["seeds"]) for run in data["runs"].values())
        lines += [f"Made by `laconic reproduce {name} --full --seeds {seeds}`.", ""]
    lines += [about(study, data) + (f" {BRACKETS}" if study.paper else ""), "", grid(study, data).markdown()]
    lines += _claims(study, data)
    if study.note:
        lines += ["", study.note]
    if (docs / "figures" / f"{name}.svg").exists():
        lines += ["", f"![{study.title}](figures/{name}.svg)"]
    return lines


def _not_run(study: Study) -> str:
    if study.needs_gpu:
        return "Not run yet. It needs a GPU."
    return "Not run yet." + (" It is left to `--full`." if study.short is not None and study.short.left_out else "")


def _claims(study: Study, data: Data) -> list[str]:
    """A line for each claim; one about the end of training says little in the middle."""
    shortened = study.experiment is not None and (data.get("rounds") or 0) < study.experiment.rounds
    lines = []
    for claim, verdict in verdicts(study, data):
        part = " so far" if shortened and verdict.holds is not None else ""
        lines.append(f"- **{verdict.word}{part}**: {claim.text} ({verdict.evidence})")
    return ["", *lines] if lines else []
