"""Results of studies on disk, and the pages that are rendered from them: docs/reproductions.md and one per paper."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from laconic.core import counted
from laconic.reproduce.catalog import PAPERS, REPRODUCTIONS
from laconic.reproduce.claims import WORDS, Verdict
from laconic.reproduce.plans import Data, has
from laconic.reproduce.study import Reproduction, Study
from laconic.reproduce.tables import BRACKETS, about, as_run, command, draw, grids, shortened, verdicts
from laconic.run import plain

PAGE = "reproductions.md"
FRONTIER = "frontier.md"


def save(name: str, study: Study, data: Data, docs: Path) -> list[Path]:
    """Write a study's data and figure, and render the pages again. Return the written paths."""
    path = docs / "data" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(spelled(data))
    return [path, *_draw(name, study, data, docs), *render(docs)]


def _draw(name: str, study: Study, data: Data, docs: Path) -> list[Path]:
    """Draw the figures of a study, the second only if all runs have its metric. Return the written paths."""
    folder = docs / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        folder / file: each
        for file, each in study.figures(name).items()
        if each is study or all(has(run, each.drawn) for run in data.get("runs", {}).values())
    }
    return [path for path, each in figures.items() if draw(each, data, path)]


def draw_figures(docs: Path) -> list[Path]:
    """Draw the figures of all studies with data in `docs`. Return the written paths."""
    studies = {name: study for each in REPRODUCTIONS.values() for name, study in each.studies.items()}
    stored = {name: data for name in studies if (data := load(name, docs)) is not None}
    return [path for name, data in stored.items() for path in _draw(name, studies[name], data, docs)]


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
    texts = pages(docs)
    for name, text in texts.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text)
    return [docs / name for name in texts]


def pages(docs: Path) -> dict[str, str]:
    """Return the text of every page: the summary, one page for each paper, and the frontier."""
    papers = {_page(paper): _paper(paper, docs) for paper in PAPERS}
    return {PAGE: _summary(docs), **papers, FRONTIER: _frontier(docs)}


def _page(paper: str) -> str:
    return f"reproductions/{paper.lower()}.md"


def _frontier(docs: Path) -> str:
    reproduction = REPRODUCTIONS["frontier"]
    head = [
        "# Frontier",
        "",
        f"{reproduction.what}. {reproduction.paper}.",
        "",
        "```",
        "laconic reproduce frontier --full --seeds 3",
        "```",
        "",
        *filter(None, [_discussion(docs, "findings").get("frontier", "")]),
    ]
    sections = (line for name, study in reproduction.studies.items() for line in _section(name, study, docs, "figures"))
    return "\n".join([*head, *sections]) + "\n"


METHOD = """\
A claim compares two runs with the same seed, or one run with a number. With two or more seeds, we compute the 95 % Student-t
interval of the mean difference. The verdicts are:

- **holds**: the whole interval lies where the claim says, for example above zero.
- **fails**: the whole interval lies elsewhere.
- **undecided**: neither of the two, or there are only two seeds.
- **one seed**: a single seed decides nothing. It only *agrees* or *disagrees* with the claim.
- **not judged**: a run, or a number of a run, that the claim needs is missing, or none of its runs learned.

If a claim says that two numbers are equal, the *margin* in its evidence is the largest difference that counts as
equal. If it says "far below", the margin is the smallest difference that counts as far. If the claim is about a share,
such as a tenth of another run's bytes, we compare with this share of the other run's number. A claim with
several comparisons holds if all of them hold, and fails if one fails (with Bonferroni's correction). Claims about
numbers that are computed exactly, such as bits, need no seeds. If a run does not reach a target, we know only that the
target costs more than the whole run, so the interval of the difference is open on one side.

*Setting* has the options that all runs of a study share, unless the name of a row replaces them (n = 5: 5 participants).
In the tables, ± is the standard deviation over seeds, and *both ways* means up and down together."""
USAGE = """\
`laconic reproduce NAME` runs the studies of one table or figure. By default it shortens studies that take more than
an hour on two cores: fewer rounds, fewer learning rates, or fewer runs. `--full` runs them as the paper did, and
`--quick` only checks, in seconds, that they work.

`laconic reproduce all --seeds 3 --hours 8` runs the missing studies and seeds for eight hours, starting with the
studies that decide the most claims per hour. The same command continues where the last one stopped. `progress.html`,
in the folder of the runs, shows the progress. Published results of a setting are kept if the current code gives the
same first evaluation to within 1 %. Otherwise all seeds of that setting are run again, and `progress.html` says so. In a
clone of the repository, a run replaces the data and figures of these pages; `--docs FOLDER` writes them elsewhere. `laconic
reproduce --render` writes pages and figures from existing data."""


