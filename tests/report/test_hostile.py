"""Files that somebody else wrote: a report, a plot and the live page leave such a run out, by name, and show the others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from laconic.cli.reports import plot
from laconic.report.gather import gather
from laconic.report.live import Watched
from laconic.report.page import html, report
from laconic.report.reading import read_run
from tests.report.test_live import served

RECORD = {"round": 1, "participants": 1, "accuracy": 0.5, "loss": 1.0, "bytes_up": 1, "bytes_down": 1, "seconds": 0.1}
METRICS: dict[str, bytes] = {
    "a number": b"7\n",
    "text": b"what\n",
    "null": b"null\n",
    "nested arrays": b"[[[]]]\n",
    "deeply nested": b"[" * 60_000 + b"\n",
    "deeply nested objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"\n",
    "not UTF-8": b'{"round": "\xff\xfe"}\n',
    "UTF-16": json.dumps(RECORD).encode("utf-16") + b"\n",
    "zeros": b"\0" * 1000 + b"\n",
    "a huge integer": b'{"round": 1' + b"0" * 5000 + b"}\n",
    "a large integer": json.dumps(RECORD | {"bytes_up": 10**400}).encode() + b"\n",
    "a negative cost": json.dumps(RECORD | {"bytes_up": -1}).encode() + b"\n",
    "a cost that is not a number": b'{"round": 1, "bytes_up": NaN, "bytes_down": 1}\n',
    "a text as metric": json.dumps(RECORD | {"accuracy": "<b>1</b>"}).encode() + b"\n",
    "a list as metric": json.dumps(RECORD | {"accuracy": [1]}).encode() + b"\n",
    "a flag as metric": json.dumps(RECORD | {"accuracy": True}).encode() + b"\n",
    "streams that are a number": json.dumps(RECORD | {"streams": 3}).encode() + b"\n",
    "streams of numbers": json.dumps(RECORD | {"streams": {"up/model": 3}}).encode() + b"\n",
    "refusals of texts": json.dumps(RECORD | {"refused": {"late": "x"}}).encode() + b"\n",
    "no costs": b'{"round": 1, "accuracy": 0.5}\n',
    "a long name": json.dumps(RECORD | {"x" * 1000: 1}).encode() + b"\n",
    "many metrics": json.dumps(RECORD | {f"metric {n}": n for n in range(1000)}).encode() + b"\n",
    "a bad line before good ones": b"7\n" + json.dumps(RECORD).encode() + b"\n",
    "a name of half a character": json.dumps(RECORD | {".textContent='\ud800'": 0.5}).encode() + b"\n",
    "half a character and a text": json.dumps(RECORD | {"\ud800": "x"}).encode() + b"\n",
    "a name that controls a terminal": json.dumps(RECORD | {"\x1b[2J\x1b]0;x\x07": "x"}).encode() + b"\n",
    "a line without end": b'{"round":' + b" " * 100_000_000,
}
CONFIGS: dict[str, bytes] = {
    "no algorithm": b'algorithm = 7\ndataset = "digits"\n',
    "a date": b'algorithm = "fed_avg"\ndataset = 1979-05-27\n',
    "a data set that is a list": b'algorithm = "fed_avg"\ndataset = ["digits"]\n',
    "a deep config": b"a = " + b"[" * 5000 + b"]" * 5000,
    "a deep table": b".".join([b"a"] * 5000) + b" = 1",
    "nested lists": b'algorithm = "fed_avg"\ndataset = "digits"\nx = [[[1]]]\n',
    "a compressor that is a number": b'algorithm = "fed_cams"\ndataset = "digits"\n[uplink]\ncompressor = 7\n',
    "a fraction of nothing": b'algorithm = "fed_cams"\ndataset = "digits"\n[uplink]\ncompressor = "top_k:1/0"\n',
    "a config that is not UTF-8": b"\xff",
    "a huge number of clients": b'algorithm = "fed_avg"\ndataset = "digits"\nclients = 0x' + b"f" * 5000 + b"\n",
    "a list of huge numbers": b'algorithm = "fed_avg"\ndataset = "digits"\nx = [0x' + b"f" * 5000 + b"]\n",
}
TABLES: dict[str, bytes] = {
    "a long field": b'client,accuracy\n0,"' + b"1\n" * 100_000 + b'"\n',
    "many clients": b"client,accuracy\n" + b"0,1\n" * 600_000,
    "an empty table": b"",
}
MATRICES: dict[str, bytes] = {
    "an empty matrix": b"[]",
    "a matrix of texts": b'[["<img>"]]',
    "a ragged matrix": b"[[1, 2], [1]]",
    "a matrix that is a number": b"1",
    "a matrix that is an object": b'{"a": 1}',
}
NAMES = {
    "names that are no object": b"[1]",
    "names that are a number": b'{"clients": 1}',
    "names of numbers": b'{"classes": [1, 2]}',
    "names that are cut off": b'{"classes": ["a',
}


def copies(finished: Path, folder: Path) -> tuple[Path, dict[str, Path]]:
    """A good run, and bad ones by what is wrong with them."""
    good = folder / "good"
    shutil.copytree(finished / "avg", good, ignore=shutil.ignore_patterns("*.html", "checkpoint*"))
    bad = {name: folder / name for name in (*METRICS, *CONFIGS, *MATRICES, *TABLES, *NAMES)}
    bad |= {name: folder / name for name in ("a pipe", "a folder", "a device", "a config that is a pipe")}
    for path in bad.values():
        shutil.copytree(good, path)
    for contents, file in (
        *((METRICS, "metrics.jsonl"), (CONFIGS, "config.toml")),
        *((MATRICES, "label_counts.json"), (TABLES, "client_metrics.csv"), (NAMES, "names.json")),
    ):
        for name, content in contents.items():
            (bad[name] / file).write_bytes(content)
    for name, file in (("a pipe", "metrics.jsonl"), ("a config that is a pipe", "config.toml")):
        (bad[name] / file).unlink()
        os.mkfifo(bad[name] / file)
    (bad["a folder"] / "metrics.jsonl").unlink()
    (bad["a folder"] / "metrics.jsonl").mkdir()
    (bad["a device"] / "metrics.jsonl").unlink()
    (bad["a device"] / "metrics.jsonl").symlink_to("/dev/zero")
    return good, bad


@pytest.fixture(scope="module")
def mixed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder with one good run and many bad ones, and the names of the bad ones."""
    folder = tmp_path_factory.mktemp("mixed")
    _, bad = copies(finished, folder)
    return folder, {*bad}


