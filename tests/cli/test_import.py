"""A part in a person's own file, named on the command line: `--import FILE.py`."""

from __future__ import annotations

import tomllib
from pathlib import Path

HALVED = """
import laconic

@laconic.compressor("halved", argument="factor")
class Halved(laconic.Compressor):
    factor: float = 0.5

    def compress(self, x, rng):
        return x * x.dtype.type(self.factor)
"""
BACKWARDS = """
from laconic.algorithms.methods.local_sgd import LocalSGD
from laconic.core.part import part

@part("method", "backwards")
class Backwards(LocalSGD):
    def local(self, cohort):
        return -super().local(cohort)
"""


def test_a_compressor_is_used_stored_and_found_again(forked, small, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HALVED)
    common = ("--rounds", 2, *small, "--json")
    plain = forked("run", "--algorithm", "fed_avg", *common, "--out", "plain")
    label = "fed_avg:compressor=halved:1/4,granularity=layer,memory=false"
    ours = forked("run", "--import", "own.py", "--algorithm", label, *common, "--out", "ours")
    assert (plain.code, ours.code) == (0, 0), ours.stderr
    config = tomllib.loads((tmp_path / "ours/config.toml").read_text())
    assert config["imports"] == [str(tmp_path / "own.py")]
    assert config["uplink"]["compressor"] == "halved:0.25" and config["uplink"]["granularity"] == "layer"
    assert ours.json()["loss"] > plain.json()["loss"], "a quarter of every step"
    again = forked("run", "ours", "--out", "again", "--json")
    assert again.json()["loss"] == ours.json()["loss"], again.stderr
    page = forked("report", ".", "-o", "page.html")
    assert page.code == 0, f"a report reads what it does not know: {page.stderr}"
    assert "halved:0.25" in (tmp_path / "page.html").read_text()
    resumed = forked("run", "ours", "--resume", "--rounds", 3, "--json")
    assert resumed.json()["rounds"] == 3, resumed.stderr


def test_a_method(forked, small, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BACKWARDS)
    common = ("--algorithm", "fed_avg", "--rounds", 3, *small, "--json")
    away = forked("run", "--import", "own.py", "--set", "method.name=backwards", *common)
    assert away.code == 0, away.stderr
    assert away.json()["loss"] > forked("run", *common).json()["loss"]


def test_what_can_be_wrong(forked, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import laconic\n1 / 0\n")
    (tmp_path / "config.toml").write_text('imports = "own.py"\n')
    for arguments, message in (
        (("--import", "absent.py"), f"--import: there is no file '{tmp_path / 'absent.py'}'"),
        (("--import", "broken.py"), f"--import: cannot load '{tmp_path / 'broken.py'}':2: ZeroDivisionError"),
        (("config.toml",), "imports = 'own.py': a list of Python files is allowed"),
    ):
        outcome = forked("run", *arguments)
        assert outcome.code == 2 and message in outcome.stderr, outcome.stderr
        assert outcome.stderr.count("\n") == 1


FAILING = """
import laconic
from neighbor import half

@laconic.compressor("failing")
class Failing(laconic.Compressor):
    how: str = "neighbor"

    def compress(self, x, rng):
        if self.how == "file":
            open("absent")
        if self.how == "call":
            laconic.Levels(x)
        return half(self) if self.how == "neighbor" else x

    def value_bits(self, count, groups):
        return "many"
"""


def test_what_a_persons_own_file_raises_in_a_run_names_its_line(forked, small, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "neighbor.py").write_text("def half(chosen):\n    return chosen / 2\n")
    common = ("run", "--import", "failing.py", "--rounds", 1, *small, "--out", "out", "--compressor")
    for how, place, code in (
        ("neighbor", "neighbor.py:2: TypeError: unsupported operand", "return chosen / 2"),
        ("file", "failing.py:11: FileNotFoundError: [Errno 2] No such file", 'open("absent")'),
        ("call", "failing.py:13: TypeError: Levels.__init__() missing 1", "laconic.Levels(x)"),
    ):
        done = forked(*common, f"failing:how={how}", "--out", how)
        assert done.code == 1
        assert f"error: {place}" in done.stderr and f"\n    {code}\n" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and "LACONIC_TRACEBACK=1" in done.stderr
    whole = forked(*common, "failing:how=file", "--out", "whole", LACONIC_TRACEBACK="1")
    assert whole.stderr.count("Traceback") == 1 and "error: failing.py:11" in whole.stderr, whole.stderr
    ours = forked(*common, "failing:how=bits", "--out", "ours")
    assert ours.code == 1 and "Traceback" in ours.stderr, "no line of the file was on the way: the fault may be ours"


def test_a_model_that_fails_names_its_line(forked, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, batch):\n"
        "        return batch + missing\n"
        "def build():\n"
        "    return Net(64, 10)\n"
        "def broken():\n"
        "    return Nett()\n"
    )
    for function, place in (("build", "at nets.py:4: name 'missing'"), ("broken", "at nets.py:8: NameError: name")):
        done = forked("run", "--model", f"nets.py:{function}")
        assert done.code == 2 and place in done.stderr, done.stderr
