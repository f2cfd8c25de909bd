"""Run a study's experiments. Unfinished runs are resumed; finished runs are read from disk."""

from __future__ import annotations

import itertools
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from math import isclose
from pathlib import Path
from typing import Any

import torch

from laconic import DataError, __version__
from laconic.core import counted
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import Curve, mean_of_last
from laconic.reproduce.options import options, quick
from laconic.reproduce.plans import Data, Plan, evaluated_every, plan, same_form, unchanged
from laconic.reproduce.study import Mode, Study
from laconic.run import (
    DIAGNOSTICS,
    Callback,
    RunConfig,
    RunDirectory,
    load_config,
    read_metrics,
    run_or_resume,
    started_with,
)

KEPT = (
    *("round", "accuracy", "loss", "training_loss", "bytes_up", "bytes_down", "paper_bits_up", "paper_bits_down"),
    *("gradients", "simulated_seconds", *DIAGNOSTICS),
)
SAME = 0.01
"""How far, relative to its size, a metric of the same code may be off: rounding differs between machines."""
Numbers = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class Rates:
    """A local rate, and a server rate unless it is the algorithm's own."""

    local: str
    server: str | None = None

    @property
    def name(self) -> str:
        """The rates in the name of a run directory."""
        return self.local if self.server is None else f"{self.local}-server-{self.server}"

    def settings(self) -> dict[str, float]:
        """The rates as settings of a run."""
        return {"local_lr": float(self.local)} | ({} if self.server is None else {"server_lr": float(self.server)})

    def data(self) -> Data:
        """The rates in the data of a study."""
        return {"rate": self.local} | ({} if self.server is None else {"server_rate": self.server})


ONLY_FULL = "only --full runs it"
"""Why the short form skips a study."""


class Skipped(Exception):
    """Raised if a study cannot run on this machine or in this mode. The message gives the reason."""


class Stopped(Exception):
    """Raised if a callback stopped a run before its last round. The run can be resumed."""


def collect(name: str, study: Study, mode: Mode, folder: Path, callback: Callback, seeds: int | None = None) -> Data:
    """Run a study and return its data."""
    check_possible(study, mode)
    if study.compute is not None:
        count = 1 if study.exact or mode == "quick" else seeds or 1
        return computed(mode, [study.compute(mode, seed) for seed in range(count)])
    assert study.experiment is not None
    runner = Runner(
        study.experiment, plan(study, study.experiment, mode, seeds), folder / (study.folder or name), callback
    )
    try:
        return runner.data({label: runner.runs(label) for label in runner.labels()})
    except DataError as error:
        raise Skipped(str(error)) from None


def check_possible(study: Study, mode: Mode) -> None:
    """Refuse a study that cannot run on this machine or in this mode."""
    if mode == "short" and study.short is not None and study.short.left_out:
        raise Skipped(ONLY_FULL)
    if study.needs_gpu and mode != "quick" and not torch.cuda.is_available():
        raise Skipped("needs a GPU, and there is none here")


def computed(mode: Mode, by_seed: list[Numbers]) -> Data:
    """Return the data of a study without training, from the numbers of each seed."""
    rows = {
        label: {name: [numbers[label][name] for numbers in by_seed] for name in row}
        for label, row in by_seed[0].items()
    }
    return _stamp(mode, date.today()) | {"seeds": [*range(len(by_seed))], "rows": rows}


def by_seed(data: Data) -> dict[int, Numbers]:
    """Return the numbers of each seed of a study without training."""
    return {
        seed: {
            label: {name: values[place] if isinstance(values, list) else values for name, values in row.items()}
            for label, row in data["rows"].items()
        }
        for place, seed in enumerate(data.get("seeds", [0]))
    }


def _stamp(mode: Mode, day: date) -> Data:
    cores = torch.get_num_threads()
    hardware = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{counted(cores, 'core')}, {platform.machine()}"
    )
    software = f"laconic {__version__}, torch {torch.__version__.partition('+')[0]}"
    return {"mode": mode, "date": day.isoformat(), "hardware": hardware, "software": software}


@dataclass(frozen=True)
class Finished:
    """A run with one seed that has ended."""

    curve: Curve
    """Its evaluations."""
    diverged: bool
    seconds: float | None
    """Its running time; None without a round."""


