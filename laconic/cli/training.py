"""The commands run, compare and tune."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from laconic.cli.console import note, say, stderr, stdout
from laconic.cli.output import check_file, new_directory, only_given, print_json, resume_command, stored
from laconic.cli.view import LiveView
from laconic.core.errors import ConfigError, Interrupted
from laconic.core.user_code import check_trusted, trust
from laconic.data.federated import ClientData
from laconic.report.comparison import Comparison, Planned, check_files, check_labels, directory_of, run_all
from laconic.report.page import report as write_report
from laconic.report.tables import new_table, outcome
from laconic.report.trackers import chosen_callbacks
from laconic.run.callbacks import Callback
from laconic.run.config import RunConfig, code_in, load_config
from laconic.run.directory import RunDirectory
from laconic.run.driver import Finished, run_config
from laconic.run.files import write_atomically
from laconic.run.labels import split_label
from laconic.run.resume import FREE_TO_CHANGE, check_same
from laconic.run.target import WINDOW, Target, check_ranking
from laconic.run.training import Diverged
from laconic.run.tune import Timing
from laconic.run.tune import tune as measure_strategies

COMPARISON = "comparison.json"
"""The options of a comparison, stored in the folder of its runs."""


def run(
    config: Path | None,
    algorithm: str | None,
    target: Target | None,
    out: Path | None,
    resume: bool,
    from_round: int | None,
    report: bool,
    as_json: bool,
    callbacks: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Train with one algorithm."""
    if from_round is not None and not resume:
        raise ConfigError("--from-round: only with --resume")
    config, out = _earlier_run(config, out, resume)
    wanted = load_config(config, options, split_label(algorithm) if algorithm else {})
    directory = out or new_directory(wanted.algorithm, wanted.dataset)
    _check_target(target, wanted)
    observers = [LiveView(stderr), *chosen_callbacks(**callbacks)]
    try:
        finished = run_config(wanted, directory, observers, resume=resume, from_round=from_round, target=target)
    except Diverged as error:
        if not as_json:
            label = wanted.build_algorithm().title
            stdout.print(outcome([], stdout.width, failed={label: str(error)}).rich())
        # The report shows the rounds before the divergence.
        if report:
            note(f"The report is {_report(directory, target)}")
        raise
    page = _report(directory, finished.target) if report else None
    if as_json:
        print_json(finished.summary())
        return
    stdout.print(outcome([finished], stdout.width).rich())
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


def _plan(
    configs: Mapping[str, RunConfig],
    seeds: int,
    directory: Path,
    request: Mapping[str, Any],
    resume: bool,
    target: Target | None,
    rank_by: str,
    callbacks: Sequence[Callback],
) -> list[Planned]:
    """The runs of a comparison. Data that they share is loaded once, and every run is checked before the first starts.

    A resumed run loads its own data.
    """
    loaded: dict[tuple[Any, ...], ClientData] = {}

    def start(label: str, config: RunConfig, folder: Path, more: bool) -> Finished:
        own = partial(run_config, resume=resume, label=label, data=loaded.get(_data_of(config)), more=more)
        return own(config, folder, callbacks, target=target)

    planned = []
    for (label, config), number in product(configs.items(), range(seeds)):
        seeded = config.model_copy(update={"seed": config.seed + number})
        folder = directory_of(directory, label, seeded.seed if number else None)
        planned.append(Planned(label, folder, partial(start, label, seeded)))
        if not resume:
            if _data_of(seeded) not in loaded:
                loaded[_data_of(seeded)] = seeded.load_data()
            simulation = seeded.build(loaded[_data_of(seeded)])
            simulation.close()
            check_ranking(rank_by, target, simulation.metric_names())
            target = target and target.checked(simulation.metric_names(), simulation.task.named_metrics())
    check_files(planned, resume, callbacks)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / COMPARISON, json.dumps(request).encode())
    return planned


def _data_of(config: RunConfig) -> tuple[Any, ...]:
    """The settings that determine the data."""
    keys = ("dataset", "partition", "clients", "augment", "skip_empty", "seed", "data_dir")
    return tuple(getattr(config, key) for key in keys)


