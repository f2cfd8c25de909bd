"""The app that `laconic new-app` writes, as it stands, in Flower's own simulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

import laconic
from laconic.run.directory import RunDirectory, read_metrics
from laconic.run.files import load_tensors

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("ray", reason="Flower's simulation needs Ray")

from laconic.cli.new_app import write_app
from laconic.flower.local_federation import free_port
from tests.documentation.pages import ROOT

PATIENCE = 600.0


def wait(what, log: Path) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, log.read_text()[-5000:]
        time.sleep(0.2)


def healthy(port: int) -> bool:
    try:
        # Without the proxies of the environment.
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


@contextmanager
def flower_simulation(folder: Path) -> Iterator[Callable[..., None]]:
    """A SuperLink with Flower's simulation. Yields a function that runs an app on three nodes until `done()`."""
    port, log, home = free_port(), folder / "superlink.log", folder / "flwr"
    home.mkdir()
    link = f'[superlink]\ndefault = "sim"\n\n[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(link)
    programs = Path(sys.executable).parent
    # A Ray cluster of another test in this process leaves variables behind, and Flower would join its cluster.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = inherited | {
        "RAY_ADDRESS": "local",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "XDG_STATE_HOME": str(folder / "state"),
        # As the app's README has it: nothing is fetched.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    command = [str(programs / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--database", str(folder / "superlink.sqlite")]
    with log.open("ab") as output:
        superlink = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)

    def run(app: Path, done: Callable[[], bool], *options: str) -> None:
        said = ["--federation-config", "num-supernodes=3", *options]
        subprocess.run([str(programs / "flwr"), "run", str(app), "sim", *said], env=environment, check=True)
        wait(done, log)

    try:
        wait(lambda: healthy(port), log)
        yield run
    finally:
        superlink.terminate()
        superlink.wait()


@pytest.mark.long
def test_the_template_runs_in_flowers_simulation(tmp_path: Path) -> None:
    write_app(tmp_path / "app", 3)
    run = RunDirectory(tmp_path / "run")
    with flower_simulation(tmp_path) as start:
        start(tmp_path / "app", run.model.exists, "--run-config", f"out={json.dumps(str(run.path))} rounds=3")
    expected = laconic.simulate(
        laconic.fed_cams(compressor="sign"),
        "mlp:64",
        laconic.data.load("digits", clients=3, partition="iid"),
        rounds=3,
    )
    assert load_tensors(run.model)[1]["sha256"] == expected.model_sha256
    assert [record["participants"] for record in read_metrics(run.metrics)] == [3, 3, 3]
    # Nodes have their files where a person's state goes, each under its number.
    files = sorted((tmp_path / "state" / "laconic" / "nodes").glob("*.sqlite"))
    assert [file.name for file in files] == ["node-0.sqlite", "node-1.sqlite", "node-2.sqlite"]