def _summary(docs: Path) -> str:
    """Return the page with the findings and the counts of verdicts."""
    scores = {paper: _total([_score(each, docs) for each in papers.values()]) for paper, papers in PAPERS.items()}
    lines = [
        "# Reproductions",
        "",
        "We reran tables and figures of five papers with Laconic. Each paper's page shows its numbers next to ours, which "
        "of its claims hold, and all findings. Findings from one seed describe that run only. The last entry, Laconic, is "
        "about our own studies.",
        "",
        *_findings(docs),
        "| paper | studies run | " + " | ".join(WORDS) + " |",
        "|---|---|" + "---|" * len(WORDS),
        *(f"| [{paper}]({_page(paper)}) | {_row(score, done, of)} |" for paper, (score, done, of) in scores.items()),
        f"| all | {_row(*_total([*scores.values()]))} |",
        "",
        f"{_exact(docs)} {_hours(docs)}".strip(),
        "",
        METHOD,
        "",
        USAGE,
    ]
    return "\n".join(lines) + "\n"


def _stored(docs: Path) -> dict[str, tuple[Study, Data]]:
    """The studies of the papers that have data."""
    studies = {
        name: study for papers in PAPERS.values() for each in papers.values() for name, study in each.studies.items()
    }
    return {name: (study, data) for name, study in studies.items() if (data := load(name, docs)) is not None}


def _exact(docs: Path) -> str:
    """How many of the claims that hold are exact arithmetic."""
    holds = Counter[bool]()
    for study, data in _stored(docs).values():
        holds[study.exact] += sum(verdict.kind == "holds" for verdict in _verdicts(study, data, docs).values())
    exact = f"{holds[True]} are exact computations, which need no seeds."
    return f"Of the {counted(holds.total(), 'claim')} that hold, {exact}"


def _hours(docs: Path) -> str:
    """The hours of the runs that recorded them; empty if none did. Studies that share runs count them once."""
    runs = [
        ((study.folder or name, label, seed), spent)
        for name, (study, data) in _stored(docs).items()
        for label, run in data.get("runs", {}).items()
        for seed, spent in zip(run["seeds"], run.get("seconds", [None] * len(run["seeds"])), strict=True)
    ]
    known = {run: spent for run, spent in runs if spent is not None}
    text = f"Only {len(known)} of the {counted(len(dict(runs)), 'run')} recorded their running time"
    spent = f"{sum(known.values()) / 3600:.1f} hours in total"
    return f"{text}: {spent}, not counting trials of learning rates." if known else ""


Score = tuple[Counter[str], int, int]
"""The number of verdicts by their word, of studies that were run, and of all studies."""


def _score(reproduction: Reproduction, docs: Path) -> Score:
    words, done = Counter[str](), 0
    for name, study in reproduction.studies.items():
        if (data := load(name, docs)) is not None:
            words.update(verdict.word for verdict in _verdicts(study, data, docs).values())
            done += 1
    return words, done, len(reproduction.studies)


def _total(scores: Sequence[Score]) -> Score:
    words, done, of = zip(*scores, strict=True)
    return sum(words, Counter[str]()), sum(done), sum(of)


def _row(words: Counter[str], done: int, of: int) -> str:
    return " | ".join([f"{done} of {of}", *(str(words[word]) for word in WORDS)])


def _verdicts(study: Study, data: Data, docs: Path) -> dict[str, Verdict]:
    return verdicts(study, data, load(study.beside, docs) if study.beside else None)


