"""Runs that are killed at the moments at which something becomes durable: `crash.py FOLDER ROUNDS STORE STEP`.

A child that is forked for each run kills itself just before its nth fsync, rename or statement to a database, for every
STEPth n; another child then resumes. Prints one JSON line per moment: [n, exit code of the first, files it left, exit code
of the second, model's hash, rounds, files].
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
from laconic.federation.database import Database
from laconic.run import directory
from laconic.run.config import load_config
from laconic.run.driver import run_config
from laconic.run.files import load_tensors

OPTIONS = {"model": "logistic", "strategy": "loop", "participants": 2, "local_steps": 1, "threads": 1}
ALGORITHMS = {
    "memory": {"algorithm": "fed_adam"},
    # Both sides keep something of every client, and a cache of two vectors is soon full.
    "disk": {"algorithm": "fed_cams", "compressor": "sign", "downlink": "mirrored", "clients": 3, "store_cache": 8000},
}


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


def run(out: Path, rounds: int, store: str, moment: int) -> int:
    """The exit code of a child that runs or resumes in `out`, and dies at that moment if it is not 0."""
    process = os.fork()
    if process == 0:
        left = [moment]
        os.fsync = dying(os.fsync, left)
        Path.replace = dying(Path.replace, left)
        Database._run = dying(Database._run, left)
        options = OPTIONS | ALGORITHMS[store] | {"rounds": rounds, "store": store}
        run_config(load_config(None, options), out, [Quiet()], resume=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def dead(path: Path) -> bool:
    """Whether a file is an empty journal: with an exclusive lock, SQLite clears its header and keeps the file."""
    return path.name.endswith("-journal") and not any(path.read_bytes()[:8])


def main() -> None:
    directory.CHECKPOINT_SECONDS = 0.0
    directory.CHECKPOINT_RATIO = 0
    folder, rounds, store, step = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    moment, first = 0, -signal.SIGKILL
    while first == -signal.SIGKILL:
        moment += step
        out = folder / str(moment)
        first = run(out, rounds, store, moment)
        left = sorted(path.name for path in out.iterdir()) if out.exists() else []
        second = run(out, rounds, store, 0)
        sha = load_tensors(out / "model.safetensors")[1]["sha256"]
        done = [record["round"] for record in directory.read_metrics(out / "metrics.jsonl")]
        files = sorted(path.name for path in out.iterdir() if not dead(path))
        print(json.dumps([moment, first, left, second, sha, done, files]), flush=True)


if __name__ == "__main__":
    main()