# A setting that nobody knows is shown like any other.
HARMLESS = {"a fraction of nothing"}


def test_bad_runs_are_left_out_by_name(mixed: tuple[Path, set[str]], tmp_path: Path, capsys: Any) -> None:
    folder, bad = mixed
    skipped = report([folder], tmp_path / "page.html")
    assert {Path(path).name for path in skipped} == bad - HARMLESS
    assert all(reason and reason.isprintable() and len(reason) <= 200 for reason in skipped.values())
    files = {"label_counts.json": MATRICES, "names.json": NAMES}
    assert all(file in skipped[str(folder / name)] for file, contents in files.items() for name in contents)
    plot([folder], tmp_path / "plot.svg")
    told = capsys.readouterr().out
    assert all(f"skipped '{folder / name}', which cannot be read" in told for name in bad - HARMLESS)
    data = Watched(folder).data()
    assert {Path(path).name for path in data["unreadable"]} == bad - HARMLESS
    assert {Path(run["path"]).name for run in data["runs"]} == {"good"} | HARMLESS


def test_the_policy_does_not_depend_on_the_runs(finished: Path) -> None:
    data = gather([finished / "avg"])
    data["runs"][0]["label"] = ".textContent='\ud800' POLICY /*DATA*/ <style>x</style>"
    plain, strange = (
        html(each).partition('"Content-Security-Policy"')[2].partition(">")[0]
        for each in (gather([finished / "avg"]), data)
    )
    assert strange == plain


