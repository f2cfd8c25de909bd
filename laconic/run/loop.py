"""The loop of every run: simulated or on Flower, with a directory or without."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager

from laconic.core.errors import Interrupted
from laconic.run.callbacks import Callback, CallbackList, Outcome, Run
from laconic.run.config import RunConfig
from laconic.run.directory import RunDirectory
from laconic.run.training import Diverged, Result, Training


def run(
    training: Training,
    config: RunConfig,
    directory: RunDirectory | None = None,
    callbacks: Iterable[Callback] = (),
    *,
    label: str | None = None,
    more: bool = False,
) -> Result:
    """Run all rounds that are left, and close the training.

    The directory is the first of the callbacks, so the others find in it what they are told about. With a directory, Ctrl-C
    finishes the round, saves, and raises `Interrupted`; without one, or if every round is saved anyway, it stops at once.

    Args:
        training: What is run.
        config: Its config; choices that it leaves open are taken from `training`.
        directory: Where the run is written, if anywhere.
        callbacks: What is told about the run.
        label: What the run is called; the algorithm's name by default.
        more: Whether other runs follow. Then Ctrl-C in the last round raises `Interrupted`, too, once the run is finished.
    """
    hooks = CallbackList([*([] if directory is None else [directory]), *callbacks])
    path = None if directory is None else directory.path
    try:
        state = Run(training, config.resolved(training), label or config.algorithm, path)
        polite = directory is not None and not directory.every_round
        outcome, interrupted = _run_to_end(state, hooks, polite=polite)
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


def _run_to_end(run: Run, hooks: Callback, *, polite: bool) -> tuple[Outcome, bool]:
    """Start, run and end; the callbacks hear how it ended. Returns that, and whether a person has asked to stop."""
    outcome: Outcome = "failed"
    try:
        hooks.on_run_start(run)
        interrupted = _run_rounds(run, hooks, polite=polite)
        over = run.stop_reason is not None or run.training.server.round == run.training.settings.rounds
        outcome = "finished" if over else "stopped"
    except BaseException as error:
        run.broken_off = True
        if isinstance(error, KeyboardInterrupt | Diverged):
            outcome = "stopped" if isinstance(error, KeyboardInterrupt) else "diverged"
        raise
    finally:
        hooks.on_run_end(run, outcome)
    return outcome, interrupted


def _run_rounds(run: Run, hooks: Callback, *, polite: bool) -> bool:
    """Run the rounds that are left, unless a callback or a person stops; returns whether a person has asked to stop."""
    with closing(run.training.rounds()) as rounds, _polite_stop(run, hooks, polite) as interrupted:
        for record in rounds:
            run.history.append(record)
            hooks.on_round_end(run, record)
            if run.stop_reason is not None or interrupted():
                break
        return interrupted()


@contextmanager
def _polite_stop(run: Run, hooks: Callback, polite: bool) -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks for a stop after the round, and a second one stops at once; if not `polite`, the first one does."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        hooks.on_interrupt(run)

    if not polite:
        yield lambda: False
        return
    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:
        # Not in the main thread: whoever runs us there handles signals.
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
