"""Runs that are killed at each of the moments at which something becomes durable: `crash.py FOLDER ROUNDS`.

A child that is forked for each run kills itself just before its nth fsync or rename; another child then resumes. Prints
one JSON line per moment: [n, exit code of the first, files it left, exit code of the second, model's hash, rounds, files].
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laconic.cli.view import LiveView
from laconic.run import directory
from laconic.run.config import load_config
from laconic.run.driver import drive

OPTIONS = {"model": "logistic", "strategy": "loop", "participants": 2, "local_steps": 1, "threads": 1}


class Quiet(LiveView):
    def __init__(self) -> None:
        from rich.console import Console

        super().__init__(Console(quiet=True))


def dying(function: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def count(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return count


def run(out: Path, rounds: int, moment: int) -> int:
    """The exit code of a child that runs or resumes in `out`, and dies at that moment if it is not 0."""
    process = os.fork()
    if process == 0:
        left = [moment]
        os.fsync = dying(os.fsync, left)
        Path.replace = dying(Path.replace, left)
        algorithm = {"algorithm": "fed_adam"}
        drive(load_config(None, OPTIONS | algorithm | {"rounds": rounds}), out, Quiet(), resume=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    directory.CHECKPOINT_SECONDS = 0.0
    directory.CHECKPOINT_SHARE = 0
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    moment, first = 0, -signal.SIGKILL
    while first == -signal.SIGKILL:
        moment += 1
        out = folder / str(moment)
        first = run(out, rounds, moment)
        left = sorted(path.name for path in out.iterdir()) if out.exists() else []
        second = run(out, rounds, 0)
        sha = directory.load_tensors(out / "model.safetensors")[1]["sha256"]
        done = [record["round"] for record in directory.read_metrics(out / "metrics.jsonl")]
        files = sorted(path.name for path in out.iterdir())
        print(json.dumps([moment, first, left, second, sha, done, files]), flush=True)


if __name__ == "__main__":
    main()
