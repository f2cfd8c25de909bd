"""The commands run, compare and tune."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from laconic.cli import tables
from laconic.cli.console import note, say, stderr, stdout
from laconic.cli.options import RankBy
from laconic.cli.output import check_file, check_same, new_directory, print_json, resume_command, stored
from laconic.cli.view import LiveView
from laconic.core.errors import ConfigError, Interrupted
from laconic.core.user_code import check_trusted, trust
from laconic.data.federated import ClientData
from laconic.report.page import report as write_report
from laconic.report.trackers import trackers
from laconic.run.callbacks import Callback
from laconic.run.config import RunConfig, code_in, load_config
from laconic.run.directory import RunDirectory
from laconic.run.driver import Finished, run_config
from laconic.run.files import write_atomically
from laconic.run.labels import split_label
from laconic.run.resume import FREE_TO_CHANGE
from laconic.run.target import WINDOW
from laconic.run.training import Diverged
from laconic.run.tune import tune as measure_strategies

COMPARISON = "comparison.json"
"""The options of a comparison, stored in the folder of its runs."""


def run(
    config: Path | None,
    algorithm: str | None,
    target: float | None,
    out: Path | None,
    resume: bool,
    from_round: int | None,
    report: bool,
    tensorboard: bool,
    mlflow: bool,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Train with one algorithm."""
    if from_round is not None and not resume:
        raise ConfigError("--from-round: only with --resume")
    config, out = _earlier_run(config, out, resume)
    wanted = load_config(config, options, split_label(algorithm) if algorithm else {})
    directory = out or new_directory(wanted.algorithm, wanted.dataset)
    _check_target(target, wanted)
    callbacks = [LiveView(stderr), *trackers(tensorboard=tensorboard, mlflow=mlflow)]
    try:
        finished = run_config(wanted, directory, callbacks, resume=resume, from_round=from_round, target=target)
    except Diverged:
        # The report shows the rounds before the divergence.
        if report:
            note(f"The report is {_report([directory], directory, target)}")
        raise
    page = _report([directory], directory, target) if report else None
    if as_json:
        print_json(finished.summary())
        return
    stdout.print(tables.outcome([finished], stdout.width))
    say(f"The run is in {directory}{and_report(page)}")


def _earlier_run(config: Path | None, out: Path | None, resume: bool) -> tuple[Path | None, Path | None]:
    """The config file and the directory, if the arguments name an earlier run."""
    if config is not None and config.is_dir():
        out = out or (config if resume else None)
        config = RunDirectory(config).config
    if not resume:
        return config, out
    if config is not None and not config.exists():
        raise ConfigError(f"--resume: there is no run '{config}'")
    if out is None:
        raise ConfigError("--resume: name the run, as in `laconic run runs/NAME --resume`, or give its --out")
    if RunDirectory(out).exists():
        RunDirectory(out).check_config()
        config = config or RunDirectory(out).config
    return config, out


@dataclass(frozen=True)
class Comparison:
    """Runs that share data, seed and initial model."""

    configs: Mapping[str, RunConfig]
    directory: Path
    target: float | None
    resume: bool

    @property
    def folders(self) -> dict[str, Path]:
        """The directory of each run, by its label."""
        return {label: self.directory / re.sub(r"[^\w.+-]+", "_", label) for label in self.configs}

    def prepare(self, options: Mapping[str, Any]) -> ClientData | None:
        """Load the data, and check every run before the first one starts. A resumed run loads its own data."""
        if self.resume:
            return None
        data = self._first.load_data()
        for label, folder in self.folders.items():
            RunDirectory(folder).check_new()
            self.configs[label].build(self._shared(data, label)).close()
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self.directory / COMPARISON, json.dumps(options).encode())
        return data

    def train(self, data: ClientData | None, callbacks: Sequence[Callback]) -> tuple[list[Finished], dict[str, str]]:
        """Run all algorithms; returns the finished runs, and the errors of diverged runs by label."""
        finished: list[Finished] = []
        failed: dict[str, str] = {}
        for label, wanted in self.configs.items():
            own, more = self._shared(data, label), label != [*self.configs][-1]
            try:
                run = partial(run_config, resume=self.resume, target=self.target, data=own, more=more)
                finished.append(run(wanted, self.folders[label], callbacks, label=label))
            except Diverged as error:
                failed[label] = str(error)
                stderr.print(f"[red]{escape(f'{label}: {error}')}[/red]", highlight=False, soft_wrap=True)
        return finished, failed

    @property
    def _first(self) -> RunConfig:
        return next(iter(self.configs.values()))

    def _shared(self, data: ClientData | None, label: str) -> ClientData | None:
        """The common data; None if the run has another data set or partition."""
        keys = ("dataset", "partition", "clients", "augment", "skip_empty", "seed", "data_dir")
        same = all(getattr(self.configs[label], key) == getattr(self._first, key) for key in keys)
        return data if same else None


