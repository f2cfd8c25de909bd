"""A process that has loaded Laconic once and forks for every command: real processes without two seconds of imports.

Reads a JSON line {"arguments", "folder", "environment"} and answers with {"code", "stdout", "stderr"}.

For a line {"folder", "parts", "answers"} it forks a process that runs Python: parts of one program come through the first
pipe, and the traceback of each, or nothing, goes back through the second.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import types
from pathlib import Path

import torch
import torch._dynamo  # (what torch loads with the first batched gradient: a second of every command)

from laconic.cli import listings, main, reports, reproductions, searches, training  # noqa: F401  (the commands)
from laconic.compression import decode, encode

COMPRESSORS = ("sign", "heavy_sign:1/8", "uniform:8", "top_k:1/8", "random_k:1/8+qsgd:4")
"""Their kernels, and Numba itself, take most of a second to load."""


def child(job: dict, stdout: int, stderr: int) -> int:
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.chdir(job["folder"])
    os.environ.update(job["environment"])
    sys.argv = ["laconic", *job["arguments"]]
    try:
        main()
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(job: dict) -> dict:
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = os.fork()
        if process == 0:
            code = child(job, stdout.fileno(), stderr.fileno())
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode())
    return {"code": code, "stdout": texts[0], "stderr": texts[1]}


def start_program(job: dict) -> dict:
    if os.fork():
        return {}
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.chdir(job["folder"])
    sys.path.insert(0, job["folder"])
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    with Path(job["parts"]).open() as parts, Path(job["answers"]).open("w", buffering=1) as answers:
        for part in parts:
            failure = ""
            try:
                exec(compile(json.loads(part), "<string>", "exec"), program.__dict__)
            except BaseException:
                failure = traceback.format_exc()
            answers.write(json.dumps(failure) + "\n")
    os._exit(0)


if __name__ == "__main__":
    # Few enough entries that torch starts no threads, which a fork would lose.
    for spelling in COMPRESSORS:
        decode(encode(torch.linspace(-1, 1, 650), spelling), 650)
    for line in sys.stdin:
        job = json.loads(line)
        sys.stdout.write(json.dumps(start_program(job) if "parts" in job else run(job)) + "\n")
        sys.stdout.flush()