class Runner:
    """Runs an experiment to the extent of a plan, below one folder."""

    def __init__(
        self,
        experiment: Experiment,
        wanted: Plan,
        folder: Path,
        callback: Callback,
        stored: Data | None = None,
        threads: int | None = None,
    ) -> None:
        self.experiment, self.plan, self.folder, self.callback = experiment, wanted, folder, callback
        self.threads = threads
        """Threads of each run; the default if None."""
        self.newest = date.min
        """The date on which the last run finished."""
        same = stored is not None and "runs" in stored and same_form(stored, experiment, wanted)
        self.stored: dict[str, Data] = unchanged(stored, experiment, wanted) if stored is not None and same else {}
        """Published runs of the same form. They are not run again, and their rates are not searched again."""
        self.outdated: list[str] = []
        """Labels whose published runs were made by other code, so that they are run again."""
        self.tried = stored.get("tried") if stored is not None and same else None
        """How the published rates were chosen."""
        self.trials: dict[str, Data] = {label: run["trials"] for label, run in self.stored.items() if "trials" in run}
        """For each label, the final accuracy of the trial of each rate, or "diverged"."""

    def data(self, runs: dict[str, Data]) -> Data:
        """Return the study's data."""
        wanted = self.plan
        tried = {"rates": [*wanted.rates], "server_rates": [*wanted.server_rates], "trial": wanted.trial}
        searched = {"tried": self.tried or tried} if any("rate" in run for run in runs.values()) else {}
        form = {"rounds": wanted.rounds, "setting": self.experiment.common}
        return _stamp(wanted.mode, self.newest) | form | searched | {"runs": runs}

    def labels(self) -> list[str]:
        """Return the labels of the plan, and those of other runs that are already finished with as many rounds."""
        return [label for label in self.experiment.runs if label in self.plan.labels or self._done(label)]

    def _done(self, label: str) -> bool:
        directory = RunDirectory(self._directory(label))
        if self.plan.mode == "quick" or not directory.model.exists():
            return False
        if not started_with(self._config(self._settings(label) | {"seed": 0}), directory.path):
            return False
        return len(read_metrics(directory.metrics)) >= (self.plan.rounds or 1)

    def _directory(self, label: str, rate: str | None = None, seed: int = 0) -> Path:
        name = re.sub("[^a-zA-Z0-9.+_]+", "-", label)
        parts = [name, *([rate] if rate else []), *([f"seed-{seed}"] if seed else [])]
        return self.folder / "-".join(parts)

    def runs(self, label: str) -> Data:
        """Run all seeds of one setting."""
        settings, own = self._settings(label), {"options": self.experiment.runs[label]}
        if "{rate}" not in self.experiment.runs[label]:
            return own | self._seeds(label, settings)
        # The best rate of the trials may still diverge in the longer run; then try the next best.
        for rates in self._candidates(label, settings):
            data = own | rates.data() | self._seeds(label, settings | rates.settings(), rates.name)
            if "diverged" not in data:
                break
        return data | ({"trials": self.trials[label]} if label in self.trials else {})

    def _settings(self, label: str) -> dict[str, Any]:
        """Return the settings of a label, except the seed and the chosen rates."""
        settings = options(f"{self.experiment.common} {self.experiment.runs[label].replace('{rate}', '0')}")
        if self.plan.rounds is not None:
            # In full, a setting may have more rounds than the others.
            longer = settings.get("rounds", 0) if self.plan.mode == "full" else 0
            settings["rounds"] = max(self.plan.rounds, longer)
            settings["eval_every"] = evaluated_every(settings.get("eval_every", 1), self.plan.rounds)
        return quick(settings) if self.plan.mode == "quick" else settings

    def _config(self, settings: dict[str, Any]) -> RunConfig:
        # The five papers weigh all clients equally.
        threads = {} if self.threads is None else {"threads": self.threads}
        return load_config(None, {"weighting": "uniform"} | threads, settings)

    def _candidates(self, label: str, settings: dict[str, Any]) -> Iterator[Rates]:
        """Yield the published rates, if any, and then those of the trials, best first."""
        if label in self.stored:
            run = self.stored[label]
            yield Rates(run["rate"], run.get("server_rate"))
        yield from self._best_rates(label, settings) or [Rates(self.plan.rates[-1])]

    def _seeds(self, label: str, settings: dict[str, Any], rate: str | None = None) -> Data:
        first = self.experiment.first_seed
        seeds = range(first, first + self.plan.seeds)
        curves, seconds, diverged = [], [], False
        published = self._published(label, settings, rate)
        for seed in seeds:
            if seed in published:
                columns, spent = published[seed]
            else:
                run = self._run(settings | {"seed": seed}, self._directory(label, rate, seed), label)
                columns, spent, diverged = _columns(run.curve), run.seconds, diverged or run.diverged
            curves.append(columns)
            seconds.append(spent)
        ended = {"diverged": True} if diverged else {}
        return {"seeds": [*seeds], "seconds": seconds, "curves": curves} | ended

    def _published(
        self, label: str, settings: dict[str, Any], rate: str | None
    ) -> dict[int, tuple[dict[str, list[Any]], float | None]]:
        """Return the published curves and seconds by seed.

        There are none if a seed diverged, or if they have another rate or are of other code.
        """
        run = self.stored.get(label)
        if run is None or "diverged" in run:
            return {}
        if rate != (Rates(run["rate"], run.get("server_rate")).name if "rate" in run else None):
            return {}
        if not self._reproduced(run["seeds"][0], run["curves"][0], label, settings, rate):
            self.outdated.append(label)
            return {}
        seconds = run.get("seconds", [None] * len(run["seeds"]))
        return dict(zip(run["seeds"], zip(run["curves"], seconds, strict=True), strict=True))

    def _reproduced(
        self, seed: int, published: dict[str, list[Any]], label: str, settings: dict[str, Any], rate: str | None
    ) -> bool:
        """Whether today's code gives the first evaluation of a published run."""
        beginning = settings | {"seed": seed, "rounds": published["round"][0]}
        today = self._run(beginning, self._directory(label, rate, seed), label)
        now = {} if today.diverged else _columns(today.curve[:1])
        pairs = [(published[name][0], now[name][0]) for name in published if name in now]
        numbers = [pair for pair in pairs if None not in pair]
        return bool(numbers) and all(isclose(*pair, rel_tol=SAME, abs_tol=SAME) for pair in numbers)

    def _best_rates(self, label: str, settings: dict[str, Any]) -> list[Rates]:
        """Rank the rates by the final accuracy of a short trial, best first, without those that diverge.

        With each server rate, local rates are tried in order, largest first, until two in a row are worse than the best.
        """
        accuracies: dict[Rates, float] = {}
        self.trials[label] = {}
        length = self.plan.long_trial if label in self.experiment.long_trials else self.plan.trial
        for server in (None, *self.plan.server_rates):
            found: list[float] = []
            for rate in self.plan.rates:
                rates = Rates(rate, server)
                trial = self._directory(f"{label}-trial", rates.name)
                changed = settings | rates.settings() | {"rounds": length}
                run = self._run(changed, trial, f"{label}, {rates.name}")
                if run.diverged:
                    self.trials[label][rates.name] = "diverged"
                    continue
                found.append(mean_of_last(run.curve))
                accuracies[rates] = found[-1]
                self.trials[label][rates.name] = round(found[-1] / 100, 4)
                if max(found[-2:]) < max(found):
                    break
        return sorted(accuracies, key=lambda rates: -accuracies[rates])

    def _run(self, settings: dict[str, Any], directory: Path, label: str) -> Finished:
        """Run one setting with one seed, or read it from disk. A run of other settings is moved out of the way."""
        config = self._config(settings)
        if not started_with(config, directory):
            _set_aside(directory)
        records, diverged = run_or_resume(config, directory, [self.callback], label)
        if len(records) < config.rounds and not diverged:
            raise Stopped
        metrics = RunDirectory(directory).metrics
        if metrics.exists():
            self.newest = max(self.newest, date.fromtimestamp(metrics.stat().st_mtime))
        kept = [record for record in records if "accuracy" in record or "q_a" in record]
        curve = [{name: record[name] for name in KEPT if record.get(name) is not None} for record in kept]
        return Finished(curve, diverged, records[-1]["seconds"] if records else None)


def _set_aside(directory: Path) -> None:
    """Rename a run to the first free name with `-earlier-1`, `-earlier-2`, …"""
    names = (directory.with_name(f"{directory.name}-earlier-{number}") for number in itertools.count(1))
    directory.rename(next(path for path in names if not path.exists()))


def _columns(curve: Curve) -> dict[str, list[Any]]:
    """Convert a curve to columns, which are smaller on disk, with six significant digits."""
    names = [name for name in KEPT if any(name in record for record in curve)]
    return {name: [_short(record.get(name)) for record in curve] for name in names}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def curves(run: Data) -> list[Curve]:
    """Convert the columns of each seed back to records."""
    return [
        [
            {name: value for name, value in zip(columns, row, strict=True) if value is not None}
            for row in zip(*columns.values(), strict=True)
        ]
        for columns in run["curves"]
    ]
