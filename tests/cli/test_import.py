"""A part in a person's own file, named on the command line: `--import FILE.py`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.cli.conftest import clean_environment

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
    assert config["uplink"]["compressor"] == "halved:1/4" and config["uplink"]["granularity"] == "layer"
    assert ours.json()["loss"] > plain.json()["loss"], "a quarter of every step"
    again = forked("run", "ours", "--out", "again", "--json", "--trust")
    assert again.json()["loss"] == ours.json()["loss"], again.stderr
    page = forked("report", ".", "-o", "page.html")
    assert page.code == 0, f"a report reads what it does not know: {page.stderr}"
    assert "halved:1/4" in (tmp_path / "page.html").read_text()
    resumed = forked("run", "ours", "--resume", "--rounds", 3, "--json", "--import", "own.py")
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


MARKER = "open('ran', 'a').write('x')\n"


def test_code_of_another_persons_config_runs_only_if_it_is_trusted(forked, small, tmp_path: Path) -> None:
    """Whoever sends a run directory must not run code on the machine of whoever repeats it."""
    (tmp_path / "own.py").write_text(HALVED + MARKER)
    (tmp_path / "net.py").write_text(f"from torch import nn\n{MARKER}def build():\n    return nn.Linear(64, 10)\n")
    (tmp_path / "rows.py").write_text(f"{MARKER}def clients():\n    return [1]\n")
    ran = tmp_path / "ran"
    code = {
        'imports = ["own.py"]': "'own.py'",
        'model = "net.py:build"': "'net.py:build'",
        'model = "os:getcwd"': "'os:getcwd'",
        'dataset = "rows.py"': "'rows.py'",
        '[method]\nname = "own_training"\nfunction = "own.py:train"': "'own.py:train'",
        '[method]\nprobability = "own.py:p"': "'own.py:p'",
        'engine = "ray"\n[ray]\naddress = "ray://example.org:10001"': "'ray://example.org:10001'",
        'imports = ["\\u001b[2Kown.py"]': r"'\x1b[2Kown.py'",
    }
    for text, named in code.items():
        (tmp_path / "config.toml").write_text(f"{text}\n")
        commands = (
            ("run", "config.toml"),
            ("tune", "config.toml"),
            ("sweep", "config.toml", "--try", "local_lr=0.1"),
            ("compare", "fed_avg", "--config", "config.toml"),
        )
        for command in commands if "own.py" in named else commands[:1]:
            done = forked(*command)
            assert done.code == 2 and done.stderr.count("\n") == 1, done.stderr
            assert f"'config.toml' runs code of its author: {named}; if you trust it, add --trust" in done.stderr
            assert not ran.exists(), command
    # Values are checked before the question.
    (tmp_path / "config.toml").write_text('imports = ["own.py"]\nrounds = -1\n')
    assert "rounds = -1" in forked("run", "config.toml", "--trust").stderr and not ran.exists()
    # What the command line names itself needs no question.
    (tmp_path / "config.toml").write_text('imports = ["own.py"]\n')
    for allowed in (("--trust",), ("--import", "own.py"), ("--import", str(tmp_path / "own.py"))):
        done = forked("run", "config.toml", *allowed, "--rounds", 1, *small, "--no-report")
        assert done.code == 0 and ran.exists(), done.stderr
        ran.unlink()


def test_a_resumed_run_or_search_names_its_code_again(forked, small, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HALVED + MARKER)
    ran = tmp_path / "ran"
    options = ("--import", "own.py", "--compressor", "halved", "--rounds", 1, *small)
    (tmp_path / "base.toml").write_text("batch_size = 8\n")
    started = {
        "run": ("run",),
        "compare": ("compare", "fed_avg"),
        "sweep": ("sweep", "base.toml", "--try", "local_lr=0.1"),
    }
    for name, command in started.items():
        assert forked(*command, *options, "--out", name).code == 0
        ran.unlink()
        again = ("run", name) if name == "run" else (*command, "--out", name)
        refused = forked(*again, "--resume")
        assert refused.code == 2 and "own.py'; if you trust it, add --trust" in refused.stderr, refused.stderr
        assert not ran.exists()
        for allowed in (("--trust",), ("--import", "own.py")) if name == "run" else (("--trust",),):
            done = forked(*again, "--resume", *allowed)
            assert done.code == 0 and ran.exists(), done.stderr
            ran.unlink()


def test_commands_that_show_runs_never_run_their_code(forked, small, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HALVED + MARKER)
    options = ("--import", "own.py", "--compressor", "halved", "--rounds", 5, "--eval-every", 1, *small)
    assert forked("run", *options, "--out", "runs/a").code == 0
    (tmp_path / "ran").unlink()
    for command in (("report", "runs"), ("plot", "runs"), ("plot", "runs", "--chart", "bytes")):
        done = forked(*command)
        assert done.code == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_person_at_a_terminal_is_asked(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HALVED + MARKER)
    (tmp_path / "config.toml").write_text('imports = ["own.py"]\nrounds = 1\nmodel = "logistic"\n')
    for answer, code in (("n", 2), ("y", 0)):
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "laconic", "run", "config.toml", "--no-report"]
        environment = clean_environment(tmp_path)
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdin=follower, stdout=subprocess.DEVNULL, stderr=follower
        )
        os.close(follower)
        os.write(leader, f"{answer}\n".encode())
        shown = b""
        while True:
            try:
                shown += os.read(leader, 4096)
            except OSError:  # the process has ended
                break
        os.close(leader)
        assert process.wait() == code, shown.decode()
        assert b"runs code of its author: 'own.py'. Run it? [y/N]" in shown
        assert (tmp_path / "ran").exists() == (answer == "y")
