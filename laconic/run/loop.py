"""The loop of every run, simulated or on Flower, with or without a run directory."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager

from laconic.core.errors import Interrupted
from laconic.run.callbacks import Callback, CallbackList, Outcome, Run
from laconic.run.collapse import collapse
from laconic.run.config import RunConfig
from laconic.run.directory import RunDirectory
from laconic.run.training import Diverged, Result, Training


def run_training(
    training: Training,
    config: RunConfig,
    directory: RunDirectory | None = None,
    callbacks: Iterable[Callback] = (),
    *,
    label: str | None = None,
    more: bool = False,
) -> Result:
    """Run all remaining rounds, and close the training.

    The directory is the first callback, so its files are up to date when the other callbacks are called. With a directory,
    Ctrl-C finishes the round, saves, and raises `Interrupted`. Without one, or if every round is saved anyway, Ctrl-C stops
    at once.

    Args:
        training: The training to run.
        config: Its config. Keys that are not set are taken from `training`.
        directory: The run directory, if the run is written to disk.
        callbacks: Objects that are notified of the run's progress.
        label: The run's name in the terminal and in reports. Default: the algorithm's title.
        more: Whether other runs follow. If so, Ctrl-C in the last round also raises `Interrupted`, after the run is saved.
    """
    hooks = CallbackList([*([] if directory is None else [directory]), *callbacks])
    path = None if directory is None else directory.path
    try:
        state = Run(training, config.resolved(training), label or training.algorithm.title, path)
        graceful = directory is not None and not directory.every_round
        outcome, interrupted = _run_to_end(state, hooks, graceful=graceful)
        if directory is not None and (outcome == "stopped" or (more and interrupted)):
            raise Interrupted(directory.path, directory.saved)
        return training.result(state.history, state.stop_reason)
    except KeyboardInterrupt:
        if directory is None or directory.every_round:
            raise
        raise Interrupted(directory.path, directory.saved) from None
    except Diverged as error:
        if path is None:
            raise
        raise Diverged(f"{error} (the run is in '{path}')") from error
    finally:
        training.close()


def _run_to_end(run: Run, hooks: Callback, *, graceful: bool) -> tuple[Outcome, bool]:
    """Run between `on_run_start` and `on_run_end`. Returns the outcome, and whether Ctrl-C was pressed."""
    outcome: Outcome = "failed"
    try:
        hooks.on_run_start(run)
        interrupted = _run_rounds(run, hooks, graceful=graceful)
        complete = run.stop_reason is not None or run.training.server.round == run.training.settings.rounds
        outcome = "finished" if complete else "stopped"
    except BaseException as error:
        run.broken_off = True
        if isinstance(error, KeyboardInterrupt | Diverged):
            outcome = "stopped" if isinstance(error, KeyboardInterrupt) else "diverged"
        raise
    finally:
        hooks.on_run_end(run, outcome)
    return outcome, interrupted


def _run_rounds(run: Run, hooks: Callback, *, graceful: bool) -> bool:
    """Run the remaining rounds until a callback or Ctrl-C stops the run. Returns whether Ctrl-C was pressed."""
    with closing(run.training.rounds()) as rounds, _graceful_stop(run, hooks, graceful) as interrupted:
        for record in rounds:
            run.history.append(record)
            if (reason := collapse(run.history)) is not None:
                record["collapsed"] = reason
            hooks.on_round_end(run, record)
            if run.stop_reason is not None or interrupted():
                break
        return interrupted()


@contextmanager
def _graceful_stop(run: Run, hooks: Callback, graceful: bool) -> Iterator[Callable[[], bool]]:
    """If `graceful`, the first Ctrl-C requests a stop after the round. The second one, or any other, stops at once."""
    requested = False

    def request(number: int, frame: object) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True
        hooks.on_interrupt(run)

    if not graceful:
        yield lambda: False
        return
    try:
        previous = signal.signal(signal.SIGINT, request)
    except ValueError:
        # Only the main thread may install signal handlers.
        yield lambda: False
        return
    try:
        yield lambda: requested
    finally:
        signal.signal(signal.SIGINT, previous)