def _paper(paper: str, docs: Path) -> str:
    """Return the page of one paper."""
    reproductions = PAPERS[paper]
    lines = [
        f"# {paper}",
        "",
        *_details(paper, docs),
        "See [Reproductions](../reproductions.md) for how claims are judged.",
        "",
        "| name | what | studies run | " + " | ".join(WORDS) + " |",
        "|---|---|---|" + "---|" * len(WORDS),
    ]
    for name, reproduction in reproductions.items():
        lines.append(f"| [{name}](#{name}) | {reproduction.what} | {_row(*_score(reproduction, docs))} |")
    for name, reproduction in reproductions.items():
        lines += ["", f"## {name}", "", f"{reproduction.what}. {reproduction.paper}."]
        for study_name, study in reproduction.studies.items():
            lines += _section(study_name, study, docs, "../figures")
    return "\n".join(lines) + "\n"


def _findings(docs: Path) -> list[str]:
    """The main findings of each paper in one or two sentences."""
    summary = _discussion(docs, "summary")
    lines = [
        f"- **[{paper}]({_page(paper)}).** {summary[paper]} {_seeds(PAPERS[paper], docs)}"
        for paper in PAPERS
        if paper in summary
    ]
    return [*lines, ""] if lines else []


def _details(paper: str, docs: Path) -> list[str]:
    """The findings of a paper, for its own page."""
    findings = _discussion(docs, "findings").get(paper)
    # Links are relative to the first page, which is one folder up.
    return [re.sub(r"\]\((?!https?:|#)", "](../", findings), ""] if findings else []


def _seeds(reproductions: Mapping[str, Reproduction], docs: Path) -> str:
    """How many seeds the runs of a paper have, as in "One to three seeds per study."; empty without runs."""
    studies = {name: study for each in reproductions.values() for name, study in each.studies.items()}
    stored = [load(name, docs) for name, study in studies.items() if not study.exact]
    counts = {
        len(part.get("seeds", [0]))
        for data in stored
        if data is not None
        for part in data.get("runs", {"": data}).values()
    }
    if not counts:
        return ""
    least, most = min(counts), max(counts)
    if least == most:
        return f"{_spelled(most)} seed{'s' * (most > 1)}.".capitalize()
    return f"{_spelled(least)} to {_spelled(most)} seeds per study.".capitalize()


def _spelled(count: int) -> str:
    return ("no", "one", "two", "three")[count] if count < 4 else str(count)


def _discussion(docs: Path, table: str) -> dict[str, str]:
    """Return what we wrote about the stored results, by paper or by study; empty for results of other runs."""
    path = docs / "data" / "notes.toml"
    notes: dict[str, str] = tomllib.loads(path.read_text()).get(table, {}) if path.exists() else {}
    return notes


def _section(name: str, study: Study, docs: Path, figures: str) -> list[str]:
    data = load(name, docs)
    lines = ["", f"### {study.title}", ""]
    if study.experiment is not None:
        today = study.experiment.common
        recorded = today if data is None else as_run(data)
        unknown = f"The setting of these runs was not recorded. The current setting is `{today}`."
        lines += [f"Setting: `{recorded}`" if recorded else unknown, ""]
    if data is None:
        return [*lines, _not_run(name, study)]
    lines += [command(name, study, data), ""]
    lines += [about(study, data) + (f" {BRACKETS}" if study.paper else ""), ""]
    lines.append("\n\n".join(table.markdown() for table in grids(study, data)))
    lines += _claims(study, data, docs)
    if note := _discussion(docs, "notes").get(name):
        lines += ["", note]
    for file, each in study.figures(name).items():
        if (docs / "figures" / file).exists():
            title = study.title if each is study else f"{study.title}: {each.drawn.replace('_', ' ')}"
            lines += ["", f"![{title}]({figures}/{file})"]
    return lines


def _not_run(name: str, study: Study) -> str:
    if study.needs_gpu:
        return "Not run yet. It needs a GPU."
    full = " --full" if study.short is not None and study.short.left_out else ""
    return f"Not run yet: `laconic reproduce {name}{full}`."


def _claims(study: Study, data: Data, docs: Path) -> list[str]:
    """Format one line per claim. The verdict of a shortened run says how short it was."""
    extent = shortened(study, data)
    lines = []
    for text, verdict in _verdicts(study, data, docs).items():
        part = f", {extent}" if extent and verdict.kind != "not judged" else ""
        lines.append(f"- **{verdict.word}{part}**: {text} ({verdict.evidence})")
    return ["", *lines] if lines else []
