"""Help, version and shell completion do not wait for torch; the declarations of commands agree with what they call."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module

import pytest
import typer

from laconic import models
from laconic.algorithms.recipes import RECIPES
from laconic.cli import completion
from laconic.cli.app import app
from laconic.cli.options import PANELS, field_of
from laconic.compression import COMPRESSORS
from laconic.core.part import SLOTS
from laconic.data.partition import parse_partition
from laconic.data.sources import SOURCES
from laconic.federation.settings import Defenses
from laconic.run.keys import SHORT_NAMES, PartParameters

COMMANDS = typer.main.get_command(app).commands
SLOW = {"torch", "numba", "numpy", "ray", "flwr", "matplotlib", "laconic.algorithms.algorithm"}
PROGRAM = """
import sys
try:
    from laconic.cli import main
    sys.argv = ["laconic", *sys.argv[1:]]
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def start(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it has imported."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.split())


def complete(*words: str) -> tuple[list[str], set[str]]:
    line = " ".join(["laconic", *words])
    shown, imported = start(_LACONIC_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    return shown.split(), imported


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join
)
def test_help_and_version_do_not_import_torch(arguments: list[str]) -> None:
    shown, imported = start(*arguments)
    assert shown
    assert imported & SLOW == set()


def test_a_misspelled_option_is_refused_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "run", "--rouns", "3"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is no option '--rouns': did you mean '--rounds'?" in done.stderr
    assert set(done.stderr.split()) & SLOW == set()


def test_importing_laconic_does_not_import_torch() -> None:
    program = "import sys, laconic; laconic.__all__, laconic.__version__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & SLOW == set()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["co"], ["compare"]),
        (["run", "--batch-"], ["--batch-size", "--batch-order"]),
        (["run", "--dataset", "fa"], ["fashion-mnist"]),
        (["run", "--store", ""], ["memory", "disk"]),
        (["compare", "fed_com"], ["fed_com", "fed_comgate"]),
    ],
    ids=str,
)
def test_the_shell_completes_without_torch(words: list[str], expected: list[str]) -> None:
    shown, imported = complete(*words)
    assert shown == expected
    assert imported & SLOW == set()


def test_completion_can_be_installed(tmp_path) -> None:
    # Where no shell is among the parent processes, such as in a background job, the shell is named instead of detected.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown, _ = start("--install-completion", "bash", HOME=str(tmp_path), **named)
    assert "completion installed" in shown
    assert "_LACONIC_COMPLETE" in (tmp_path / ".bash_completions" / "laconic.sh").read_text()


def test_completed_names_are_those_of_the_registries() -> None:
    assert completion.algorithms() == sorted(RECIPES)
    assert set(completion.DATASETS) == set(SOURCES)
    assert set(completion.MODELS) == {info.name for info in models.models()}
    assert set(completion.COMPRESSORS) == COMPRESSORS.keys() - {"chain"}
    assert set(completion.UPLINKS) == SLOTS["uplink"].keys()
    assert set(completion.DOWNLINKS) == SLOTS["downlink"].keys()
    for name in completion.PARTITIONS:
        parse_partition(name + {"shards": ":2", "dirichlet": ":0.3"}.get(name, ""))
    for name in completion.AGGREGATES:
        Defenses(aggregate=name + {"trimmed_mean": ":0.1"}.get(name, ""))


@pytest.mark.parametrize("registered", app.registered_commands, ids=lambda each: each.callback.__name__)
def test_a_command_declares_the_parameters_of_its_implementation(registered: typer.models.CommandInfo) -> None:
    declaration = inspect.unwrap(registered.callback)
    implementation = getattr(import_module(f"laconic.cli.{declaration.implemented_in}"), declaration.__name__)
    assert [*inspect.signature(implementation).parameters] == [*inspect.signature(declaration).parameters]


def test_every_option_has_its_help_from_a_key_of_the_config() -> None:
    for names in PANELS.values():
        for name in names:
            text = field_of(name).description
            assert text and text[0].isupper() and len(text.split()) <= 25, name
    shown = {name for names in PANELS.values() for name in names}
    assert set(SHORT_NAMES) - shown == {"vmap_width"}
    assert set(PartParameters.model_fields) <= shown & set(SHORT_NAMES)
    for command in COMMANDS.values():
        for parameter in command.params:
            # Typer loses the help of arguments with some releases of Click.
            assert parameter.param_type_name == "argument" or parameter.help, (command.name, parameter.name)
