"""A queue of the runs that studies miss: the studies that decide the most claims per hour first.

A job is one setting of a study with its first seeds. Jobs read finished runs from disk and resume unfinished ones, so a
queue that was stopped continues where it was. A study is published when all of its settings have one more seed. Published
seeds are kept if today's code still gives their first evaluation; otherwise the setting is run again with all seeds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from laconic import DataError, LaconicError
from laconic.reproduce.document import load, save
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.options import options
from laconic.reproduce.plans import Data, Plan, plan, same_form, unchanged
from laconic.reproduce.progress import Line, newest, write
from laconic.reproduce.runner import (
    Numbers,
    Runner,
    Skipped,
    Stopped,
    by_seed,
    check_possible,
    computed,
)
from laconic.reproduce.study import Mode, Study
from laconic.run import Callback, Record, Run

MICROSECONDS = {
    **{"logistic": 6, "mlp:64": 7, "mlp:100": 7, "mlp": 10, "lenet5": 25},
    **{"cnn": 450, "cnn_fashion": 330, "resnet18": 100_000},
}
"""Time of one example's gradient on one core, by the model, or its name before the colon. It only sets the order."""
OTHER_MODELS = 3000
CHECKED = 0.05
"""The share of a run that checks whether a published run is of today's code."""
COMPUTED = 7e-6
"""Hours of one trial of a study without training."""
EXAMPLES = 60_000
"""The size of a data set in estimates."""
NICE = 10
"""The nice value of the processes that run jobs."""
REFRESH = 10.0
"""Seconds between two updates of the progress page."""
State = Literal["waiting", "running", "done", "stopped", "skipped", "failed"]


