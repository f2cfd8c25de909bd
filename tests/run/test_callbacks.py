"""Callbacks: when they are called, how they end a run, and what happens when they fail."""

from __future__ import annotations

import json
import os
import signal
import threading
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import laconic
from laconic.core.errors import DataError, Interrupted
from laconic.run.client_evaluation import summarize
from laconic.run.config import load_config
from laconic.run.directory import RunDirectory
from laconic.run.driver import run_config
from laconic.run.training import Diverged

SMALL = {"participants": 3, "threads": 1, "eval_every": 1, "numerics": {"strategy": "loop"}}


def simulate(rounds: int, callbacks: list[laconic.Callback], **settings) -> laconic.Result:
    settings = SMALL | settings
    return laconic.simulate("fed_avg", "logistic", "digits", rounds=rounds, callbacks=callbacks, **settings)


class Spy(laconic.Callback):
    """Writes down what it is told; does something in the round that it is given."""

    def __init__(self, name: str = "", calls: list | None = None, act=lambda run: None, at: int = 0) -> None:
        self.name, self.act, self.at = name, act, at
        self.calls = [] if calls is None else calls

    def on_run_start(self, run) -> None:
        self.calls.append((self.name, "start", len(run.history)))
        if self.at == 0:
            self.act(run)

    def on_round_end(self, run, record) -> None:
        assert run.history[-1] is record
        self.calls.append((self.name, "round", record["round"]))
        if self.at == record["round"]:
            self.act(run)

    def on_interrupt(self, run) -> None:
        self.calls.append((self.name, "interrupt"))

    def on_run_end(self, run, outcome) -> None:
        self.calls.append((self.name, "end", outcome))


def fail(run) -> None:
    raise RuntimeError("a callback of one's own")


def interrupt(run) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_callbacks_are_called_in_order() -> None:
    calls: list = []
    simulate(2, [Spy("a", calls), Spy("b", calls)])
    assert calls == [
        *(("a", "start", 0), ("b", "start", 0)),
        *(("a", "round", 1), ("b", "round", 1), ("a", "round", 2), ("b", "round", 2)),
        *(("a", "end", "finished"), ("b", "end", "finished")),
    ]


@pytest.mark.parametrize("out", [None, "run"])
def test_a_callback_ends_the_run_after_the_round(tmp_path: Path, out: str | None) -> None:
    spy = Spy(act=lambda run: run.stop("enough"), at=2)
    result = simulate(5, [spy], out=out and tmp_path / out)
    assert result.stopped == "enough" and len(result.history) == 2
    assert spy.calls[-1] == ("", "end", "finished")
    expected = simulate(2, [])
    assert expected.stopped is None and expected.model_sha256 == result.model_sha256
    if out:
        assert (tmp_path / out / "model.safetensors").exists()
        # It can be resumed, and then is the run that was never stopped.
        resumed = run_config(load_config(None, {}), tmp_path / out, resume=True).result
        assert [record["round"] for record in resumed.history] == [1, 2, 3, 4, 5]
        assert resumed.model_sha256 == simulate(5, []).model_sha256


def test_the_first_reason_to_stop_counts() -> None:
    spies = [Spy(act=lambda run, word=word: run.stop(word), at=1) for word in ("first", "second")]
    assert simulate(5, spies).stopped == "first"


@pytest.mark.parametrize("at", [0, 2])
def test_an_exception_in_a_callback_ends_the_run_and_all_that_have_started_are_told(tmp_path: Path, at: int) -> None:
    calls: list = []
    with pytest.raises(RuntimeError, match="of one's own"):
        simulate(3, [Spy("a", calls), Spy("b", calls, fail, at), Spy("c", calls)], out=tmp_path / "run")
    ends = [call for call in calls if call[1] == "end"]
    assert ends == [(name, "end", "failed") for name in ("ab" if at == 0 else "abc")]
    assert not (tmp_path / "run/model.safetensors").exists()
    # Not of the callback that failed: its round is over, and stands in the file.
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines() if at else []
    assert [json.loads(line)["round"] for line in lines] == [1, 2][:at]


def test_an_exception_at_the_end_does_not_keep_the_others_from_being_told() -> None:
    class Bad(laconic.Callback):
        def on_run_end(self, run, outcome) -> None:
            raise RuntimeError("too late")

    before, after = Spy(), Spy()
    with pytest.raises(RuntimeError, match="too late"):
        simulate(1, [before, Bad(), after])
    assert (before.calls[-1][-1], after.calls[-1][-1]) == ("finished", "failed")


def test_a_model_that_cannot_be_saved_is_no_finished_run(tmp_path: Path) -> None:
    # A directory is where the model should go.
    spy = Spy(act=lambda run: (run.directory / "model.safetensors").mkdir(), at=1)
    with pytest.raises(DataError, match=r"model\.safetensors': Is a directory"):
        simulate(2, [spy], out=tmp_path / "run")
    assert spy.calls[-1] == ("", "end", "failed")