def test_numbers_that_no_chart_shows_are_gaps(finished: Path, tmp_path: Path) -> None:
    good, _ = copies(finished, tmp_path)
    lines = [RECORD | {"round": number, "simulated_seconds": 1.5} for number in range(1, 8)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    text = text.replace('"loss": 1.0', '"loss": NaN', 1).replace('"loss": 1.0', '"loss": -Infinity', 1)
    (good / "metrics.jsonl").write_text(text.replace('"loss": 1.0', '"loss": 1e999', 1))
    run = read_run(good)
    assert run["evaluations"]["loss"] == [None] * 3 + [1.0] * 4
    assert "NaN" not in html(gather([good])).rpartition('id="data"')[2].partition("</script>")[0]


LONG = """
import resource, sys
from pathlib import Path
from laconic.report.reading import read_run
run = read_run(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run = read_run(Path(sys.argv[2]))
print(run["rounds"], len(run["evaluations"]["round"]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("rounds", [60_000, pytest.param(300_000, marks=pytest.mark.long)])
def test_a_long_run_is_read_in_little_memory(finished: Path, tmp_path: Path, rounds: int) -> None:
    long = tmp_path / "long"
    shutil.copytree(finished / "avg", long)
    record = json.loads((finished / "avg/metrics.jsonl").read_text().splitlines()[1])
    with (long / "metrics.jsonl").open("w") as file:
        for number in range(1, rounds + 1):
            file.write(json.dumps(record | {"round": number, "accuracy": number / 1e6}) + "\n")
    command = [sys.executable, "-c", LONG, str(finished / "avg"), str(long)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, points, kilobytes = map(int, done.stdout.split())
    assert (read, points) == (rounds, 400)
    assert kilobytes < 60_000


HTML = "<img src=x onerror=alert(1)><a href='https://example.org'>k</a>%{y}&amp;<b>"


@pytest.fixture
def strange(finished: Path, tmp_path: Path) -> Path:
    """Runs whose names, settings and keys are HTML."""
    folder = tmp_path / "<script>alert(2)</script>"
    for number, name in enumerate(("plain", "</script><script>alert(3)</script>".replace("/", "\N{FRACTION SLASH}"))):
        run = folder / name
        shutil.copytree(finished / "sign", run)
        config = (run / "config.toml").read_text().replace('dataset = "digits"', f'dataset = "{HTML}"')
        (run / "config.toml").write_text(config + f'\n["{HTML}"]\n"</script>" = "{HTML}{number}"\n')
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line["streams"][HTML] = line["streams"]["__proto__"] = {"packets": 1, "bytes": 100, "paper_bits": 1}
            if "accuracy" in line:
                line |= {HTML: 0.5, "__proto__": 0.5, "constructor": 0.25}
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bad = folder / f"{HTML.replace('/', '')}bad"
    shutil.copytree(finished / "avg", bad)
    (bad / "metrics.jsonl").write_text("7\n")
    return folder


def check(page: Any) -> None:
    """Every text is shown as it is; nothing of it became an element."""
    page.wait_for_selector("#streams .main-svg")
    for metric in page.locator("#metric option").evaluate_all("all => all.map((option) => option.value)"):
        page.select_option("#metric", metric)
    page.select_option("#metric", HTML)
    for stream in ("share", "log", "linear"):
        page.select_option("#streams-scale", stream)
    elements = "img, a[href*=example], script:not([id=data]):not(:not([src])), iframe, b"
    assert page.locator(elements).count() == 0
    # Plotly draws texts as SVG: links and bold words would be elements of it, too.
    assert page.evaluate("[...document.querySelectorAll('svg a, svg tspan[style*=bold]')].length") == 0
    assert HTML in page.locator("#curves .ytitle").text_content()
    assert HTML[:20] in page.locator("#streams .annotation").first.text_content()
    assert HTML in page.inner_text("#runs") and HTML[:20] in page.inner_text("#headline")
    assert HTML.rpartition("/")[2] in page.inner_text("#facts"), "the data set, without its folder"
    assert "cannot be read: " in page.inner_text("#summary") and "onerror=alert(1)" in page.inner_text("#summary")
    assert page.troubles == []


def test_html_in_a_report_is_text(page: Any, strange: Path, tmp_path: Path) -> None:
    page.on("dialog", lambda dialog: page.troubles.append(dialog.message))
    report([strange], tmp_path / "page.html")
    page.goto((tmp_path / "page.html").as_uri())
    check(page)


def test_html_on_the_live_page_is_text(page: Any, strange: Path) -> None:
    page.on("dialog", lambda dialog: page.troubles.append(dialog.message))
    with served(strange) as address:
        page.goto(address)
        check(page)


def test_the_policy_stops_a_script_that_got_in(page: Any, finished: Path, tmp_path: Path) -> None:
    """Should a text ever become HTML, it still runs nothing, loads nothing and sends nothing."""
    report([finished / "avg"], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    policy = text.partition('"Content-Security-Policy"')[2].partition(">")[0]
    assert "default-src 'none'" in policy and "unsafe-inline" not in policy and "unsafe-eval" not in policy
    attack = (
        "<script>window.ran = 1</script><p id=attack onclick='window.ran = 2'>x</p><style>#attack {color: red}</style>"
    )
    (tmp_path / "page.html").write_text(text.replace("<body>", f"<body>{attack}"))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("#curves .main-svg")
    page.click("#attack")
    assert page.evaluate("window.ran") is None
    assert page.evaluate("getComputedStyle(document.getElementById('attack')).color") != "rgb(255, 0, 0)"
    sent = "fetch('https://example.org').then(() => 'sent', () => 'stopped')"
    assert page.evaluate(sent) == "stopped"
    assert sum("Content Security Policy" in trouble for trouble in page.troubles) >= 4


def get(address: str, path: str = "/", **headers: str) -> tuple[int, dict[str, str]]:
    host, _, port = address.removeprefix("http://").partition("/")[0].rpartition(":")
    connection = HTTPConnection("127.0.0.1", int(port), timeout=30)
    connection.request("GET", path, headers={"Host": f"{host}:{port}"} | headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}


def test_beyond_this_machine_the_page_needs_its_token(finished: Path) -> None:
    with served(finished, "0.0.0.0") as address:
        token = address.partition("?token=")[2]
        assert len(token) >= 40
        for path in ("/", "/data", "/?token=", f"/?token={token[:-1]}", "/?token=%ff", f"/data?Token={token}"):
            assert get(address, path)[0] == 403, path
        status, headers = get(address, f"/?token={token}")
        assert status == 303 and headers["location"] == "/" and token not in headers["location"]
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        cookie = cookie.partition(";")[0]
        for path in ("/", "/data"):
            status, headers = get(address, path, Cookie=cookie)
            assert status == 200 and headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
        for bad in (cookie[:-1], cookie.partition("=")[0], "\x00;=,", "a" * 5000):
            assert get(address, Cookie=bad)[0] == 403
        # The token does not help a page elsewhere whose name points here.
        for host in ("runs.example.org", "runs.example.org:80", "", "[", "127.0.0.1.example.org"):
            assert get(address, f"/?token={token}", Host=host)[0] == 403, host
        for host in ("127.0.0.1", "10.1.2.3:8642", "[::1]:80", "localhost"):
            assert get(address, Cookie=cookie, Host=host)[0] == 200, host


def test_on_this_machine_no_token_is_needed(finished: Path) -> None:
    with served(finished) as address:
        assert "token" not in address
        assert get(address)[0] == 200
        assert get(address, Host="runs.example.org")[0] == 403


def test_a_browser_keeps_the_token_out_of_the_address(page: Any, finished: Path) -> None:
    with served(finished, "0.0.0.0") as address:
        page.goto(f"http://127.0.0.1:{address.rpartition(':')[2]}")
        page.wait_for_selector("#curves .main-svg")
        assert "token" not in page.url
        page.wait_for_timeout(2500)  # it has asked for data
        assert "stopped" not in page.inner_text("#summary") and page.troubles == []
