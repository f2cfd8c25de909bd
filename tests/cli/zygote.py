"""A process that has loaded Laconic once and forks for every command: real processes without two seconds of imports.

Reads a JSON line {"arguments", "folder", "environment"} and answers with {"code", "stdout", "stderr"}.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback

import torch._dynamo  # noqa: F401  (what torch loads with the first batched gradient: a second of every command)

from laconic.cli import listings, main, reports, reproductions, searches, training  # noqa: F401  (the commands)


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


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
