"""A study's runs: started, continued, or only read. A run that is finished is never run again."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from laconic import DataError, __version__
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import Curve, mean_of_last
from laconic.reproduce.options import options, quick
from laconic.reproduce.study import Mode, Short, Study
from laconic.run import DIAGNOSTICS, WINDOW, Callback, RunDirectory, load_config, read_metrics, run_or_resume

KEPT = (
    *("round", "accuracy", "loss", "training_loss", "bytes_up", "bytes_down", "paper_bits_up", "paper_bits_down"),
    *("gradients", "simulated_seconds", *DIAGNOSTICS),
)
Data = dict[str, Any]
"""What is kept of a study: when and where, and the curves of its runs or the rows that were computed."""


@dataclass(frozen=True)
class Plan:
    """How much of a study is run."""

    mode: Mode
    rounds: int | None
    """Of each run; None as the options say."""
    seeds: int
    labels: tuple[str, ...]
    rates: tuple[str, ...]
    trial: int
    long_trial: int


def plan(study: Study, experiment: Experiment, mode: Mode, seeds: int | None = None) -> Plan:
    """What a mode means for a study."""
    everything = tuple(experiment.runs)
    short = study.short if mode == "short" and study.short else Short()
    if mode == "quick":
        return Plan(mode, None, 1, study.quick or everything[:4], experiment.rates[:1], 1, 1)
    return Plan(
        mode,
        short.rounds or experiment.rounds or None,
        seeds or (study.seeds if mode == "full" else 1),
        short.labels or everything,
        short.rates or experiment.rates,
        short.trial or experiment.trial,
        short.trial or 100,
    )


class Skipped(Exception):
    """A study that cannot be run here, or is not in this mode; its message says why."""


def collect(name: str, study: Study, mode: Mode, folder: Path, callback: Callback, seeds: int | None = None) -> Data:
    """Everything that a study's table is made of."""
    if mode == "short" and study.short is not None and study.short.left_out:
        raise Skipped("left out of the shortened form; --full runs it")
    if study.needs_gpu and mode != "quick" and not torch.cuda.is_available():
        raise Skipped("needs a GPU, and there is none here")
    if study.compute is not None:
        return _stamp(mode, date.today()) | {"rows": study.compute(mode)}
    assert study.experiment is not None
    runner = Runner(
        study.experiment, plan(study, study.experiment, mode, seeds), folder / (study.folder or name), callback
    )
    try:
        runs = {label: runner.runs(label) for label in runner.labels()}
    except DataError as error:
        raise Skipped(str(error)) from None
    return _stamp(mode, runner.newest) | {"rounds": runner.plan.rounds, "runs": runs}


def _stamp(mode: Mode, day: date) -> Data:
    cores = torch.get_num_threads()
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cores} cores, {platform.machine()}"
    software = f"laconic {__version__}, torch {torch.__version__.partition('+')[0]}"
    return {"mode": mode, "date": day.isoformat(), "hardware": hardware, "software": software}


class Runner:
    """Runs what a plan asks for of an experiment, below one folder."""

    def __init__(self, experiment: Experiment, wanted: Plan, folder: Path, callback: Callback) -> None:
        self.experiment, self.plan, self.folder, self.callback = experiment, wanted, folder, callback
        self.newest = date.min
        """The day on which the last of the runs was finished."""

    def labels(self) -> list[str]:
        """The runs of the plan, and those others that are there already, as long."""
        return [label for label in self.experiment.runs if label in self.plan.labels or self._done(label)]

    def _done(self, label: str) -> bool:
        directory = RunDirectory(self._directory(label))
        records = read_metrics(directory.metrics) if directory.model.exists() else []
        return len(records) >= (self.plan.rounds or 1) and self.plan.mode != "quick"

    def _directory(self, label: str, rate: str | None = None, seed: int = 0) -> Path:
        name = re.sub("[^a-z0-9.+_]+", "-", label)
        said = [name, *([rate] if rate else []), *([f"seed-{seed}"] if seed else [])]
        return self.folder / "-".join(said)

    def runs(self, label: str) -> Data:
        """All seeds of one setting."""
        said = options(f"{self.experiment.common} {self.experiment.runs[label].replace('{rate}', '0')}")
        if self.plan.rounds is not None:
            said["rounds"] = self.plan.rounds
            # A shortened run is still evaluated often enough for a mean of the last five.
            said["eval_every"] = min(said.get("eval_every", 1), max(1, self.plan.rounds // WINDOW))
        if self.plan.mode == "quick":
            said = quick(said)
        if "{rate}" not in self.experiment.runs[label]:
            return self._seeds(label, said)
        # A rate that stood its trial may still diverge later; then it is the next one's turn.
        rates = self._best_rates(label, said) or self.plan.rates[-1:]
        for rate in rates:
            found = {"rate": rate} | self._seeds(label, said | {"local_lr": float(rate)}, rate)
            if "diverged" not in found:
                break
        return found

    def _seeds(self, label: str, said: dict[str, Any], rate: str | None = None) -> Data:
        seeds = range(self.plan.seeds)
        found = [self._run(said | {"seed": seed}, self._directory(label, rate, seed), label) for seed in seeds]
        data: Data = {"seeds": [*seeds], "curves": [_columns(curve) for curve, _ in found]}
        return data | ({"diverged": True} if any(diverged for _, diverged in found) else {})

    def _best_rates(self, label: str, said: dict[str, Any]) -> list[str]:
        """The rates by the mean of the last evaluations of a short run, the best first; one that diverges is out.

        Rates are tried from the largest on, until two in a row are worse than the best.
        """
        found: dict[str, float] = {}
        length = self.plan.long_trial if label in self.experiment.long_trials else self.plan.trial
        for rate in self.plan.rates:
            trial = self._directory(f"{label}-trial", rate)
            curve, diverged = self._run(said | {"local_lr": float(rate), "rounds": length}, trial, f"{label}, {rate}")
            if diverged:
                continue
            found[rate] = mean_of_last(curve)
            if max([*found.values()][-2:]) < max(found.values()):
                break
        return sorted(found, key=lambda rate: -found[rate])

    def _run(self, said: dict[str, Any], directory: Path, label: str) -> tuple[Curve, bool]:
        """The records of one run up to the rounds that are asked for, and whether it has diverged."""
        records, diverged = run_or_resume(load_config(None, said), directory, [self.callback], label)
        metrics = RunDirectory(directory).metrics
        if metrics.exists():
            self.newest = max(self.newest, date.fromtimestamp(metrics.stat().st_mtime))
        kept = [record for record in records if "accuracy" in record or "q_a" in record]
        return [{name: record[name] for name in KEPT if record.get(name) is not None} for record in kept], diverged


def _columns(curve: Curve) -> dict[str, list[Any]]:
    """A curve by its columns, which takes far less room; numbers with the digits that mean something."""
    names = [name for name in KEPT if any(name in record for record in curve)]
    return {name: [_short(record.get(name)) for record in curve] for name in names}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def curves(run: Data) -> list[Curve]:
    """The inverse: the records of each seed."""
    found: list[Curve] = []
    for columns in run["curves"]:
        rows = zip(*columns.values(), strict=True)
        found.append([{n: v for n, v in zip(columns, row, strict=True) if v is not None} for row in rows])
    return found
