"""What the page says first: the winner, the caveat, what failed; and that everybody can read it."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from laconic.report.gather import find_runs, gather
from laconic.report.page import html, report
from laconic.report.palette import COLORS, TONES, stream_tones
from laconic.run.target import Target

pytestmark = pytest.mark.long


def copy(run: Path, to: Path, settings: dict[str, str] | None = None) -> Path:
    """A copy of a run with other lines in its config."""
    shutil.copytree(run, to)
    text = (to / "config.toml").read_text()
    for before, after in (settings or {}).items():
        assert before in text
        text = text.replace(before, after)
    (to / "config.toml").write_text(text)
    return to


def change(run: Path, changes: dict[int, dict[str, Any]], rounds: int = 10**9) -> None:
    """Change the records of some rounds, and drop those after `rounds`."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [record | changes.get(record["round"], {}) for record in records if record["round"] <= rounds]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))


@pytest.fixture(scope="module")
def mixed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on two data sets: three seeds, one seed, one that collapsed, one that diverged, one with metrics by class."""
    folder = tmp_path_factory.mktemp("mixed")
    for name in ("avg", "avg-1", "avg-2"):
        copy(finished / name, folder / name)
    fallen = copy(finished / "avg", folder / "fallen", {"server_lr = 1.0": "server_lr = 2.0"})
    change(
        fallen, {8: {"collapsed": "collapsed in round 8: accuracy fell from 70.0 % to 20.0 %; try a smaller local_lr"}}
    )
    failed = copy(finished / "avg", folder / "failed", {"server_lr = 1.0": "server_lr = 90.0"})
    change(failed, {}, rounds=5)
    (failed / "model.safetensors").unlink()
    (failed / "diverged").touch()
    other = copy(finished / "sign", folder / "other", {'dataset = "digits"': 'dataset = "/data/<b>letters"'})
    change(other, {number: {"class_accuracy_0": 0.25, "class_accuracy_1": 1.0} for number in range(2, 13, 2)})
    copy(finished / "avg", folder / "other-2", {'dataset = "digits"': 'dataset = "/data/<b>letters"'})
    report([folder], folder / "report.html", Target(0.3))
    return folder


@pytest.fixture
def opened(page: Any, mixed: Path) -> Any:
    page.goto((mixed / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    return page


def said(page: Any, place: str) -> str:
    """The text of an element, with plain spaces before percent signs."""
    text: str = page.inner_text(place)
    assert " %" not in text, "a percent sign may begin a line"
    return text.replace("\u00a0", " ")


def lines(page: Any, chart: str = "curves") -> dict[str, str]:
    named = f"document.getElementById('{chart}').data.filter((t) => t.name)"
    code = f"{named}.map((t) => [t.name, t.line?.color || t.marker.color])"
    return dict(page.evaluate(code))


def test_the_winner_is_named_with_its_margin_and_the_caveat(page: Any, finished: Path, tmp_path: Path) -> None:
    runs = gather(find_runs([finished]))["runs"]
    target = math.floor(100 * min(run["milestones"][-1][0] for run in runs)) / 100
    report([finished], tmp_path / "report.html", Target(target))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    costs: dict[str, list[float]] = {}
    for run in runs:
        cost = next(cost for mean, _, cost, _ in run["milestones"] if mean >= target)
        costs.setdefault(run["label"], []).append(cost)
    means = sorted((sum(each) / len(each), label) for label, each in costs.items())
    headline = said(page, "#headline")
    assert headline.startswith(f"{means[0][1]} reached {100 * target:g} % with")
    assert f"{float(f'{means[1][0] / means[0][0]:.3g}'):g}x fewer bytes than {means[1][1]}" in headline
    assert "One seed" in page.inner_text("#caveat"), "at least one of the two has a single seed"
    page.locator("#runs label", has_text="fed_cams").locator("input").first.uncheck()
    page.locator("#runs label", has_text="fed_cams").locator("input").last.uncheck()
    assert said(page, "#headline").startswith("fed_avg reached") and page.inner_text("#caveat") == "Means of 3 seeds."
    page.fill("#target", "99")
    assert "fed_avg has an accuracy of" in said(page, "#headline")
    assert "fed_avg: did not reach 99 % in 3 of 3 seeds" in said(page, "#warnings")


def test_what_collapsed_or_diverged_is_flagged_and_never_wins(opened: Any) -> None:
    warned = said(opened, "#warnings")
    assert "fed_avg (server_lr=2): collapsed in round 8: accuracy fell from 70.0 % to 20.0 %" in warned
    assert "try a smaller" not in warned and "fed_avg (server_lr=90): diverged in round 6" in warned
    rows = opened.locator("#outcome tbody tr").all_inner_texts()
    assert "collapsed in round 8" in rows[-2] and "diverged in round 6" in rows[-1]
    assert {"fed_avg (server_lr=2), collapsed", "fed_avg (server_lr=90), diverged"} <= lines(opened).keys()
    assert "server_lr=2)" not in opened.inner_text("#headline")


def test_a_run_that_never_learned_is_flagged_and_sets_no_target(page: Any, finished: Path, tmp_path: Path) -> None:
    for name in ("avg", "sign"):
        copy(finished / name, tmp_path / name)
    poor = copy(finished / "top", tmp_path / "poor")
    change(poor, {number: {"accuracy": 0.1} for number in range(2, 13, 2)})
    report([tmp_path], tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    label = next(run["label"] for run in gather([poor, finished / "sign"])["runs"] if run["path"] == str(poor))
    for place in ("#warnings", "#runs", "#outcome"):
        assert page.inner_text(place).count("no better than chance") == 1, place
    assert f"{label}: no better than chance" in said(page, "#warnings")
    sound = [run["milestones"][-1][0] for run in gather(find_runs([tmp_path]))["runs"] if not run["at_chance"]]
    assert len(sound) == 2 and float(page.input_value("#target")) == math.floor(100 * min(sound))
    assert page.inner_text("#caveat").endswith("was chosen by this page.")
    page.fill("#target", "20")
    assert "chosen" not in page.inner_text("#caveat")


def test_a_target_of_the_page_is_one_that_half_of_the_runs_reach(page: Any, finished: Path, tmp_path: Path) -> None:
    for place, height in enumerate((0.9, 0.8, 0.7, 0.3, 0.2)):
        own = copy(finished / "avg", tmp_path / str(place), {"server_lr = 1.0": f"server_lr = {place + 1}.0"})
        change(own, {number: {"accuracy": height} for number in range(2, 13, 2)})
    report([tmp_path], tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    assert page.input_value("#target") == "70"


def test_unlike_partitions_models_and_numbers_of_clients_share_no_chart(
    page: Any, finished: Path, tmp_path: Path
) -> None:
    for name in ("avg", "avg-1"):
        copy(finished / name, tmp_path / name)
    copy(finished / "avg", tmp_path / "iid", {'partition = "dirichlet:0.3"': 'partition = "iid"'})
    copy(finished / "avg", tmp_path / "large", {'model = "mlp:8"': 'model = "mlp:9"', "clients = 6": "clients = 60"})
    report([tmp_path], tmp_path / "report.html", Target(0.3))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    tasks = page.locator("#dataset option").all_inner_texts()
    assert sorted(tasks) == [
        "digits, dirichlet:0.3, mlp:8, 6 clients (2 runs)",
        "digits, dirichlet:0.3, mlp:9, 60 clients (1 run)",
        "digits, iid, mlp:8, 6 clients (1 run)",
    ]
    for task in tasks:
        page.select_option("#dataset", label=task)
        assert [name.partition(" (mean")[0] for name in lines(page)] == ["fed_avg"], "labels are short"
    assert page.troubles == []


def test_unlike_data_sets_are_never_in_one_chart(opened: Any) -> None:
    names = lines(opened)
    assert opened.locator("#dataset option").all_inner_texts() == ["digits (5 runs)", "<b>letters (2 runs)"]
    assert not opened.is_visible("#classes-section")
    opened.select_option("#dataset", label="<b>letters (2 runs)")
    assert {*lines(opened)} == {"fed_avg", "fed_cams (compressor=sign)"} and not names.keys() & {
        "fed_cams (compressor=sign)"
    }
    assert len(lines(opened, "pareto")) == 3, "two runs and their front"
    # One of the two has metrics by class. They are a table, and no choice of the curves.
    assert opened.locator("#classes tbody tr").all_inner_texts() == ["fed_cams (compressor=sign)\t25\t100"]
    assert "class accuracy 0" not in opened.inner_text("#metric")
    assert opened.troubles == []


def test_the_target_is_a_line_and_ticks_are_whole_numbers(opened: Any) -> None:
    for chart in ("curves", "pareto"):
        heights = opened.evaluate(f"document.getElementById('{chart}')._fullLayout.shapes.map((shape) => shape.y0)")
        assert heights == [30]
    opened.fill("#target", "45")
    assert opened.evaluate("document.getElementById('curves')._fullLayout.shapes[0].y0") == 45
    ticks = opened.locator("#curves .xtick text").all_text_contents()
    assert len(ticks) >= 3 and all(re.fullmatch(r"[1-9]\d{0,2}[kM]", tick) for tick in ticks), ticks
    opened.select_option("#metric", "loss")
    assert opened.evaluate("document.getElementById('curves')._fullLayout.shapes.length") == 0


def test_colors_belong_to_runs_and_grays_to_streams(opened: Any, mixed: Path) -> None:
    runs = gather(find_runs([mixed]))["runs"]
    expected = {run["label"]: COLORS[run["color"]] for run in runs if run["settings"]["dataset"] == "digits"}
    drawn = {name.partition(" (mean")[0]: color for name, color in lines(opened).items() if ", " not in name}
    assert drawn == expected and len({*drawn.values()}) == 3
    streams = {*opened.evaluate("document.getElementById('streams').data.map((t) => t.marker.color)")}
    assert streams and not streams & {*COLORS}
    assert TONES["up"][0] in streams and TONES["down"][0] in streams


def test_ticks_of_a_logarithmic_axis_are_1_2_5_where_there_is_room(page: Any, mixed: Path) -> None:
    """On a wide screen four decades have all of them, in one font; on a phone powers of ten; after a zoom all again."""

    def ticks() -> list[str]:
        page.wait_for_timeout(300)
        fonts = page.evaluate("[...document.querySelectorAll('#curves .xtick text')].map((t) => t.style.fontSize)")
        assert len({*fonts}) == 1
        return list(page.locator("#curves .xtick text").all_text_contents())

    page.goto((mixed / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    chart = "document.getElementById('curves')"
    page.evaluate(f"Plotly.relayout({chart}, {{'xaxis.range': [3.2, 7.2]}})")
    assert ticks() == ["2k", "5k", "10k", "20k", "50k", "100k", "200k", "500k", "1M", "2M", "5M", "10M"]
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(500)
    assert ticks() == ["10k", "100k", "1M", "10M"]
    page.evaluate(f"Plotly.relayout({chart}, {{'xaxis.range': [4.9, 6.1]}})")
    assert ticks() == ["100k", "200k", "500k", "1M"]
    page.evaluate(f"Plotly.relayout({chart}, {{'xaxis.range': [0, 24]}})")
    assert len(ticks()) <= 7
    assert page.evaluate("[0.02, 0.001, 5e5, 1e13].map(tick)") == ["0.02", "0.001", "500k", "10T"]
    assert page.troubles == []


def test_runs_that_failed_alike_are_one_warning(page: Any, finished: Path, tmp_path: Path) -> None:
    for name in ("avg", "avg-1", "avg-2"):
        poor = copy(finished / name, tmp_path / name)
        change(poor, {number: {"accuracy": 0.1} for number in range(2, 13, 2)})
    report([tmp_path], tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    assert said(page, "#warnings") == "fed_avg: no better than chance in 3 of 3 runs"
    assert page.inner_text("#runs").count("no better than chance") == 1


def test_a_bar_too_short_to_see_has_its_total_and_a_phone_shows_the_cost_whole(page: Any, mixed: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto((mixed / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    texts = page.evaluate("document.getElementById('streams').layout.annotations.map((note) => note.text)")
    assert texts and all(re.search(r": [\d.]+ (B|kB|MB)$", text.replace("<br>", " ")) for text in texts), texts
    ends = "[...document.querySelectorAll('#outcome tr > :nth-child(2)')].map((cell) => cell.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= page.locator("#outcome").locator("..").bounding_box()["x"] + 336


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_axe_is_broken(browser: Any, mixed: Path, scheme: str) -> None:
    """Keyboard, contrast and labels for screen readers: https://github.com/dequelabs/axe-core."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
    page.goto((mixed / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    page.locator("#configs summary").first.click()
    found = axe.Axe().run(page).response["violations"]
    assert [(rule["id"], rule["impact"], rule["nodes"][0]["html"]) for rule in found] == []
    page.close()


def test_a_stream_keeps_its_gray(browser: Any, mixed: Path) -> None:
    """Whatever else is shown, and in the same order of contrast on a dark page."""
    tones = stream_tones(["up/control", "up/mean", "headers"])
    assert (
        tones["up/control"] == stream_tones(["up/control", "up/anything", "up/model"])["up/control"] == TONES["up"][1]
    )
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="dark")
    page.goto((mixed / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    assert page.evaluate("toneOf('up/model')") == TONES["down"][-1]
    assert page.evaluate("toneOf('up/control')") == TONES["down"][-2]
    page.emulate_media(color_scheme="light")
    assert {name: page.evaluate(f"toneOf('{name}')") for name in tones} == tones
    page.close()


def test_sections_columns_and_axes_use_the_room_that_there_is(page: Any, finished: Path, tmp_path: Path) -> None:
    own = copy(finished / "avg", tmp_path / "own")
    change(own, {number: {"training_loss": 2e4} for number in (3,)})
    (own / "gradient_similarity.csv").unlink(missing_ok=True)
    report([own], tmp_path / "report.html", Target(0.3))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    width = "document.querySelector('#labels .main-svg').getBoundingClientRect().width"
    page.wait_for_timeout(500)  # Plotly waits before it changes a size.
    assert page.evaluate(width) > 900, "a lone half section has the full width"
    assert page.is_checked("#course-log"), "one value is far above the others"
    heads = page.locator("#outcome th[scope=col]").all_inner_texts()
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(500)
    assert page.locator("#outcome th").nth(1).inner_text().startswith("bytes to")
    assert heads[1] == "accuracy"
    assert {*heads} == {*page.locator("#outcome th[scope=col]").all_inner_texts()}
    assert page.troubles == []


def test_paper_is_white_and_charts_fit_it(browser: Any, mixed: Path) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="dark")
    page.goto((mixed / "report.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    width = "document.querySelector('#curves .main-svg').getBoundingClientRect().width"
    before = page.evaluate(width)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(width) <= 690
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.is_visible(".controls")
    # To the rules of the style sheet, a sheet of paper is as narrow as this window. Nobody can scroll a table on it.
    page.set_viewport_size({"width": 680, "height": 900})
    hidden = "[...document.querySelectorAll('.scroll')].map((each) => each.scrollWidth - each.clientWidth)"
    assert set(page.evaluate(hidden)) == {0}
    page.set_viewport_size({"width": 1200, "height": 900})
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_timeout(500)
    assert page.evaluate(width) == before
    page.close()


def test_a_single_run_has_a_headline_and_no_rival(page: Any, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(html(gather([finished / "sign"])))
    page.goto((tmp_path / "one.html").as_uri())
    page.wait_for_selector("#labels .main-svg")
    assert "than" not in said(page, "#headline") and said(page, "#headline").startswith("fed_cams")
    assert not page.is_visible("#dataset-choice") and not page.is_visible("#warnings")
