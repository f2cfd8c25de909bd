"""Start Flower's processes warm: `python -m laconic.flower.prefork flower-supernode …`.

Flower starts a process for every message to a node, and each of them would import torch first: seconds, where the work of a
small model is milliseconds. Here one process imports everything once, and forks whenever Flower starts `flwr-clientapp` or
`flwr-serverapp`. Flower finds those commands by their names on PATH, where this puts two small scripts of the same names;
they hand their arguments over, and run the real command where nobody takes them. Nothing else about Flower changes.

`--import MODULE` (before the command) imports more: what your own app imports, or `torch._dynamo`, which torch loads at the
first gradient of a model of linear layers. `--folder FOLDER` says where the scripts are put; a command is not needed then,
and several SuperNodes may have the same folder first on their PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

COMMANDS = ("flwr-clientapp", "flwr-serverapp")
IMPORTED = ("laconic.flower", "laconic.compression.kernels")
SOCKET = "socket"
_SCRIPT = """#!{python} -IS
import json, os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect({socket!r})
        connection.sendall(json.dumps([os.getpgrp(), *sys.argv]).encode())
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1):
            sys.exit(0)
except OSError:
    pass
os.execv({command!r}, [{command!r}, *sys.argv[1:]])
"""
_LOOK_EVERY = 0.2


def main(arguments: Sequence[str]) -> int:
    """Run a Flower command with warm children; returns what it returns."""
    parser = argparse.ArgumentParser(
        prog="python -m laconic.flower.prefork", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    said = parser.parse_args(arguments)
    if not said.command and said.folder is None:
        parser.error("a command is needed, or --folder")
    with contextlib.ExitStack() as stack:
        folder = said.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laconic-warm-")))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        (folder / SOCKET).unlink(missing_ok=True)
        listener.bind(str(folder / SOCKET))
        listener.listen()
        for name in COMMANDS:
            _write_script(folder / name, str(folder / SOCKET))
        process = _start(said.command, folder) if said.command else None
        try:
            _serve(listener, process, [*IMPORTED, *said.modules])
        finally:
            if process is not None:
                process.wait()
        return 0 if process is None else process.returncode


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    process = subprocess.Popen(command, env=environment)

    def stop(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return process


def _write_script(path: Path, address: str) -> None:
    command = shutil.which(path.name)
    if command is None:
        raise SystemExit(f"{path.name} is not on PATH: is Flower installed, and its environment active?")
    path.write_text(_SCRIPT.format(python=sys.executable, socket=address, command=command))
    path.chmod(0o700)


def _serve(listener: socket.socket, process: subprocess.Popen[bytes] | None, modules: Sequence[str]) -> None:
    """Fork for every command that comes, until Flower's own process is over."""
    begin = {name: _entry(name) for name in COMMANDS}
    for module in modules:
        import_module(module)
    listener.settimeout(_LOOK_EVERY)
    children: set[int] = set()
    while process is None or process.poll() is None:
        children = {child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)}
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            asked = _read(connection)
            if asked is None:
                continue
            child = os.fork()
            if child == 0:
                group, arguments = asked
                # Who ends the processes of a node by their group ends this one too.
                with contextlib.suppress(OSError):
                    os.setpgid(0, group)
                _become(begin[Path(arguments[0]).name], arguments, (listener, connection))
            children.add(child)
            with contextlib.suppress(OSError):
                connection.sendall(b"1")


def _entry(name: str) -> Callable[[], object]:
    (found,) = entry_points(group="console_scripts", name=name)
    function: Callable[[], object] = found.load()
    return function


def _read(connection: socket.socket) -> tuple[int, list[str]] | None:
    connection.settimeout(5)
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
        group, *arguments = json.loads(received)
    except (OSError, ValueError):
        return None
    return (group, arguments) if Path(str(arguments[0])).name in COMMANDS else None


def _become(command: Callable[[], object], arguments: list[str], inherited: Sequence[socket.socket]) -> None:
    """In the child: be that command, as if it had been started."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in inherited:
            each.close()
        sys.argv = arguments
        command()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
