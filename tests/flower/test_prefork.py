"""The process that starts Flower with torch already imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

STARTER = """
import sys, time
from pathlib import Path
from laconic.flower import prefork
prefork.sys.executable = sys.argv[1]
print(prefork._start(["supernode"], Path(sys.argv[2])).pid, flush=True)
time.sleep(60)
"""


def is_running(process: int) -> bool:
    """Whether a process runs. One that has ended may be a zombie until somebody waits for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_node_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\nexec sleep 60\n")
    node.chmod(0o700)
    command = [sys.executable, "-c", STARTER, str(node), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        assert is_running(child)
        starter.send_signal(signal.SIGKILL)
    try:
        ends = time.monotonic() + 20
        while is_running(child):
            assert time.monotonic() < ends, "the node has no parent any more, and runs"
            time.sleep(0.02)
    finally:
        if is_running(child):
            os.kill(child, signal.SIGKILL)
