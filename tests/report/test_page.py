"""The report in a real browser: it is drawn, it answers to clicks, and asks nobody else for anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import laconic
from laconic.cli.view import LiveView
from laconic.report.gather import find_runs, gather
from laconic.report.page import html, report
from laconic.report.reading import read_run
from laconic.report.tables import outcome
from laconic.run.config import RunConfig
from laconic.run.driver import run_config
from laconic.run.target import Target

pytestmark = pytest.mark.long
COMMON: dict[str, Any] = {"clients": 6, "participants": 3, "eval_every": 2, "model": "logistic", "threads": 1}
CHARTS = ["curves", "pareto", "streams", "course", "similarity", "labels"]


@pytest.fixture(scope="session")
def written(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    report([finished], out)
    return out


@pytest.fixture
def opened(page: Any, written: Path) -> Any:
    page.goto(written.as_uri())
    page.wait_for_selector("#labels .main-svg")
    return page


def axis(page: Any, name: str) -> Any:
    return page.evaluate(f"document.getElementById('curves')._fullLayout.{name}")


def traces(page: Any, chart: str = "curves") -> list[dict[str, Any]]:
    return page.evaluate(
        f"document.getElementById('{chart}').data.map((t) => ({{name: t.name, x: [...(t.x || [])], y: [...(t.y || [])]}}))"
    )


def test_it_is_one_file_of_a_reasonable_size(written: Path) -> None:
    assert written.stat().st_size < 6e6
    text = written.read_text()
    assert "/*DATA*/" not in text and "/*PLOTLY*/" not in text


def test_every_chart_is_drawn(opened: Any) -> None:
    for chart in CHARTS:
        assert opened.locator(f"#{chart} .main-svg").count() > 0, chart
        assert traces(opened, chart), chart
    assert "5 runs on digits" in opened.inner_text("#summary")
    assert "digits, dirichlet:0.3" in opened.inner_text("#facts") and "6, 3 per round" in opened.inner_text("#facts")
    assert opened.troubles == []


def test_seeds_become_a_mean_with_a_band(opened: Any) -> None:
    assert opened.locator("#runs label").count() == 3
    assert "3 seeds" in opened.inner_text("#runs")
    names = [trace.get("name") for trace in traces(opened)]
    assert "fed_avg (mean of 3 seeds)" in names
    # The band has no name: it goes there and back again.
    band = next(trace for trace in traces(opened) if not trace.get("name"))
    mean = next(trace for trace in traces(opened) if trace.get("name") == "fed_avg (mean of 3 seeds)")
    assert len(band["y"]) == 2 * len(mean["y"])
    assert all(high >= middle for high, middle in zip(band["y"], mean["y"], strict=False))


def test_what_is_not_a_number_is_a_gap_and_what_diverged_says_so(page: Any, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "<!--<script>"
    shutil.copytree(finished / "avg", run)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records[6:]:
        if "loss" in record:
            record |= {"loss": None, "accuracy": None}
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (run / "model.safetensors").unlink()
    (run / "diverged").touch()
    report([tmp_path], tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#curves .main-svg")
    drawn, mark = traces(page)
    assert drawn["y"][:3] == [value for value in drawn["y"] if value is not None]
    assert drawn["y"][3:] == [None] * 3
    assert mark["name"].endswith("diverged") and (mark["x"], mark["y"]) == ([drawn["x"][2]], [drawn["y"][2]])
    assert "diverged in round 13" in page.inner_text("#runs") and "diverged in round 13" in page.inner_text("#outcome")
    assert page.troubles == []


def test_axes_and_metrics_can_be_switched(opened: Any) -> None:
    assert axis(opened, "xaxis.type") == "log"
    before = traces(opened)[-1]
    opened.uncheck("#log-x")
    assert axis(opened, "xaxis.type") == "linear"
    opened.check("#log-y")
    assert axis(opened, "yaxis.type") == "log"
    for cost in ("bytes_up", "bytes_down", "round", "gradients", "simulated_seconds"):
        opened.select_option("#cost", cost)
        now = traces(opened)[-1]
        assert now["x"] != before["x"] and now["y"] == before["y"]
    opened.select_option("#metric", "loss")
    assert traces(opened)[-1]["y"] != before["y"]
    opened.check("#smooth")
    assert traces(opened)[-1]["y"] != before["y"]
    for name in ("q_c", "memory_norm", "skip_rate", "training_loss"):
        opened.select_option("#course-name", name)
        assert traces(opened, "course")
    assert opened.troubles == []


def test_no_button_leads_off_the_page(opened: Any) -> None:
    opened.hover("#curves .main-svg")
    titles = opened.locator(".modebar-btn").evaluate_all("buttons => buttons.map((each) => each.dataset.title)")
    assert any("Zoom" in title for title in titles)
    assert not any(word in title for title in titles for word in ("Share", "Cloud", "Studio", "Edit"))


def test_runs_can_be_left_out(opened: Any) -> None:
    shown = len(traces(opened, "pareto"))
    opened.locator("#runs input").nth(1).uncheck()
    assert len(traces(opened, "pareto")) == shown - 1
    opened.locator("#runs input").nth(1).check()
    assert len(traces(opened, "pareto")) == shown


def test_the_table_follows_the_target(opened: Any) -> None:
    opened.fill("#target", "1")
    assert "not reached" not in opened.inner_text("#outcome")
    opened.fill("#target", "99.9")
    assert opened.inner_text("#outcome").count("not reached") == 3
    assert "not reached by 3 of 3 seeds" in opened.inner_text("#outcome")
    opened.check("#by-seed")
    assert opened.inner_text("#outcome").count("not reached") == 5
    opened.fill("#target", "")
    assert "not reached" not in opened.inner_text("#outcome"), "nothing was asked for"


def test_configs_are_there_to_repeat(opened: Any) -> None:
    opened.locator("#configs summary").first.click()
    assert 'algorithm = "fed_avg"' in opened.inner_text("#configs")


def test_bytes_are_the_mean_of_the_seeds_and_may_be_shares_or_dots(opened: Any, finished: Path) -> None:
    streams = [read_run(finished / name)["streams"]["up/model"] for name in ("avg", "avg-1", "avg-2")]
    sizes = [stream["bytes"] - stream["headers"] for stream in streams]
    drawn = {trace["name"]: trace for trace in traces(opened, "streams")}
    assert drawn["up/model"]["x"][0] == pytest.approx(sum(sizes) / 3)
    assert "fed_avg (mean of 3 seeds)" in opened.locator("#streams .annotation").first.text_content()
    opened.select_option("#streams-scale", "share")
    shares = [trace["x"] for trace in traces(opened, "streams")]
    assert [sum(bar) for bar in zip(*shares, strict=True)] == pytest.approx([100] * 3)
    opened.select_option("#streams-scale", "log")
    assert opened.evaluate("document.getElementById('streams')._fullLayout.xaxis.type") == "log"
    # Streams of one size stand below each other.
    places = [trace["y"][0] for trace in traces(opened, "streams")]
    assert len(set(places)) == len(places) == 3
    assert opened.troubles == []


def test_long_names_leave_room_for_the_bars(browser: Any, finished: Path, tmp_path: Path) -> None:
    data = gather(find_runs([finished]))
    name = "fed_ef_ams (downlink compressor heavy_sign:1/20@layer, downlink broadcast, uplink compressor sign)"
    data["runs"] = [data["runs"][0] | {"group": str(n), "label": name, "path": str(n)} for n in range(3)]
    (tmp_path / "long.html").write_text(html(data))
    phone = browser.new_page(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    phone.goto((tmp_path / "long.html").as_uri())
    phone.wait_for_selector("#streams .annotation")
    assert phone.evaluate("document.getElementById('streams')._fullLayout._size.w") > 250
    for label in phone.locator("#streams .annotation").all():
        box = label.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    # Its buttons would lie on what they belong to, and a finger that scrolls is not to zoom.
    assert phone.locator(".modebar-btn").count() == 0
    assert phone.evaluate("document.getElementById('curves')._fullLayout.dragmode") is False
    phone.close()


def test_only_the_first_clients_are_shown_and_it_says_so(
    opened: Any, page: Any, finished: Path, tmp_path: Path
) -> None:
    assert opened.inner_text("#similarity-note") == opened.inner_text("#labels-note") == ""
    data = gather([finished / "sign"])
    data["runs"][0]["settings"]["clients"] = 1500
    (tmp_path / "many.html").write_text(html(data))
    page.goto((tmp_path / "many.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    assert page.inner_text("#similarity-note") == page.inner_text("#labels-note") == "The first 6 of 1,500 clients."


def test_it_fits_a_phone_in_the_dark(browser: Any, written: Path) -> None:
    phone = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark", is_mobile=True)
    phone.goto(written.as_uri())
    phone.wait_for_selector("#labels .main-svg")
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    assert phone.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 27)"
    phone.close()


def test_the_ranking_is_carried_into_the_page_and_can_be_changed(page: Any, finished: Path, tmp_path: Path) -> None:
    report([finished], tmp_path / "timed.html", Target(0.3), "time")
    page.goto((tmp_path / "timed.html").as_uri())
    page.wait_for_selector("#outcome td")
    assert page.input_value("#rank") == "time"

    def column(name: str) -> list[float]:
        page.check("#by-seed")
        heads = page.locator("#outcome thead th").all_inner_texts()
        cells = page.locator("#outcome tr").all()[1:]
        texts = [row.locator("th, td").all_inner_texts()[heads.index(name)] for row in cells]
        return [float(text.replace(",", "")) for text in texts if text]

    times = column("simulated seconds to target")
    assert times and times == sorted(times)
    page.select_option("#rank", "round")
    rounds = column("rounds to target")
    assert rounds == sorted(rounds)
    page.select_option("#rank", "loss")
    losses = column("loss")
    assert len(losses) > 1 and losses == sorted(losses)
    assert page.troubles == []


def test_a_target_of_another_metric_is_carried_into_the_page(page: Any, finished: Path, tmp_path: Path) -> None:
    report([finished], tmp_path / "loss.html", Target.of("loss=100"), "loss")
    page.goto((tmp_path / "loss.html").as_uri())
    page.wait_for_selector("#outcome td")
    assert (page.input_value("#rank"), page.input_value("#target")) == ("loss", "100")
    assert "loss of" in page.inner_text("body") and "is at most this" in page.inner_text("body")
    assert "not reached" not in page.inner_text("#outcome")
    page.fill("#target", "0.000001")
    assert "not reached" in page.inner_text("#outcome")
    assert page.troubles == []


def test_what_went_wrong_with_clients_is_in_the_table(page: Any, tmp_path: Path) -> None:
    network = {"bandwidth_up": "lognormal:10kbit,2", "deadline": 2}
    config = RunConfig(**(COMMON | {"network": network, "rounds": 4}))
    finished = run_config(config, tmp_path / "run", [LiveView(Console(quiet=True))])
    report([tmp_path / "run"], tmp_path / "page.html")
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("#outcome td")
    cut_off = finished.summary()["cut_off"]
    assert cut_off > 0
    assert page.locator("#outcome thead th").all_inner_texts()[-1] == "cut off"
    assert page.locator("#outcome td").all_inner_texts()[-1] == str(cut_off)
    assert "cut off" in outcome([finished], 200).columns


def test_dozens_of_runs_have_a_bar_each(page: Any, finished: Path, tmp_path: Path) -> None:
    data = gather(find_runs([finished]))
    data["runs"] = [
        data["runs"][0] | {"group": str(n), "label": f"run {n}", "path": str(n), "color": n} for n in range(40)
    ]
    (tmp_path / "many.html").write_text(html(data))
    page.goto((tmp_path / "many.html").as_uri())
    page.wait_for_selector("#streams .main-svg")
    assert page.locator("#streams .annotation").count() == 40
    assert page.locator("#streams").bounding_box()["height"] > 800
    assert len({trace["line"] for trace in page.evaluate(LINES)}) == 40
    assert page.troubles == []


LINES = "document.getElementById('curves').data.map((t) => ({line: `${t.line.color} ${t.line.dash}`}))"


def test_clients_and_classes_have_their_names(page: Any, tmp_path: Path) -> None:
    """Those of a table: hospitals and text targets. Without names there are numbers."""
    stages = np.array(["mild", "moderate", "<b>severe</b>"])
    clients = {name: (np.eye(3, dtype=np.float32).repeat(4, 0), stages.repeat(4)) for name in ("Ulm", "Köln", "Bonn")}
    data = laconic.data.from_arrays(clients, test=clients["Ulm"])
    laconic.simulate("fed_avg", "logistic", data, rounds=1, out=tmp_path / "run", metrics=["class_accuracy"])
    report([tmp_path], tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    names = {axis: page.locator(f"#labels .{axis} text").all_text_contents() for axis in ("xtick", "ytick")}
    assert names == {"xtick": ["<b>severe</b>", "mild", "moderate"], "ytick": ["Ulm", "Köln", "Bonn"]}
    scale = page.evaluate("document.getElementById('labels').data.map((t) => [t.zmin, t.zmax])")
    assert scale == [[0, 4]], "colors begin at no example"
    shown = page.evaluate("document.getElementById('labels')._fullData[0].zauto")
    assert shown is False, "Plotly keeps the range only if it has both ends"
    assert page.locator("#classes th").all_text_contents()[:4] == ["run", "<b>severe</b>", "mild", "moderate"]
    assert page.troubles == []
