"""A real federation on one machine: a SuperLink and SuperNodes as processes, with TLS and authentication."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w
from flwr.cli.build import build_fab_from_disk

from laconic.core.errors import LaconicError, missing_extra
from laconic.flower.local_keys import LocalKeys, make_local_keys

CONNECTION = "local"
"""The SuperLink's name in Flower's config."""
START_SECONDS = 180.0
STOP_SECONDS = 3.0


class LocalFederationError(LaconicError):
    """A Flower process or command failed."""


class LocalFederation:
    """A SuperLink and SuperNodes that run during a `with` block. At its end all processes stop; the folder remains."""

    def __init__(self, folder: Path, nodes: int, *, registered: int | None = None) -> None:
        self.folder, self.nodes = folder.resolve(), nodes
        self.keys: LocalKeys = make_local_keys(self.folder / "keys", nodes)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: set[int] = set()
        """The process groups of all processes that were ever started."""
        self._registered = nodes if registered is None else registered
        self.port, self.fleet_port = free_port(), free_port()
        """The SuperLink's ports: for the operator, and for nodes."""
        self.proxy_ports: dict[int, int] = {}
        """By node: the port of a proxy to connect to instead of `fleet_port`."""
        self.apps = self.folder / "apps"
        """The file with the hashes of the apps that the nodes run."""
        self._node_ports = [free_port() for _ in range(nodes)]
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "flwr"),
            # No network access beyond this machine.
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            # Plain JSON from `flwr`. Notebooks set FORCE_COLOR.
            "FORCE_COLOR": "",
        }
        # Flower starts its own commands by name.
        commands = str(Path(sys.executable).parent)
        self.environment["PATH"] = os.pathsep.join([commands, self.environment.get("PATH", "")])

    def __enter__(self) -> Self:
        try:
            self._configure()
            self._start_prefork()
            self.start_superlink()
            # A node that connects before it is registered gives up.
            self._register()
            for number in range(self.nodes):
                self.start_node(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """Start the SuperLink. After a crash it continues from its database."""
        command = [*_module("superlink"), "--fleet-address", f"127.0.0.1:{self.fleet_port}", "--port", str(self.port)]
        command += ["--ssl-ca-certfile", str(self.keys.authority), "--ssl-certfile", str(self.keys.certificate)]
        command += ["--ssl-keyfile", str(self.keys.key), "--database", str(self.folder / "superlink.sqlite")]
        self._start("superlink", command)
        self._wait_for_port()

    def start_node(self, number: int) -> None:
        """Start a SuperNode. After a crash it continues from its file."""
        config = f'partition-id={number} state="{self.folder / "nodes"}"'
        port = self.proxy_ports.get(number, self.fleet_port)
        command = [*_module("supernode"), "--apps", str(self.apps), "--superlink", f"127.0.0.1:{port}"]
        command += ["--node-config", config]
        command += ["--root-certificates", str(self.keys.authority)]
        command += ["--auth-supernode-private-key", str(self.keys.node(number))]
        command += ["--port", str(self._node_ports[number])]
        # Poll for tasks every 0.2 s instead of every second. The SuperLink does not notice: a node polls itself.
        self._start(f"node-{number}", command, {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"})

    def run(self, app: Path, settings: Mapping[str, Any] | None = None) -> int:
        """Approve a Flower app on all nodes and start it with a run config; returns Flower's id of the run."""
        with self.apps.open("a") as apps:
            apps.write(f"{sha256(build_fab_from_disk(app)).hexdigest()}  {app}\n")
        run_config = " ".join(f"{key}={json.dumps(value)}" for key, value in (settings or {}).items())
        overrides = ["--run-config", run_config] if run_config else []
        output = self.flwr("run", str(app), CONNECTION, *overrides, "--format", "json")
        answer = json.loads(output[output.index("{") :])
        if not answer.get("success"):
            raise LocalFederationError(f"flwr run: {answer.get('error-message', answer)}")
        return int(answer["run-id"])

    def status(self, run: int) -> str:
        """Flower's status of a run, such as `running`, `finished:completed` or `finished:failed`."""
        output = self.flwr("ls", CONNECTION, "--run-id", str(run), "--format", "json")
        return str(json.loads(output[output.index("{") :])["runs"][0]["status"])

    def dead(self) -> dict[str, int]:
        """Processes that ended by themselves, and their exit codes."""
        codes = {name: process.poll() for name, process in self.processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def log_of(self, name: str) -> str:
        """The log of a process."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str) -> str:
        """Run Flower's command line; returns its output."""
        command = [_command("flwr"), *arguments]
        done = subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise LocalFederationError(f"flwr {' '.join(arguments[:2])}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def kill(self, name: str) -> None:
        """Kill a process and all its descendants, like a power failure."""
        process = self.processes.pop(name)
        for group in _groups(process.pid):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop all processes of the federation."""
        # Collect the descendants first: they cannot be found once their parent has ended.
        groups = self._started | {group for process in self.processes.values() for group in _groups(process.pid)}
        for process in self.processes.values():
            process.terminate()
        ends = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, ends - time.monotonic()))
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        self.processes.clear()
        # A process that was starting when a signal arrived is not in `processes`.
        for straggler in self._marked():
            with suppress(ProcessLookupError):
                os.kill(straggler, signal.SIGKILL)

    def _marked(self) -> set[int]:
        """The processes whose environment names this federation's folder."""
        mark = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        processes = set()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    processes.add(int(entry.parent.name))
        return processes - {os.getpid()}

    def _configure(self) -> None:
        folder = Path(self.environment["FLWR_HOME"])
        folder.mkdir(parents=True, exist_ok=True)
        self.apps.touch()
        link = {"address": f"127.0.0.1:{self.port}", "root-certificates": str(self.keys.authority)}
        table = {"superlink": {"default": CONNECTION, CONNECTION: link}}
        (folder / "config.toml").write_text(tomli_w.dumps(table))

    def _register(self) -> None:
        for number in range(self._registered):
            self.flwr("supernode", "register", str(self.keys.public(number)), CONNECTION)

    def _start(self, name: str, command: Sequence[str], changes: Mapping[str, str] | None = None) -> None:
        environment = {**self.environment, **(changes or {})}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdout=log, stderr=log, process_group=0
            )
        self._started.add(self.processes[name].pid)

    def _start_prefork(self) -> None:
        """Start the process that imports torch once for all others."""
        folder = self.folder / "prefork"
        self._start("prefork", [sys.executable, "-m", "laconic.flower.prefork", "--folder", str(folder)])
        self.environment["PATH"] = f"{folder}{os.pathsep}{self.environment['PATH']}"

    def _wait_for_port(self) -> None:
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends and self.processes["superlink"].poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.fleet_port), timeout=1):
                return
            time.sleep(0.1)
        raise LocalFederationError(f"the SuperLink did not start; its log is {self.folder / 'superlink.log'}")


def _groups(process: int) -> set[int]:
    """The process groups of a process and its descendants."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The fields after the process name, which may contain any character: state, parent, group.
            fields = entry.read_text().rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1]), int(fields[2])
    family, new = {process}, {process}
    while new:
        new = {child for child, (parent, _) in parents.items() if parent in new} - family
        family |= new
    return {process} | {parents[member][1] for member in family if member in parents}


def free_port() -> int:
    """A TCP port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", f"laconic.flower.{name}"]


def _command(name: str) -> str:
    sibling = Path(sys.executable).parent / name
    command = str(sibling) if sibling.exists() else shutil.which(name)
    if command is None:
        raise missing_extra(f"{name} is not installed", "flower")
    return command