def compare(
    algorithms: list[str],
    config: Path | None,
    seeds: int | None,
    target: Target | None,
    out: Path | None,
    resume: bool,
    rank_by: str,
    report: bool,
    as_json: bool,
    callbacks: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Train with several algorithms on the same data, seed and initial model, and rank them."""
    request = {**options, "seeds": seeds}
    request = _stored_request(out, request) if resume else request
    options = {key: value for key, value in request.items() if key != "seeds"}
    configs = _compared(algorithms, config, options, rank_by, target)
    first = next(iter(configs.values()))
    directory = out or new_directory("compare", first.dataset)
    _check_target(target, first)
    observers = [LiveView(stderr), *chosen_callbacks(**callbacks)]
    planned = _plan(configs, request.get("seeds") or 1, directory, request, resume, target, rank_by, observers)
    try:
        finished, failed = run_all(planned, _say_failure)
    except Interrupted as stop:
        stop.again = resume_command(out, directory)
        raise
    goal = next((run.target for run in finished), target)
    comparison = Comparison(finished, failed, [plan.directory for plan in planned], goal, rank_by)
    page = directory / "report.html" if report else None
    if page is not None:
        comparison.report(page)
    if as_json:
        print_json({"runs": comparison.summaries()})
        return
    stdout.print(comparison.table(stdout.width).rich())
    say(f"Runs are in {directory}{and_report(page)}")


def _say_failure(label: str, error: str) -> None:
    stderr.print(f"[red]{escape(f'{label}: {error}')}[/red]", highlight=False, soft_wrap=True)


def _compared(
    labels: list[str], config: Path | None, options: dict[str, Any], rank_by: str, target: Target | None
) -> dict[str, RunConfig]:
    """The config of each run, by label. Raises if the runs cannot be compared."""
    check_labels(labels, f"give one of them another setting, as in {labels[0]}:seed=1")
    configs = {label: load_config(config, options, split_label(label)) for label in labels}
    networks = [run.network.any() for run in configs.values()]
    check_ranking(rank_by, target, networks=networks)
    return configs


def _stored_request(out: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """The options that the comparison was started with, which also apply to algorithms and seeds that have not run yet."""
    if out is None:
        raise ConfigError("--resume: give the --out of the comparison")
    path = out / COMPARISON
    if not path.exists():
        raise ConfigError(f"--resume: there is no comparison in '{out}'")
    old = stored(path)
    check_same(f"the comparison in '{out}'", only_given(given), old, {*FREE_TO_CHANGE, "seeds"})
    trust(code_in(given))
    check_trusted(path, code_in(old))
    return old | {key: value for key, value in given.items() if value is not None}


def _check_target(target: Target | None, config: RunConfig) -> None:
    """Warn before training if there are too few evaluations for a target."""
    evaluations = -(-config.rounds // config.eval_every)
    if target is not None and evaluations < WINDOW:
        reason = f"it needs {WINDOW} evaluations, and this run has {evaluations}"
        note(f"note: --target cannot be reported: {reason}; lower --eval-every")


def _report(directory: Path, target: Target | None) -> Path:
    page = directory / "report.html"
    write_report([directory], page, target)
    return page


def and_report(page: Path | str | None) -> str:
    """The end of the sentence that names the run's directory."""
    return "" if page is None else f", the report is {page}"


def tune(config: Path | None, algorithm: str | None, out: Path, options: dict[str, Any]) -> None:
    """Measure the fastest gradient strategy on this machine, and write it to a config."""
    config, _ = _earlier_run(config, None, resume=False)
    wanted = load_config(config, options, split_label(algorithm) if algorithm else {})
    check_file(out)
    note("measuring the time per round of each gradient strategy")
    timings = measure_strategies(wanted, lambda timing: note(f"  {timing}"))
    stdout.print(_timings(timings))
    best = timings[0]
    engine = {} if wanted.engine == "ray" else {"engine": best.engine}
    chosen = wanted.model_copy(update={"numerics": best.numerics, "threads": best.threads} | engine)
    write_atomically(out, chosen.to_toml().encode())
    say(f"Fastest: {best}. Written to {out}; use it with: laconic run {out}")


def _timings(measured: Sequence[Timing]) -> Table:
    """The measurements of `tune`, fastest first."""
    table = new_table("strategy", "vmap width", "workers", "seconds per round")
    for timing in measured:
        width = str(timing.numerics.vmap_width) if timing.numerics.strategy == "vmap" else ""
        table.add_row(timing.numerics.strategy, width, timing.on, f"{timing.seconds_per_round:.3g}")
    return table