def test_ctrl_c_with_a_directory_finishes_the_round_and_tells_it(tmp_path: Path) -> None:
    spy = Spy(act=interrupt, at=2)
    with pytest.raises(Interrupted) as caught:
        run_config(load_config(None, SMALL | {"rounds": 4, "model": "logistic"}), tmp_path / "run", [spy])
    assert caught.value.done == 2
    assert spy.calls[-2:] == [("", "interrupt"), ("", "end", "stopped")]
    again = Spy()
    run_config(load_config(None, {}), tmp_path / "run", [again], resume=True)
    assert again.calls == [("", "start", 2), ("", "round", 3), ("", "round", 4), ("", "end", "finished")]


def test_ctrl_c_without_a_directory_stops_at_once() -> None:
    spy = Spy(act=interrupt, at=2)
    # A process that was started in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(4, [spy])
    finally:
        signal.signal(signal.SIGINT, before)
    assert spy.calls[-1] == ("", "end", "stopped") and ("", "interrupt") not in spy.calls


def test_a_run_that_diverges_is_told_so(tmp_path: Path) -> None:
    spy = Spy()
    algorithm = laconic.fed_avg(local_lr=1e38, server_lr=1e30)
    with pytest.raises(Diverged, match="the run is in"):
        laconic.simulate(algorithm, "logistic", "digits", rounds=9, callbacks=[spy], out=tmp_path / "run", **SMALL)
    assert spy.calls[-1] == ("", "end", "diverged")
    assert (tmp_path / "run/diverged").exists() and not (tmp_path / "run/model.safetensors").exists()


def test_what_a_callback_sees_of_a_run(tmp_path: Path) -> None:
    seen: list = []
    simulate(1, [Spy(act=seen.append)], out=tmp_path / "run", seed=3)
    (run,) = seen
    assert (run.label, run.directory, run.config.seed) == ("fed_avg", tmp_path / "run", 3)
    assert run.training.settings.rounds == 1
    # The directory comes first: what is told about is there already.
    assert tomllib.loads((run.directory / "config.toml").read_text())["seed"] == 3


def test_what_is_no_callback_is_refused() -> None:
    for wrong in (Spy, print):
        with pytest.raises(laconic.ConfigError, match=r"is not a laconic\.Callback; pass instances, not classes"):
            simulate(1, [wrong])


def test_a_server_waits_for_a_stopped_one(tmp_path: Path) -> None:
    """A directory that saves every round belongs to a server that Flower starts."""
    first, second = (RunDirectory(tmp_path, every_round=True) for _ in range(2))
    first._take_lock()
    assert first._lock is not None
    held = first._lock
    timer = threading.Timer(0.5, os.close, [held])
    timer.start()
    second._take_lock()
    timer.join()
    with pytest.raises(laconic.ConfigError, match="another process"):
        RunDirectory(tmp_path)._take_lock()
    assert second._lock is not None
    os.close(second._lock)


def test_one_process_at_a_time_works_in_a_directory(tmp_path: Path) -> None:
    def another(run) -> None:
        with pytest.raises(laconic.ConfigError, match="another process is writing to this run"):
            run_config(load_config(None, {}), tmp_path / "run", resume=True)

    result = simulate(2, [Spy(act=another, at=1)], out=tmp_path / "run")
    assert result.model_sha256 == simulate(2, []).model_sha256


class Values(laconic.Callback):
    """Replaces what was measured, so that the test knows it."""

    def __init__(self, metric: str, values: list[float | None]) -> None:
        self.metric, self.values = metric, values

    def on_round_end(self, run, record) -> None:
        value = self.values[record["round"] - 1]
        record.pop(self.metric, None)
        if value is None:
            for name in ("accuracy", "loss"):
                record.pop(name, None)
        else:
            record[self.metric] = value


