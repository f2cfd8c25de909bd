"""The live page: it shows a run while it goes on, without being loaded again."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from laconic.core.errors import ConfigError
from laconic.report.live import serve


@pytest.fixture
def growing(finished: Path, tmp_path: Path) -> Path:
    """A folder with one run that has only come to round 8."""
    run = tmp_path / "runs" / "avg"
    shutil.copytree(finished / "avg", run)
    (run / "model.safetensors").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:8]))
    (run / "rest").write_text("".join(lines[8:]))
    return tmp_path / "runs"


@contextmanager
def served(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    server = serve(folder, host, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def address(growing: Path) -> Iterator[str]:
    with served(growing) as address:
        yield address


def get(url: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(url) as answer:
        return answer.status, answer.read()


def test_data_comes_only_when_something_has_changed(address: str, growing: Path) -> None:
    first = json.loads(get(f"{address}data")[1])
    assert [run["rounds"] for run in first["runs"]] == [8]
    assert get(f"{address}data?version={first['version']}") == (204, b"")
    with (growing / "avg" / "metrics.jsonl").open("a") as file:
        file.write((growing / "avg" / "rest").read_text())
    status, content = get(f"{address}data?version={first['version']}")
    assert status == 200
    assert json.loads(content)["runs"][0]["rounds"] == 12


def test_nothing_but_the_page_and_its_data_is_served(address: str) -> None:
    for path in ("config.toml", "../avg/config.toml", "avg/metrics.jsonl"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(address + path)
        assert caught.value.code == 404


def test_only_this_machine_by_its_own_name_is_answered(address: str) -> None:
    """A page elsewhere may have its own name point here, and would then read the runs."""
    asked = urllib.request.Request(f"{address}data", headers={"Host": "runs.example.org"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked)
    assert caught.value.code == 403


def test_a_damaged_run_does_not_end_the_page(address: str, growing: Path) -> None:
    shutil.copytree(growing / "avg", growing / "bad")
    (growing / "bad" / "config.toml").write_text("algorithm = ")
    data = json.loads(get(f"{address}data")[1])
    assert len(data["runs"]) == 1 and [Path(path).name for path in data["unreadable"]] == ["bad"]


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    server = serve(tmp_path, "127.0.0.1", 0)
    with pytest.raises(ConfigError, match="Address already in use"):
        serve(tmp_path, "127.0.0.1", server.server_address[1])
    server.server_close()


def test_a_folder_is_waited_for(finished: Path, tmp_path: Path, page: Any) -> None:
    """Whoever wants to see a run from its beginning starts to watch before it."""
    folder = tmp_path / "later"
    with served(folder) as address:
        page.goto(address)
        assert page.inner_text("#summary") == f"no runs yet in {folder}"
        assert not page.is_visible("main")
        shutil.copytree(finished / "avg", folder / "avg")
        page.wait_for_selector("#curves .main-svg", timeout=15_000)
        assert "1 run on digits" in page.inner_text("#summary")


def test_the_page_follows_a_run(address: str, growing: Path, page: Any) -> None:
    page.goto(address)
    page.wait_for_selector("#curves .main-svg")
    assert "round 8/12" in page.inner_text("#runs")
    page.uncheck("#log-x")
    page.select_option("#cost", "round")
    with (growing / "avg" / "metrics.jsonl").open("a") as file:
        file.write((growing / "avg" / "rest").read_text())
    page.get_by_text("round 12/12").wait_for(timeout=15_000)
    assert page.evaluate("Math.max(...document.getElementById('curves').data.at(-1).x)") == 12
    # What was chosen stays chosen.
    assert page.input_value("#cost") == "round"
    assert page.troubles == []


def test_no_rule_of_axe_is_broken(address: str, page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.goto(address)
    page.wait_for_selector("#labels .main-svg")
    found = axe.Axe().run(page).response["violations"]
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == []
