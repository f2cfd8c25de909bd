"""Several runs on the same data, one after the other: `laconic.compare` and `laconic compare`."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from laconic.core.errors import ConfigError, unknown_name
from laconic.data.tables import data_frame
from laconic.report.page import report
from laconic.report.tables import OutcomeTable, outcome, ranked
from laconic.run.callbacks import Callback, SaveBest
from laconic.run.directory import RunDirectory
from laconic.run.driver import Finished
from laconic.run.target import Target
from laconic.run.training import Diverged, Result


@dataclass(frozen=True)
class Planned:
    """A run of a comparison that has not started."""

    label: str
    directory: Path
    run: Callable[[Path, bool], Finished]
    """Runs it in a directory. The second argument says whether other runs follow."""


def directory_of(folder: Path, label: str, seed: int | None = None) -> Path:
    """The directory of one run of a comparison. The first seed is not named, so that more seeds can be added later."""
    name = re.sub(r"[^\w.+-]+", "_", label)
    return folder / (name if seed is None else f"{name}-seed-{seed}")


def check_files(planned: Sequence[Planned], resume: bool, callbacks: Sequence[Callback]) -> None:
    """Refuse a run whose directory is that of another run, or exists already, and a callback's file for several runs."""
    for callback in callbacks:
        if isinstance(callback, SaveBest) and callback.given_path is not None and len(planned) > 1:
            raise ConfigError(
                f"SaveBest: path = '{callback.given_path}': {len(planned)} runs would write it; leave path out, and each "
                "run's model is best.safetensors in its directory (out=…)"
            )
    first: dict[Path, Planned] = {}
    for plan in planned:
        other = first.setdefault(plan.directory, plan)
        if other is not plan:
            raise ConfigError(f"'{other.label}' and '{plan.label}': their directories have the same name; rename one")
        if not resume:
            RunDirectory(plan.directory).check_new()


def check_labels(labels: Sequence[str], hint: str) -> None:
    """Refuse a label that occurs twice. `hint` says how to tell the runs apart."""
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"'{label}' is named twice; {hint}")


@dataclass(frozen=True)
class Comparison:
    """Finished runs on the same data, as a table: best first, in a terminal and in a notebook.

    Runs are ordered by the bytes until they reached the target, if there is one, then by accuracy, then by loss. `rank_by`
    may be another cost of reaching the target, or a metric.
    """

    runs: list[Finished]
    """The finished runs, one per label and seed."""
    failed: dict[str, str]
    """The errors of diverged runs by label."""
    directories: list[Path]
    """The run directories, also of diverged runs."""
    target: Target | None = None
    rank_by: str = "bytes"
    labels: dict[Path, str] = field(default_factory=dict)
    """Labels of the runs in the report. Default: the settings that distinguish them."""
    temporary: TemporaryDirectory[str] | None = field(default=None, repr=False)
    """The folder of the runs, if nobody asked for it. It is removed with this object."""

    def __getitem__(self, label: str) -> Result:
        """The result of a label; of the first seed if there are several."""
        if label in self.failed:
            raise ConfigError(f"{label}: {self.failed[label]}")
        results = {run.label: run.result for run in reversed(self.runs)}
        if label not in results:
            raise unknown_name("run", label, results)
        return results[label]

    def table(self, width: int | None = None) -> OutcomeTable:
        """The table. Algorithms that diverged with any seed are last, without numbers. A narrow one has fewer columns."""
        return outcome([run for run in self.runs if run.label not in self.failed], width, self.rank_by, self.failed)

    def summaries(self) -> list[dict[str, Any]]:
        """One object of plain values per run, best first, then the diverged runs."""
        finished = [run.summary() for group in ranked(self.runs, self.rank_by) for run in group]
        return finished + [_failure(label, text, self.target) for label, text in self.failed.items()]

    def to_pandas(self) -> Any:
        """One row per run, best first, as a pandas DataFrame (extra `tables`)."""
        finished = [run for group in ranked(self.runs, self.rank_by) for run in group]
        rows = [run.summary() | {"seed": run.config.seed} for run in finished]
        frame = data_frame(rows + [_failure(*failure, self.target) for failure in self.failed.items()])
        return frame.set_index("label").dropna(axis="columns", how="all")

    def report(self, path: str | PathLike[str]) -> None:
        """Write the runs as one HTML page that works offline, as `laconic report` does."""
        report(self.directories, Path(path), self.target, self.rank_by, self.labels)

    def __repr__(self) -> str:
        text = io.StringIO()
        console = Console(file=text, width=160)
        table = self.table(console.width)
        if table.rows:
            console.print(table.rich())
        for label, error in self.failed.items():
            console.print(f"{label}: {error}", markup=False, highlight=False, soft_wrap=True)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        table = self.table()
        failures = [f"{label}: {error}" for label, error in self.failed.items()]
        return OutcomeTable(table.columns, table.rows, [*table.captions, *failures]).html()


def run_all(
    planned: Sequence[Planned], on_failure: Callable[[str, str], None] = lambda label, error: None
) -> tuple[list[Finished], dict[str, str]]:
    """Run one after the other; returns the finished runs, and the errors of diverged runs by label."""
    finished: list[Finished] = []
    failed: dict[str, str] = {}
    for number, plan in enumerate(planned, 1):
        try:
            finished.append(plan.run(plan.directory, number < len(planned)))
        except Diverged as error:
            failed[plan.label] = str(error)
            on_failure(plan.label, str(error))
    return finished, failed


def _failure(label: str, error: str, target: Target | None) -> dict[str, Any]:
    """The summary of a diverged run."""
    costs = dict.fromkeys(f"{cost}_to_target" for cost in ("rounds", "bytes", "seconds", "simulated_seconds"))
    goal = {"target": target and target.value, "target_metric": target and target.metric}
    return {"algorithm": label.partition(":")[0], "label": label, "error": error, **goal, **costs}
