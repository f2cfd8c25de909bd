"""The command line in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

import pytest

# A small run: logistic regression on the shipped digits, a loop over rows (vmap takes a second to load).
SMALL = ("--model", "logistic", "--strategy", "loop", "--participants", "3", "--local-steps", "2", "--threads", "1")


def steps_for(algorithm: str) -> tuple[str, ...]:
    """The options of a small run. Methods of one step per round have no local steps."""
    place = SMALL.index("--local-steps")
    return SMALL[:place] + SMALL[place + 2 :] if algorithm.startswith("ef21") else SMALL


@dataclass(frozen=True)
class Outcome:
    """What a command has left on its way out."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> dict:
        """The object on the last line of stdout."""
        return json.loads(self.stdout.rstrip("\n").splitlines()[-1])


Laconic = Callable[..., Outcome]


def clean_environment(home: Path) -> dict[str, str]:
    """No terminal, no data sets of this machine, no network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LACONIC", "COLUMNS"))}
    return kept | {"LACONIC_OFFLINE": "1", "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture
def laconic(tmp_path: Path) -> Laconic:
    """`python -m laconic …` in the test's own folder."""

    def run(*arguments: object) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "laconic", *map(str, arguments)],
            cwd=tmp_path,
            env=clean_environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen]:
    script = Path(__file__).with_name("zygote.py")
    environment = clean_environment(tmp_path_factory.mktemp("home"))
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def forked(zygote: subprocess.Popen, tmp_path: Path) -> Laconic:
    """A command in a process forked from one that has Laconic loaded already."""

    def run(*arguments: object, **environment: str) -> Outcome:
        job = {"arguments": [*map(str, arguments)], "folder": str(tmp_path), "environment": environment}
        zygote.stdin.write(json.dumps(job) + "\n")
        zygote.stdin.flush()
        return Outcome(**json.loads(zygote.stdout.readline()))

    return run


@pytest.fixture
def program(zygote: subprocess.Popen, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Runs parts of one Python program in the test's own folder; returns the traceback of each part, or nothing."""
    with ExitStack() as opened:
        files: list[TextIO] = []

        def run(part: str) -> str:
            if not files:
                pipes = [Path(opened.enter_context(TemporaryDirectory())) / name for name in ("parts", "answers")]
                for pipe in pipes:
                    os.mkfifo(pipe)
                job = {"folder": str(tmp_path), "parts": str(pipes[0]), "answers": str(pipes[1])}
                zygote.stdin.write(json.dumps(job) + "\n")
                zygote.stdin.flush()
                zygote.stdout.readline()
                files.extend(opened.enter_context(pipe.open(mode)) for pipe, mode in zip(pipes, "wr", strict=True))
            parts, answers = files
            parts.write(json.dumps(part) + "\n")
            parts.flush()
            return json.loads(answers.readline())

        yield run


@pytest.fixture
def small() -> tuple[str, ...]:
    """Options of a run that takes milliseconds a round."""
    return SMALL
