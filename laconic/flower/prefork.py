"""Start a SuperLink or SuperNode with torch already imported: `python -m laconic.flower.prefork supernode …`.

Flower starts a process for every message to a node, and each process imports torch. That takes seconds, while a small model
trains in milliseconds. Here one process imports everything once, and forks whenever Flower starts `flwr-clientapp` or
`flwr-serverapp`. Flower finds these commands on PATH, where this module puts two small scripts of the same names first. The
scripts send their arguments to the process, and run the real command if there is none. Nothing else about Flower changes.

`superlink` and `supernode` are `laconic.flower.superlink` and `laconic.flower.supernode`, with their options.
`--import MODULE` (before them) imports more, such as the modules of your own app, or `torch._dynamo`, which torch
loads at the first gradient of a model of linear layers. `--folder FOLDER` sets the folder of the scripts. With it the
command is optional, and several SuperNodes can have the same folder first on their PATH.
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

from laconic.core.processes import end_with

COMMANDS = ("flwr-clientapp", "flwr-serverapp")
PROGRAMS = ("superlink", "supernode")
IMPORTED = ("laconic.flower.client", "laconic.flower.server", "laconic.compression.kernels")
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
_POLL_SECONDS = 0.2


def main(arguments: Sequence[str]) -> int:
    """Run a SuperLink or SuperNode whose child processes are forked; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m laconic.flower.prefork", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--folder", type=Path, help="folder of the scripts that replace Flower's commands on PATH")
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="module to import once; repeatable",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="superlink or supernode, with its options")
    options = parser.parse_args(arguments)
    if not options.command and options.folder is None:
        parser.error("superlink or supernode is needed, or --folder")
    if options.command and options.command[0] not in PROGRAMS:
        parser.error(f"'{options.command[0]}': superlink or supernode is allowed")
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laconic-prefork-")))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        (folder / SOCKET).unlink(missing_ok=True)
        listener.bind(str(folder / SOCKET))
        listener.listen()
        for name in COMMANDS:
            _write_script(folder / name, str(folder / SOCKET))
        process = _start(options.command, folder) if options.command else None
        try:
            _serve(listener, process, [*IMPORTED, *options.modules])
        finally:
            if process is not None:
                process.wait()
        return 0 if process is None else process.returncode


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    program, *options = command
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    parent = os.getpid()
    process = subprocess.Popen(
        [sys.executable, "-m", f"laconic.flower.{program}", *options],
        env=environment,
        preexec_fn=lambda: end_with(parent),
    )

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
    """Fork for every command that a script sends, until Flower's own process ends."""
    functions, parent = {name: _entry_point(name) for name in COMMANDS}, os.getpid()
    for module in modules:
        import_module(module)
    listener.settimeout(_POLL_SECONDS)
    children: set[int] = set()
    while process is None or process.poll() is None:
        children = {child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)}
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            request = _read(connection)
            if request is None:
                continue
            child = os.fork()
            if child == 0:
                group, arguments = request
                # Join the script's process group, so that a signal to a node's group reaches this process, too.
                with contextlib.suppress(OSError):
                    os.setpgid(0, group)
                _run_in_child(functions[Path(arguments[0]).name], arguments, (listener, connection), parent)
            children.add(child)
            with contextlib.suppress(OSError):
                connection.sendall(b"1")


def _entry_point(name: str) -> Callable[[], object]:
    (script,) = entry_points(group="console_scripts", name=name)
    function: Callable[[], object] = script.load()
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


def _run_in_child(
    command: Callable[[], object], arguments: list[str], inherited: Sequence[socket.socket], parent: int
) -> None:
    """Run the command as if it had been started as a process, and exit."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_with(parent)
        for connection in inherited:
            connection.close()
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
