"""The app of docs/guides/flower-app.md in Flower's own processes: SuperLink, ServerApp, and ClientApps in its simulation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("ray", reason="Flower's simulation needs Ray")

from laconic.flower.local_federation import free_port
from tests.documentation.pages import ROOT, blocks
from tests.flower.test_flower_simulation import healthy, wait

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "digits-app"
version = "1.0.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
"""


@pytest.mark.long
def test_the_guides_app_runs_in_processes(tmp_path: Path) -> None:
    app, outcome, log = tmp_path / "app", tmp_path / "outcome.txt", tmp_path / "superlink.log"
    app.mkdir()
    for block in blocks(ROOT / "docs" / "guides" / "flower-app.md"):
        if block.file:
            (app / block.file).write_text(block.text.replace("num_rounds=20", "num_rounds=4"))
    server = (app / "server_app.py").read_text()
    (app / "server_app.py").write_text(
        f"{server}    with open({str(outcome)!r}, 'w') as file:\n        file.write(strategy.traffic())\n"
    )
    (app / "pyproject.toml").write_text(PROJECT)
    home, port = tmp_path / "flwr", free_port()
    home.mkdir()
    link = f'[superlink]\ndefault = "sim"\n\n[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(link)
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    command = [str(programs / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--database", str(tmp_path / "superlink.sqlite")]
    with log.open("ab") as output:
        superlink = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=output, stderr=output)
    try:
        wait(lambda: healthy(port), log)
        nodes = ["--federation-config", "num-supernodes=3"]
        subprocess.run([str(programs / "flwr"), "run", str(app), "sim", *nodes], env=environment, check=True)
        wait(lambda: outcome.exists() and "down" in outcome.read_text(), log)
    finally:
        superlink.terminate()
        superlink.wait()
    up = outcome.read_text().splitlines()[1].split()
    # Four rounds of three nodes, which train and evaluate.
    assert up[:2] == ["up", "24"]
    assert float(up[-1].rstrip("x")) > 30
    assert "refused" not in outcome.read_text()
    # Each node keeps its error memory in its file.
    assert len([*(tmp_path / "state").rglob("node-*.sqlite")]) == 3
