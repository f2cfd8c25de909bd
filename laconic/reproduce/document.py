"""Results of studies on disk, and docs/reproductions.md, which is rendered from them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from laconic.reproduce.catalog import REPRODUCTIONS
from laconic.reproduce.runner import Data
from laconic.reproduce.study import Reproduction, Study
from laconic.reproduce.tables import BRACKETS, about, draw, grid, verdicts
from laconic.run import plain

PAGE = "reproductions.md"
FRONTIER = "frontier.md"


def save(name: str, study: Study, data: Data, docs: Path) -> list[Path]:
    """Write a study's data and figure, and render the page again. Return the written paths."""
    path, figure = docs / "data" / f"{name}.json", docs / "figures" / f"{name}.svg"
    for file in (path, figure):
        file.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(spelled(data))
    written = [path] + ([figure] if draw(study, data, figure) else [])
    return [*written, *render(docs)]


def spelled(data: Data) -> str:
    """Format as JSON with one line per run or row."""
    lines = []
    for key, value in plain(data).items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load(name: str, docs: Path) -> Data | None:
    """Return a study's data; None if it was not run."""
    path = docs / "data" / f"{name}.json"
    data: Data | None = json.loads(path.read_text()) if path.exists() else None
    return data


def render(docs: Path) -> list[Path]:
    """Write the pages from the data in `docs`."""
    texts = {docs / PAGE: page(docs), docs / FRONTIER: frontier(docs)}
    for path, text in texts.items():
        path.write_text(text)
    return [*texts]


def frontier(docs: Path) -> str:
    """Return the page that compares all contenders."""
    (reproduction,) = (each for each in REPRODUCTIONS.values() if each.page == FRONTIER)
    head = [
        "# Frontier",
        "",
        f"{reproduction.what}. {reproduction.paper}.",
        "",
        "    laconic reproduce frontier --full --seeds 3",
        "",
        *filter(None, [_discussion(docs, "findings").get("frontier", "")]),
    ]
    return "\n".join([*head, *(line for each in reproduction.studies.items() for line in _section(*each, docs))]) + "\n"


def page(docs: Path) -> str:
    """Return the page of all reproductions."""
    head = [
        "# Reproductions",
        "",
        "The papers' tables and figures, run with Laconic: their numbers beside ours, and which of their claims hold.",
        "`laconic reproduce NAME` runs one. It shortens runs that take more than an hour on two cores; `--full` runs them",
        "as the paper did, `--quick` checks in seconds that they work. In a clone, a run replaces this page's data and",
        "figures; `--docs FOLDER` writes them elsewhere. `laconic reproduce --render` renders the page from existing data.",
        "",
        *_findings(docs),
        "| name | what | claims that hold |",
        "|---|---|---|",
    ]
    sections = []
    for name, reproduction in REPRODUCTIONS.items():
        if reproduction.page != PAGE:
            continue
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


def _findings(docs: Path) -> list[str]:
    lines = [f"- **{paper}.** {text}" for paper, text in _discussion(docs, "findings").items() if paper != "frontier"]
    return ["Summary (one seed each, so small differences may be noise):", "", *lines, ""] if lines else []


def _discussion(docs: Path, table: str) -> dict[str, str]:
    """Return what we wrote about the stored results, by paper or by study; empty for results of other runs."""
    path = docs / "data" / "notes.toml"
    notes: dict[str, str] = tomllib.loads(path.read_text()).get(table, {}) if path.exists() else {}
    return notes


def _score(reproduction: Reproduction, docs: Path) -> str:
    results = [(study, load(name, docs)) for name, study in reproduction.studies.items()]
    judged = [v.holds for study, data in results if data for v in verdicts(study, data).values() if v.holds is not None]
    if not any(data for _, data in results):
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
        complete = study.experiment is not None and data["runs"].keys() == study.experiment.runs.keys()
        lines += [f"{'Made by' if complete else 'A part of'} `laconic reproduce {name} --full --seeds {seeds}`.", ""]
    lines += [about(study, data) + (f" {BRACKETS}" if study.paper else ""), "", grid(study, data).markdown()]
    lines += _claims(study, data)
    if note := _discussion(docs, "notes").get(name):
        lines += ["", note]
    if (docs / "figures" / f"{name}.svg").exists():
        lines += ["", f"![{study.title}](figures/{name}.svg)"]
    return lines


def _not_run(study: Study) -> str:
    if study.needs_gpu:
        return "Not run yet. It needs a GPU."
    return "Not run yet." + (" Only `--full` runs it." if study.short is not None and study.short.left_out else "")


def _claims(study: Study, data: Data) -> list[str]:
    """Format one line per claim. The verdict of a shortened run is marked "so far"."""
    shortened = study.experiment is not None and (data.get("rounds") or 0) < study.experiment.rounds
    lines = []
    for text, verdict in verdicts(study, data).items():
        part = " so far" if shortened and verdict.holds is not None else ""
        lines.append(f"- **{verdict.word}{part}**: {text} ({verdict.evidence})")
    return ["", *lines] if lines else []
