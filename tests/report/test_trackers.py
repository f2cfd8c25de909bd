"""What TensorBoard, MLflow and Weights & Biases read back of a run; callbacks as options."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import laconic
from laconic.core.errors import Interrupted
from laconic.report.trackers import MLflow, chosen_callbacks
from laconic.run.callbacks import EachRound
from laconic.run.config import load_config
from laconic.run.driver import run_config
from laconic.run.training import Diverged

SMALL = {"model": "logistic", "strategy": "loop", "participants": 3, "local_steps": 2, "threads": 1, "eval_every": 2}


def run(
    directory: Path,
    rounds: int,
    resume: bool = False,
    tensorboard: bool = False,
    mlflow: bool = False,
    **changes: object,
) -> list[dict]:
    callbacks = chosen_callbacks(tensorboard=tensorboard, mlflow=mlflow)
    config = load_config(None, {"rounds": rounds} if resume else SMALL | {"rounds": rounds} | changes)
    run_config(config, directory, callbacks, resume=resume, label="a run")
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_reads_every_number_at_its_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path / "run", 3, tensorboard=True)
    records = run(tmp_path / "run", 5, resume=True, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    for name in ("accuracy", "loss", "bytes_up", "gradients", "training_loss"):
        expected = [(r["round"], r[name]) for r in records if r.get(name) is not None]
        found = {event.step: event.value for event in events.Scalars(name)}
        assert expected and [*found] == [step for step, _ in expected]
        assert [*found.values()] == pytest.approx([value for _, value in expected], rel=1e-6)
    assert "config/text_summary" in events.Tags()["tensors"]


# Making MLflow's tables takes seconds.
@pytest.mark.long
def test_mlflow_reads_every_number_at_its_round(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra `mlflow` is not installed")
    run(tmp_path / "run", 3, mlflow=True)
    records = run(tmp_path / "run", 4, resume=True, mlflow=True)
    client = tracking.MlflowClient(tracking_uri=MLflow.store(tmp_path / "run"))
    (found,) = client.search_runs([client.get_experiment_by_name("laconic").experiment_id])
    assert found.info.run_name == "a run" and found.info.status == "FINISHED"
    assert found.data.params["method.local_steps"] == "2" and found.data.params["algorithm"] == "fed_avg"
    for name in ("accuracy", "bytes_up"):
        history = {metric.step: metric.value for metric in client.get_metric_history(found.info.run_id, name)}
        assert history == {r["round"]: r[name] for r in records if name in r}


@pytest.mark.long
def test_mlflow_is_told_how_a_run_ended_in_the_store_that_the_environment_names(tmp_path: Path, monkeypatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra `mlflow` is not installed")
    store = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    client = tracking.MlflowClient(tracking_uri=store)

    def status(name: str) -> str:
        return client.get_run((tmp_path / name / "mlflow_run").read_text().strip()).info.status

    def interrupt(record: dict) -> None:
        if record["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    callbacks = [EachRound(interrupt), MLflow()]
    with pytest.raises(Interrupted):
        run_config(load_config(None, SMALL | {"rounds": 9}), tmp_path / "stopped", callbacks)
    assert status("stopped") == "KILLED"
    run(tmp_path / "stopped", 3, resume=True, mlflow=True)
    assert status("stopped") == "FINISHED"
    with pytest.raises(Diverged):
        run(tmp_path / "diverged", 9, mlflow=True, local_lr=1e38, server_lr=1e30)
    assert status("diverged") == "FAILED"
    assert not (tmp_path / "mlflow.db").exists()
    # What the store does not have is entered again, not refused.
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    run(tmp_path / "stopped", 4, resume=True, mlflow=True)
    assert (tmp_path / "mlflow.db").exists()


def test_a_tracker_needs_a_directory() -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    with pytest.raises(laconic.ConfigError, match="TensorBoard: pass a directory to it or to the run"):
        laconic.simulate("fed_avg", "logistic", "digits", rounds=1, callbacks=[laconic.TensorBoard()])


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: 7 bytes of header, then blocks of 32 KiB with pieces, as in a log of LevelDB."""
    position, record = 7, b""
    while position < len(content):
        if (left := 2**15 - position % 2**15) < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield record
            record = b""


@pytest.mark.long
def test_weights_and_biases_has_every_number_at_its_round_offline(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    config = load_config(None, SMALL | {"rounds": 3})
    callback = laconic.WandB("trials", mode="offline", settings={"silent": True})
    run_config(config, tmp_path / "run", [callback], label="a run")
    wandb.teardown()  # its process writes the file asynchronously
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (file,) = (tmp_path / "run/wandb").glob("offline-run-*/*.wandb")
    logged: dict[int, dict] = {}
    for data in wandb_records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            assert (record.run.project, record.run.display_name) == ("trials", "a run")
            assert record.run.run_id == (tmp_path / "run/wandb_run").read_text().strip()
            settings = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            assert settings["method.local_steps"] == 2
        if kind == "history":
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            logged[row["_step"]] = row
        if kind == "exit":
            assert record.exit.exit_code == 0
    for name in ("accuracy", "bytes_up"):
        found = {step: row[name] for step, row in logged.items() if name in row}
        assert found == {record["round"]: record[name] for record in records if name in record}


def test_a_missing_tool_says_what_to_install(monkeypatch) -> None:
    for module, make in (("wandb", laconic.WandB), ("mlflow", laconic.MLflow)):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(laconic.ConfigError, match=rf"is not installed: .*\[{module}\]"):
            make()


def test_callbacks_are_spelled_as_options() -> None:
    stopping, best = chosen_callbacks(early_stopping="loss:patience=3,minimum_change=0.1", save_best="f1:mode=max")
    assert (stopping.metric, stopping.patience, stopping.minimum_change, stopping.mode) == ("loss", 3, 0.1, "min")
    assert (best.metric, best.mode) == ("f1", "max")
    assert chosen_callbacks() == []
    for wrong, said in (
        ("loss:3", "arguments need names; write METRIC:patience=…, minimum_change=…, mode=…"),
        ("loss:patience=few", "patience|int"),
        ("loss:patience=0", "1 or more"),
        ("loss:change=1", "'change' is not an argument"),
        ("loss:mode=best", "'max' or 'min'"),
    ):
        with pytest.raises(laconic.ConfigError, match=said):
            chosen_callbacks(early_stopping=wrong)
