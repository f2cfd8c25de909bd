"""Damaged files of a run are noticed, and a run can return to an earlier checkpoint."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

import laconic
from laconic.core.errors import ConfigError, DataError, LaconicError
from laconic.federation.database import Database
from laconic.federation.disk_store import DiskStore
from laconic.run import directory, files
from laconic.run.callbacks import Callback
from laconic.run.config import load_config
from laconic.run.directory import RunDirectory, read_metrics
from laconic.run.driver import run_config, started_with
from laconic.run.files import load_tensors, save_tensors, write_atomically

ROUNDS = 6
# Clients, mirrors on the server and the optimizer have state.
OPTIONS = {"algorithm": "fed_cams", "compressor": "sign", "downlink": "mirrored", "clients": 3, "participants": 2}
OPTIONS |= {
    "model": "logistic",
    "strategy": "loop",
    "local_steps": 1,
    "threads": 1,
    "store_cache": 8000,
    "eval_every": 9,
}


@pytest.fixture(autouse=True)
def a_checkpoint_after_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(directory, "CHECKPOINT_RATIO", 0)


def run(out: Path, rounds: int, store: str, **how: int | bool) -> str:
    options = OPTIONS | {"rounds": rounds, "store": store}
    return run_config(load_config(None, options), out, **how).result.model_sha256


def resume(out: Path, from_round: int | None = None) -> str:
    wanted = load_config(None, {"rounds": ROUNDS})
    return run_config(wanted, out, resume=True, from_round=from_round).result.model_sha256


@pytest.fixture(scope="module", params=["memory", "disk"])
def store(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def begun(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four of six rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(directory, "CHECKPOINT_RATIO", 0)
        out = tmp_path_factory.mktemp("runs") / "run"
        run(out, 4, store)
        return out


@pytest.fixture(scope="module")
def expected(store: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tmp_path_factory.mktemp("runs") / "whole", ROUNDS, store)


@pytest.fixture
def copy(begun: Path, tmp_path: Path) -> Path:
    return shutil.copytree(begun, tmp_path / "run")


def records(out: Path) -> list[dict]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    # The fourth round was once the last, so it was evaluated.
    return [{k: v for k, v in line.items() if k not in ("seconds", "accuracy", "loss")} for line in lines]


def damages(content: bytes, count: int, generator: random.Random) -> Iterator[bytes]:
    """The content with a flipped bit, or cut off. SQLite's pages are mostly empty, so most flips are where they are not."""
    used = [place for place, byte in enumerate(content) if byte]
    for place in [*generator.choices(used, k=2 * count), *generator.choices(range(len(content)), k=count)]:
        yield flipped(content, place, generator.randrange(8))
    for cut in {0, *generator.choices(range(len(content)), k=count), max(0, len(content) - 3000), len(content) - 1}:
        yield content[:cut]


def flipped(content: bytes, place: int, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit
    return bytes(damaged)


def damage_everywhere(begun: Path, folder: Path, expected: str, count: int) -> dict[str, int]:
    """How many damages of each file were refused. No damage leads to another model."""
    refused: dict[str, int] = {}
    generator = random.Random(1)
    for file in sorted(path.relative_to(begun) for path in begun.rglob("*") if path.is_file()):
        refused[str(file)] = 0
        for content in damages((begun / file).read_bytes(), count, generator):
            out = shutil.copytree(begun, folder / "damaged")
            (out / file).write_bytes(content)
            try:
                assert resume(out) == expected, file
            except LaconicError as error:
                assert error.exit_code == 2 and "\n" not in str(error), error
                refused[str(file)] += 1
            shutil.rmtree(out)
    return refused


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.long)])
def test_no_damage_leads_to_another_model(begun: Path, expected: str, store: str, tmp_path: Path, count: int) -> None:
    refused = damage_everywhere(begun, tmp_path, expected, count)
    assert refused["checkpoint.safetensors" if store == "memory" else "checkpoint.sqlite"] > count
    # A run that continues does not read these.
    unread = ["label_counts.json", "model.safetensors", *(name for name in refused if name.startswith("previous/"))]
    assert not any(refused[name] for name in unread)


def content_of(path: Path) -> dict[str, object]:
    """All that a run can read from its checkpoint."""
    if path.suffix == ".safetensors":
        tensors, plain = load_tensors(path)
        return plain | {name: tensor.tolist() for name, tensor in tensors.items()}
    database = Database(0)
    database.open(path)
    try:
        tensors, plain = database.load()
        states = {client: database.get(("peer", client, 0)) for client in database.clients("peer")}
        states = {name: tensor.tolist() for state in (tensors, *states.values()) for name, tensor in state.items()}
        clients = DiskStore(database).state_dict()
        return plain | states | {name: getattr(value, "tolist", lambda v=value: v)() for name, value in clients.items()}
    finally:
        database.close()