@pytest.mark.parametrize(
    ("metric", "settings", "values", "rounds"),
    [
        ("accuracy", {"patience": 2}, [0.1, 0.2, 0.2, 0.3, 0.3, 0.1, 0.9], 6),
        ("accuracy", {"patience": 2, "minimum_change": 0.15}, [0.1, 0.2, 0.25, 0.9], 3),
        # Slow but steady: the sum of small gains is an improvement over the best.
        ("accuracy", {"patience": 2, "minimum_change": 0.15}, [0.1, 0.2, 0.3, 0.4, 0.5], 5),
        # Rounds without an evaluation do not count.
        ("accuracy", {"patience": 2}, [0.5, None, 0.4, None, 0.4, 0.9], 5),
        ("loss", {"patience": 1}, [3.0, 2.0, 1.0, 1.5, 0.1], 4),
        ("loss", {"patience": 1, "mode": "max"}, [3.0, 2.0, 1.0], 2),
        # By their names, these should increase.
        ("f1", {"patience": 2}, [0.1, 0.2, 0.3, 0.4, 0.5], 5),
        ("auroc", {"patience": 2}, [0.9, 0.8, 0.7, 0.95], 3),
        # An undefined value is no value.
        ("auroc", {"patience": 2}, [float("nan"), 0.5, 0.6, 0.7], 4),
    ],
)
def test_early_stopping(metric: str, settings: dict, values: list, rounds: int) -> None:
    callbacks = [Values(metric, values), laconic.EarlyStopping(metric, **settings)]
    result = simulate(len(values), callbacks)
    assert len(result.history) == rounds
    if rounds < len(values):
        assert result.stopped is not None and result.stopped.startswith(f"{metric} has not improved")
        assert f"in {settings['patience']} evaluation" in result.stopped


def test_early_stopping_goes_on_counting_when_a_run_is_resumed(tmp_path: Path) -> None:
    values = [0.5, 0.4, 0.3, 0.9]
    callbacks = [Values("accuracy", values), laconic.EarlyStopping(patience=2)]
    simulate(2, callbacks, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for line, value in zip(lines, values, strict=False):
        line["accuracy"] = value
    (tmp_path / "run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run_config(load_config(None, {"rounds": 4}), tmp_path / "run", callbacks, resume=True).result
    assert len(result.history) == 3 and result.stopped == "accuracy has not improved in 2 evaluations"


def test_early_stopping_refuses_what_it_cannot_use() -> None:
    for wrong in ({"patience": 0}, {"minimum_change": -1.0}, {"mode": "best"}):
        with pytest.raises(laconic.ConfigError, match=next(iter(wrong))):
            laconic.EarlyStopping(**wrong)
    with pytest.raises(laconic.ConfigError, match=r"acuracy.*accuracy"):
        simulate(3, [laconic.EarlyStopping("acuracy")])


def test_the_best_model_is_saved_and_can_be_loaded(tmp_path: Path) -> None:
    seen: dict[int, torch.Tensor] = {}

    def keep(run) -> None:
        seen[run.training.server.round] = run.training.trained().state_dict()

    class Keep(laconic.Callback):
        def on_round_end(self, run, record) -> None:
            keep(run)

    best = laconic.SaveBest("accuracy")
    result = simulate(4, [Values("accuracy", [0.3, 0.5, None, 0.4]), Keep(), best], out=tmp_path / "run")
    assert (best.best, best.best_round) == (0.5, 2) and best.path == tmp_path / "run/best.safetensors"
    result.model.load_state_dict(load_file(best.path))
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, seen[2][name])


def test_the_best_model_of_a_resumed_run_may_be_an_earlier_one(tmp_path: Path) -> None:
    best = laconic.SaveBest("loss", tmp_path / "best.safetensors")
    simulate(2, [Values("loss", [1.0, 2.0]), best], out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for line, value in zip(lines, [1.0, 2.0], strict=True):
        line["loss"] = value
    (tmp_path / "run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    content = best.path.read_bytes()
    callbacks = [Values("loss", [1.0, 2.0, 3.0]), best]
    simulate(3, callbacks, out=tmp_path / "run", resume=True)
    assert best.path.read_bytes() == content and best.best_round == 1
    # Without its file, the best of the remaining rounds counts.
    best.path.unlink()
    simulate(4, [Values("loss", [1.0, 2.0, 3.0, 4.0]), best], out=tmp_path / "run", resume=True)
    assert best.path.exists() and (best.best, best.best_round) == (4.0, 4)


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        *((name, False) for name in ("accuracy", "f1", "auroc", "r2", "kappa", "worst_client_accuracy", "personal_f1")),
        *((name, True) for name in ("loss", "training_loss", "rmse", "absolute_error", "calibration_error")),
        *((name, True) for name in ("worst_client_loss", "client_accuracy_spread", "objective", "MeanSquaredError")),
    ],
)
def test_one_rule_says_which_values_are_better(tmp_path: Path, metric: str, lower: bool) -> None:
    best = laconic.SaveBest(metric, tmp_path / "best.safetensors")
    assert best.mode == laconic.EarlyStopping(metric).mode == ("min" if lower else "max")
    assert summarize(metric, [1.0, 2.0])[f"worst_{metric}"] == (2.0 if lower else 1.0)


def test_save_best_refuses_what_it_cannot_use() -> None:
    with pytest.raises(laconic.ConfigError, match="SaveBest: pass a path to it"):
        simulate(1, [laconic.SaveBest()])
    with pytest.raises(laconic.ConfigError, match="SaveBest: mode"):
        laconic.SaveBest(mode="best")