@dataclass(frozen=True, eq=False)
class Job:
    """One setting of a study with its first seeds."""

    study: str
    label: str
    """The setting; empty for a study without training."""
    seeds: int
    folder: Path
    mode: Mode
    hours: float
    """Estimated duration of the last seed on one core."""
    experiment: Experiment | None = None
    plan: Plan | None = None
    stored: Data | None = None
    compute: Callable[[Mode, int], Numbers] | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a job."""

    state: State
    data: Data | None = None
    """The data of the setting, with all of its seeds so far."""
    note: str = ""


class Watch(Callback):
    """Stops a run after the round in which the time is over, and keeps the progress page up to date."""

    def __init__(self, until: float, refresh: Callable[[], None]) -> None:
        self.until, self.refresh = until, refresh

    def on_round_end(self, run: Run, record: Record) -> None:
        self.refresh()
        if time.time() >= self.until:
            run.stop("the time is over")


def work(job: Job, until: float, threads: int, refresh: Callable[[], None] = lambda: None) -> Outcome:
    """Run a job in this process."""
    try:
        if job.compute is not None:
            return Outcome("done", dict(job.compute(job.mode, job.seeds - 1)))
        assert job.experiment is not None and job.plan is not None
        runner = Runner(job.experiment, job.plan, job.folder, Watch(until, refresh), job.stored, threads)
        data = runner.runs(job.label)
        return Outcome(
            "done", data, "the published runs are of other code and were run again" if runner.outdated else ""
        )
    except Stopped:
        return Outcome("stopped")
    except DataError as error:
        return Outcome("skipped", note=str(error))
    except LaconicError as error:
        return Outcome("failed", note=str(error))


def work_apart(job: Job, until: float, threads: int) -> Outcome:
    """Run a job in a process of its own. Other exceptions, also that of Ctrl-C, may not survive the way to the queue."""
    try:
        return work(job, until, threads)
    except Exception as error:
        return Outcome("failed", note=f"{type(error).__name__}: {error}")


def lower_priority() -> None:
    """Give this process a nice value of at least `NICE`, where there are such values: other processes come first."""
    if hasattr(os, "nice"):
        os.nice(max(0, NICE - os.nice(0)))


class Inline(Executor):
    """Runs each job at once, in this process."""

    def submit(self, function: Callable[..., Outcome], /, *arguments: object, **_: object) -> Future[Outcome]:  # type: ignore[override]
        future: Future[Outcome] = Future()
        future.set_result(function(*arguments))
        return future


class Queue:
    """Jobs of several studies, and what has become of them.

    Args:
        studies: Studies by name.
        mode: The form of each study. A study that is published in full stays full.
        seeds: The wanted number of seeds.
        runs: The folder of the runs.
        docs: The folder of the data and pages.
    """

    def __init__(self, studies: Mapping[str, Study], mode: Mode, seeds: int, runs: Path, docs: Path) -> None:
        self.studies, self.seeds, self.runs, self.docs = studies, seeds, runs, docs
        self.skipped: dict[str, str] = {}
        jobs: dict[str, list[Job]] = {}
        for name, study in studies.items():
            try:
                jobs[name] = self._jobs(name, study, mode)
            except Skipped as reason:
                self.skipped[name] = str(reason)
        self.jobs = [job for name in sorted(jobs, key=lambda name: self._rank(name, jobs[name])) for job in jobs[name]]
        """All jobs in order."""
        self.states: dict[Job, tuple[State, str]] = dict.fromkeys(self.jobs, ("waiting", ""))
        self.outcomes: dict[Job, Data] = {}
        self.until = self._written = 0.0

    def _rank(self, name: str, jobs: list[Job]) -> float:
        """Return the estimated hours per claim. Studies without claims come last."""
        claims = len(self.studies[name].claims)
        hours = sum(job.hours for job in jobs)
        return hours / claims if claims else 1e6 + hours

    def _jobs(self, name: str, study: Study, mode: Mode) -> list[Job]:
        """Return the jobs of one study, seed by seed."""
        stored = load(name, self.docs)
        mode = "full" if stored is not None and stored["mode"] == "full" else mode
        check_possible(study, mode)
        folder = self.runs / (study.folder or name)
        if study.compute is not None:
            return self._computations(name, study, mode, folder, stored)
        experiment = study.experiment
        assert experiment is not None
        wanted = extent(study, experiment, mode, stored, self.seeds)
        same = stored is not None and same_form(stored, experiment, wanted)
        kept = unchanged(stored, experiment, wanted) if stored is not None and same else {}
        missing = [count for count in range(1, self.seeds + 1) if not _published(stored, experiment, wanted, count)]
        return [
            Job(
                name,
                label,
                count,
                folder,
                mode,
                CHECKED * hours(experiment, wanted, label)
                if label in kept and count <= len(kept[label]["seeds"])
                else hours(experiment, wanted, label, trials=count == 1),
                experiment,
                replace(wanted, seeds=count),
                stored,
            )
            for count in missing
            for label in wanted.labels
        ]

    def _computations(self, name: str, study: Study, mode: Mode, folder: Path, stored: Data | None) -> list[Job]:
        """Return the jobs of a study without training."""
        known = stored if stored is not None and (study.exact or stored["mode"] == mode) else None
        count, published = 1 if study.exact else self.seeds, len(by_seed(known)) if known else 0
        spent = COMPUTED * study.trials.get(mode, 1)
        return [
            Job(name, "", seeds, folder, mode, spent, stored=known, compute=study.compute)
            for seeds in range(published + 1, count + 1)
        ]

    def run(self, workers: int, until: float) -> bool:
        """Run jobs until a time. Return whether none is left."""
        self.until = until
        threads = max(1, (os.cpu_count() or 1) // workers)
        with (
            Inline() if workers == 1 else ProcessPoolExecutor(workers, get_context("spawn"), lower_priority) as executor
        ):
            running: dict[Future[Outcome], Job] = {}
            while True:
                free = workers - len(running) if time.time() < until and not self._any("stopped") else 0
                for job in self._ready(free):
                    self._note(job, "running", f"since {time.strftime('%H:%M')}")
                    task = partial(work, refresh=self._refresh) if workers == 1 else work_apart
                    running[executor.submit(task, job, until, threads)] = job
                if not running:
                    break
                done, _ = wait(running, REFRESH, FIRST_COMPLETED)
                for future in done:
                    self._finish(running.pop(future), future.result())
                self._refresh()
        return not self._any("waiting", "stopped")

    def _any(self, *states: State) -> bool:
        return any(state in states for state, _ in self.states.values())

    def _ready(self, count: int) -> Iterator[Job]:
        """Yield the next jobs. A setting has one job at a time, and none after one that failed."""
        busy = set()
        for job in self.jobs:
            state, place = self.states[job][0], (job.folder, job.label)
            if state == "waiting" and place not in busy and count > 0:
                count -= 1
                yield job
            if state != "done":
                busy.add(place)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        self._note(job, outcome.state, outcome.note or f"at {time.strftime('%H:%M')}")
        if outcome.state in ("failed", "skipped"):
            later = [each for each in self.jobs if (each.study, each.label) == (job.study, job.label)]
            self.states |= {each: ("skipped", "") for each in later if each.seeds > job.seeds}
        if outcome.data is not None:
            self.outcomes[job] = outcome.data
            self._publish(job)

    def _publish(self, last: Job) -> None:
        """Write the data of a study if all of its settings have as many seeds as the last job.

        Data with more seeds are kept until the new ones have as many.
        """
        peers = [job for job in self.jobs if (job.study, job.seeds) == (last.study, last.seeds)]
        published = (last.stored or {}).get("runs", {}).values()
        fewer = last.seeds < max((len(run["seeds"]) for run in published), default=0)
        if not fewer and all(job in self.outcomes for job in peers):
            save(last.study, self.studies[last.study], self._data(last, peers), self.docs)

    def _data(self, last: Job, peers: list[Job]) -> Data:
        """Return the data of a study whose settings all have as many seeds as the last job."""
        if last.plan is None:
            rows = by_seed(last.stored) if last.stored else {}
            rows |= {job.seeds - 1: self.outcomes[job] for job in self.outcomes if job.study == last.study}
            return computed(last.mode, [*rows.values()])
        assert last.experiment is not None
        runner = Runner(last.experiment, last.plan, last.folder, Callback(), last.stored)
        runner.newest = date.today()
        return runner.data({job.label: self.outcomes[job] for job in peers})

    def _note(self, job: Job, state: State, note: str) -> None:
        self.states[job] = state, note
        self._write()

    def _refresh(self) -> None:
        """Write the page again if it is old."""
        if time.time() >= self._written + REFRESH:
            self._write()

    def _write(self) -> None:
        self._written = time.time()
        write(self.runs, [self._line(job) for job in self.jobs], self.skipped, self.until)

    def _line(self, job: Job) -> Line:
        state, note = self.states[job]
        note += newest(job.folder) if state == "running" else ""
        return Line(job.study, len(self.studies[job.study].claims), job.label, job.seeds, job.hours, state, note)


def extent(study: Study, experiment: Experiment, mode: Mode, stored: Data | None, seeds: int) -> Plan:
    """Return the extent of a study in the queue: that of the mode, and not less than what is published."""
    wanted = plan(study, experiment, mode, seeds)
    if stored is None or "runs" not in stored:
        return wanted
    labels = tuple(label for label in experiment.runs if label in wanted.labels or label in stored["runs"])
    rounds = wanted.rounds if wanted.rounds is None else max(wanted.rounds, stored.get("rounds") or 0)
    return replace(wanted, rounds=rounds, labels=labels)


def _published(stored: Data | None, experiment: Experiment, wanted: Plan, seeds: int) -> bool:
    """Whether the published data have this form, all settings, and as many seeds."""
    if stored is None or not same_form(stored, experiment, wanted):
        return False
    kept = unchanged(stored, experiment, wanted)
    return all(len(kept.get(label, {"seeds": []})["seeds"]) >= seeds for label in wanted.labels)


def hours(experiment: Experiment, wanted: Plan, label: str, *, trials: bool = False) -> float:
    """Estimate the hours of one seed of a setting on one core.

    Args:
        trials: Whether to add a trial of every rate, which the first seed needs.
    """
    settings = options(f"{experiment.common} {experiment.runs[label].replace('{rate}', '0')}")
    clients = settings.get("clients", 100)
    if "local_epochs" in settings:
        examples = settings["local_epochs"] * EXAMPLES / clients
    else:
        examples = settings.get("local_steps", 1) * settings.get("batch_size", 32)
    rounds = wanted.rounds or settings["rounds"]
    if trials and "{rate}" in experiment.runs[label]:
        length = wanted.long_trial if label in experiment.long_trials else wanted.trial
        rounds += length * len(wanted.rates) * (1 + len(wanted.server_rates))
    gradients: float = rounds * settings.get("participants", clients) * examples
    model = str(settings["model"])
    each = MICROSECONDS.get(model) or MICROSECONDS.get(model.partition(":")[0], OTHER_MODELS)
    return gradients * each / 3.6e9