def compare(
    algorithms: list[str],
    config: Path | None,
    target: float | None,
    out: Path | None,
    resume: bool,
    rank_by: RankBy,
    report: bool,
    tensorboard: bool,
    mlflow: bool,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Train with several algorithms on the same data, seed and initial model, and rank them."""
    options = _stored_options(out, options) if resume else options
    configs = _compared(algorithms, config, options, rank_by, target)
    first = next(iter(configs.values()))
    directory = out or new_directory("compare", first.dataset)
    _check_target(target, first)
    comparison = Comparison(configs, directory, target, resume)
    data = comparison.prepare(options)
    callbacks = [LiveView(stderr), *trackers(tensorboard=tensorboard, mlflow=mlflow)]
    try:
        finished, failed = comparison.train(data, callbacks)
    except Interrupted as stop:
        stop.again = resume_command(out, directory)
        raise
    page = _report([*comparison.folders.values()], directory, target, rank_by) if report else None
    if as_json:
        runs = [run.summary() for run in tables.ranked(finished, rank_by)]
        print_json({"runs": runs + [_failure(label, text, target) for label, text in failed.items()]})
        return
    if finished:
        stdout.print(tables.outcome(finished, stdout.width, rank_by))
    for label in failed:
        say(f"{label}: diverged")
    say(f"Runs are in {directory}{and_report(page)}")


def _compared(
    labels: list[str], config: Path | None, options: dict[str, Any], rank_by: RankBy, target: float | None
) -> dict[str, RunConfig]:
    """The config of each run, by label. Raises if the runs cannot be compared."""
    if target is None and rank_by != "bytes":
        raise ConfigError(f"--rank-by {rank_by}: needs a --target")
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"'{label}' is named twice; give one of them another setting, as in {label}:seed=1")
    configs = {label: load_config(config, options, split_label(label)) for label in labels}
    if rank_by == "time" and not all(run.network.any() for run in configs.values()):
        example = "--bandwidth-up 1Mbit --bandwidth-down 10Mbit"
        raise ConfigError(f"--rank-by time: describe the network, as in {example}")
    return configs


def _stored_options(out: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """The options that the comparison was started with, which also apply to algorithms that have not run yet."""
    if out is None:
        raise ConfigError("--resume: give the --out of the comparison")
    path = out / COMPARISON
    if not path.exists():
        raise ConfigError(f"--resume: there is no comparison in '{out}'")
    old = stored(path)
    check_same("comparison", old, given, FREE_TO_CHANGE)
    trust(code_in(given))
    check_trusted(path, code_in(old))
    return old | {key: value for key, value in given.items() if value is not None}


def _failure(label: str, error: str, target: float | None) -> dict[str, Any]:
    """The `--json` summary of a diverged run."""
    costs = dict.fromkeys(f"{cost}_to_target" for cost in ("rounds", "bytes", "seconds", "simulated_seconds"))
    return {"algorithm": label.partition(":")[0], "label": label, "error": error, "target": target, **costs}


def _check_target(target: float | None, config: RunConfig) -> None:
    """Warn before training if there are too few evaluations for a target."""
    evaluations = -(-config.rounds // config.eval_every)
    if target is not None and evaluations < WINDOW:
        reason = f"it needs {WINDOW} evaluations, and this run has {evaluations}"
        note(f"note: --target cannot be reported: {reason}; lower --eval-every")


def _report(runs: list[Path], directory: Path, target: float | None, by: RankBy = "bytes") -> Path:
    page = directory / "report.html"
    write_report(runs, page, target, by)
    return page


def and_report(page: Path | str | None) -> str:
    """The end of the sentence that names the run's directory."""
    return "" if page is None else f", its report is {page}"


def tune(config: Path | None, algorithm: str | None, out: Path, options: dict[str, Any]) -> None:
    """Measure the fastest gradient strategy on this machine, and write it to a config."""
    config, _ = _earlier_run(config, None, resume=False)
    wanted = load_config(config, options, split_label(algorithm) if algorithm else {})
    check_file(out)
    note("measuring the time per round of each gradient strategy")
    timings = measure_strategies(wanted, lambda timing: note(f"  {timing}"))
    stdout.print(tables.timings(timings))
    best = timings[0]
    chosen = wanted.model_copy(update={"numerics": best.numerics, "threads": best.threads})
    write_atomically(out, chosen.to_toml().encode())
    say(f"Fastest: {best}. Written to {out}; use it with: laconic run {out}")