@pytest.mark.long
def test_no_damage_of_any_byte_of_a_checkpoint_is_overlooked(begun: Path, store: str, tmp_path: Path) -> None:
    source = begun / ("checkpoint.safetensors" if store == "memory" else "checkpoint.sqlite")
    content, path = source.read_bytes(), tmp_path / source.name
    path.write_bytes(content)
    expected = content_of(path)
    for place in [place for place, byte in enumerate(content) if byte]:
        path.write_bytes(flipped(content, place, place % 8))
        try:
            assert content_of(path) == expected, place
        except DataError as error:
            assert "\n" not in str(error) and path.name in str(error)


def test_a_run_returns_to_each_kept_checkpoint_and_ends_with_the_same_model(
    begun: Path, copy: Path, expected: str, store: str, tmp_path: Path
) -> None:
    rounds = [4, 3, 2] if store == "memory" else [4, 3]
    for chosen in rounds:
        shutil.rmtree(copy)
        shutil.copytree(begun, copy)
        assert resume(copy, chosen) == expected
        run(tmp_path / f"whole-{chosen}", ROUNDS, store)
        assert records(copy) == records(tmp_path / f"whole-{chosen}")
    with pytest.raises(ConfigError, match=r"from_round = 1: no such checkpoint; there are those of rounds: 6 and 5"):
        resume(copy, 1)
    with pytest.raises(ConfigError, match="from_round = 3: there is no run in"):
        resume(tmp_path / "none", 3)


class Kill(Callback):
    def on_round_end(self, run, record) -> None:
        raise KeyboardInterrupt


def test_a_return_that_is_broken_off_stays_where_it_was(copy: Path, expected: str) -> None:
    with pytest.raises(BaseException):  # noqa: B017 - in the middle of a round
        run_config(load_config(None, {"rounds": ROUNDS}), copy, [Kill()], resume=True, from_round=3)
    assert not (copy / "model.safetensors").exists()
    assert resume(copy) == expected
    assert [record["round"] for record in records(copy)] == [*range(1, ROUNDS + 1)]


def test_after_a_damaged_checkpoint_the_one_before_is_offered(copy: Path, expected: str, store: str) -> None:
    path = copy / ("checkpoint.safetensors" if store == "memory" else "checkpoint.sqlite")
    content = path.read_bytes()
    # One bit in the exponent of a number of the last model.
    if store == "memory":
        model = load_tensors(path)[0]["server/model"]
    else:
        database = Database(0)
        database.open(path)
        model = database.load()[0]["server/model"]
        database.close()
    path.write_bytes(flipped(content, content.index(model.numpy().tobytes()) + 403, 6))
    with pytest.raises(DataError, match=rf"{path.name}' is damaged: .*: --resume --from-round 3$"):
        resume(copy)
    assert resume(copy, 3) == expected


def test_a_checkpoint_that_cannot_be_read_at_all(copy: Path, store: str) -> None:
    path = copy / ("checkpoint.safetensors" if store == "memory" else "checkpoint.sqlite")
    if store == "memory":
        path.unlink()
        with pytest.raises(DataError, match=r"checkpoint.safetensors' is missing; .* --resume --from-round 3$"):
            resume(copy)
    else:
        for exists in (False, True):
            path.unlink(missing_ok=True)
            if exists:
                path.touch()
            with pytest.raises(DataError, match=r"checkpoint.sqlite' is missing or empty"):
                resume(copy)
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(
        DataError, match=rf"{path.name}'.*{'--from-round 3$' if store == 'memory' else 'not a database$'}"
    ):
        resume(copy)


def test_a_finished_run_without_its_checkpoint_does_not_begin_again(copy: Path, store: str) -> None:
    (copy / ("checkpoint.safetensors" if store == "memory" else "checkpoint.sqlite")).unlink()
    shutil.rmtree(copy / "previous", ignore_errors=True)
    with pytest.raises(DataError, match=r"checkpoint\..*' is missing or empty; to begin again, use another directory"):
        resume(copy)


