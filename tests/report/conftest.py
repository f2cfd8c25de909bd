"""A few finished runs, and a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laconic.cli.view import LiveView
from laconic.run.config import RunConfig
from laconic.run.driver import run_config

COMMON: dict[str, Any] = {
    "clients": 6,
    "participants": 3,
    "rounds": 12,
    "eval_every": 2,
    "model": "mlp:8",
    "partition": "dirichlet:0.3",
    "network": {"bandwidth_up": "1Mbit", "latency": "50ms"},
}
RUNS: dict[str, dict[str, Any]] = {
    "avg": {"algorithm": "fed_avg"},
    "avg-1": {"algorithm": "fed_avg", "seed": 1},
    "avg-2": {"algorithm": "fed_avg", "seed": 2},
    "sign": {"algorithm": "fed_cams", "uplink": {"compressor": "sign"}, "diagnostics": True, "full_gradient": True},
    "top": {"algorithm": "fed_cams", "uplink": {"compressor": "top_k:1/8"}, "diagnostics": True},
}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs."""
    from rich.console import Console

    folder = tmp_path_factory.mktemp("runs")
    for name, settings in RUNS.items():
        run_config(RunConfig(**(COMMON | settings)), folder / name, [LiveView(Console(quiet=True))])
    return folder


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page whose every complaint, and every request to another host, is remembered in `page.troubles`."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.troubles = []
    opened.on("console", lambda message: message.type == "error" and opened.troubles.append(message.text))
    opened.on("pageerror", lambda error: opened.troubles.append(str(error)))
    opened.on(
        "request",
        lambda request: (
            request.url.startswith(("file:", "data:", "http://127.0.0.1:", "blob:"))
            or opened.troubles.append(request.url)
        ),
    )
    yield opened
    opened.close()
