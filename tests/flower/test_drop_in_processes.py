"""The app of docs/guides/flower-app.md in Flower's own processes: SuperLink, ServerApp, and ClientApps in its simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("ray", reason="Flower's simulation needs Ray")

from tests.documentation.pages import ROOT, blocks
from tests.flower.test_flower_simulation import flower_simulation

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
    app, outcome = tmp_path / "app", tmp_path / "outcome.txt"
    app.mkdir()
    for block in blocks(ROOT / "docs" / "guides" / "flower-app.md"):
        if block.file:
            (app / block.file).write_text(block.text.replace("num_rounds=20", "num_rounds=4"))
    server = (app / "server_app.py").read_text()
    (app / "server_app.py").write_text(
        f"{server}    with open({str(outcome)!r}, 'w') as file:\n        file.write(strategy.traffic())\n"
    )
    (app / "pyproject.toml").write_text(PROJECT)
    with flower_simulation(tmp_path) as start:
        start(app, lambda: outcome.exists() and "down" in outcome.read_text())
    up = outcome.read_text().splitlines()[1].split()
    # Four rounds of three nodes, which train and evaluate.
    assert up[:2] == ["up", "24"]
    assert float(up[-1].rstrip("x")) > 30
    assert "refused" not in outcome.read_text()
    # Each node keeps its error memory in its file.
    assert len([*(tmp_path / "state").rglob("node-*.sqlite")]) == 3