def test_a_run_that_another_process_writes_to_is_refused(copy: Path, expected: str) -> None:
    lock = os.open(copy, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another process is writing to this run"):
        resume(copy)
    os.close(lock)
    assert resume(copy) == expected


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_other_files_in_place_of_a_checkpoint(copy: Path) -> None:
    path = copy / "checkpoint.safetensors"
    shutil.copy(copy / "model.safetensors", path)
    for from_round in (None, 4):
        with pytest.raises(
            LaconicError, match=r"checkpoint.safetensors' is not a checkpoint; .* 3$|no such checkpoint"
        ):
            resume(copy, from_round)
    assert resume(copy, 3)
    for make in (os.mkdir, os.mkfifo):
        path.unlink() if path.is_file() else path.rmdir()
        make(path)
        with pytest.raises(DataError, match=r"checkpoint.safetensors' is not a regular file"):
            resume(copy)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_metrics_in_a_pipe_are_refused(copy: Path) -> None:
    (copy / "metrics.jsonl").unlink()
    os.mkfifo(copy / "metrics.jsonl")
    with pytest.raises(DataError, match=r"metrics.jsonl' is not a regular file"):
        resume(copy)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_a_checkpoint_that_the_disk_does_not_give_back_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("Input/output error (os error 5)")

    monkeypatch.setattr(files, "safe_open", fail)
    with pytest.raises(DataError, match=r"checkpoint.safetensors': Input/output error"):
        resume(copy)


def test_two_earlier_checkpoints_are_kept_and_only_the_owner_reads_them(begun: Path, store: str) -> None:
    kept = ["round-2.safetensors", "round-3.safetensors"] if store == "memory" else []
    assert sorted(path.name for path in begun.glob("previous/*")) == kept
    for path in [*begun.glob("checkpoint.*"), *begun.glob("previous/*")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((begun / "model.safetensors").stat().st_mode) != 0o600


@pytest.mark.parametrize(
    "line", [b"7", b"[1, 2]", b"null", b'{"round": "two"}', b'\xff\xfe{"round": 2}', b"[" * 100_000]
)
def test_a_line_that_is_no_record_is_refused_by_its_number(copy: Path, line: bytes) -> None:
    path = copy / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, *lines[2:]]) + b"\n")
    for read in (resume, lambda out: read_metrics(out / "metrics.jsonl")):
        with pytest.raises(DataError, match=r"metrics\.jsonl' is damaged: line 2 is not the record of a round"):
            read(copy)


def test_a_config_that_was_changed_is_refused(copy: Path) -> None:
    path = copy / "config.toml"
    path.write_text(path.read_text().replace("server_lr = ", "server_lr = 0.5 #"))
    with pytest.raises(DataError, match=r"config\.toml' was changed or is damaged"):
        resume(copy)


@pytest.mark.parametrize("text", ["rounds = 1\nrounds = 2\n", "nothing = 1\n", 'rounds = "many"\n'])
def test_a_config_of_others_that_is_no_config_is_one_line(copy: Path, text: str) -> None:
    """Its checksum is right: whoever writes a run directory computes it."""
    RunDirectory(copy)._write_config(text)
    with pytest.raises(ConfigError):
        RunDirectory(copy).stored_config()
    assert not started_with(load_config(None, {"rounds": 3}), copy)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_an_error_of_the_disk_names_the_file_and_leaves_nothing(
    copy: Path, number: int, monkeypatch: pytest.MonkeyPatch, expected: str
) -> None:
    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    before = sorted(copy.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DataError, match=rf"metrics\.jsonl': {os.strerror(number)}"):
            resume(copy)
        with pytest.raises(DataError, match=rf"'.*new': {os.strerror(number)}"):
            write_atomically(copy / "new", b"content")
    assert sorted(copy.rglob("*")) == before
    assert resume(copy) == expected


def test_a_run_of_one_round_is_saved_once(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = []
    save = RunDirectory.save_checkpoint
    monkeypatch.setattr(RunDirectory, "save_checkpoint", lambda *given: (saves.append(1), save(*given)))
    run(tmp_path / "run", 1, store)
    assert len(saves) == 1


def test_every_byte_of_a_tensor_file_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
    tensors = {f"a/{number}": torch.arange(6).reshape(2, 3).to(kind) for number, kind in enumerate(kinds)}
    tensors |= {"empty": torch.zeros(0), "one": torch.tensor(3)}
    save_tensors(path, tensors, {"round": 3, "list": [1.5, None, "text"]})
    content, expected = path.read_bytes(), content_of(path)
    silent = 0
    for place in range(len(content)):
        path.write_bytes(flipped(content, place, place % 8))
        try:
            assert content_of(path) == expected
            silent += 1
        except DataError as error:
            assert "file.safetensors'" in str(error) and "\n" not in str(error)
    # Some bytes mean nothing, such as the spaces after the header.
    assert silent < 16


def test_a_model_is_verified_when_it_is_read(begun: Path, copy: Path) -> None:
    model = laconic.load_model(begun)
    assert model.keys() == laconic.load_model(begun / "model.safetensors").keys()
    torch.nn.Linear(64, 10).load_state_dict({name.rpartition(".")[2]: tensor for name, tensor in model.items()})
    path = copy / "model.safetensors"
    content = path.read_bytes()
    # The last bytes are weights: safetensors itself notices nothing.
    path.write_bytes(flipped(content, len(content) - 1, 0))
    safetensors.torch.load_file(path)
    with pytest.raises(DataError, match=r"model.safetensors' is damaged"):
        laconic.load_model(copy)
    path.unlink()
    with pytest.raises(DataError, match=r"model.safetensors' is missing"):
        laconic.load_model(copy)
    save_tensors(path, {"server/model": torch.zeros(3)}, {})
    with pytest.raises(DataError, match="not a model"):
        laconic.load_model(path)
