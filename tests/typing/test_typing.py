"""Public calls are typed: mypy accepts correct ones and reports every wrong line; the lists of keywords are complete."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mypy import api

from laconic.algorithms.parameters import Changes
from laconic.algorithms.recipes import RECIPES
from laconic.core.part import SLOTS
from laconic.flower.deployment import Deployment
from laconic.flower.keywords import DeploymentKeywords, ServerKeywords
from laconic.run.config import RunConfig
from laconic.run.keys import SHORT_NAMES
from laconic.run.keywords import SettingsKeywords
from laconic.run.settings import Settings

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_mypy_accepts_correct_calls_and_reports_every_wrong_line() -> None:
    """One test: two processes of mypy cannot share the cache at the same time."""
    files = [str(HERE / name) for name in ("correct_calls.py", "wrong_calls.py")]
    # With the settings and the cache of `make check`, which has just read the package.
    options = [
        "--no-error-summary",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    output, problems, _ = api.run([*options, *files])
    assert not problems
    found: dict[str, set[int]] = {"correct_calls.py": set(), "wrong_calls.py": set()}
    for name, line in re.findall(r"(\w+_calls\.py):(\d+): error", output):
        found[name].add(int(line))
    lines = (HERE / "wrong_calls.py").read_text().splitlines()
    calls = {number for number, line in enumerate(lines, 1) if line.startswith(("    laconic.", "    server_app("))}
    assert len(calls) > 10
    assert found == {"correct_calls.py": set(), "wrong_calls.py": calls}


def test_the_keywords_of_recipes_are_the_parameters_of_all_parts() -> None:
    assert RECIPES  # the parts in the box are registered by now
    parts = [part for slot in SLOTS.values() for part in slot.values()]
    parameters = {field.name for part in parts for field in dataclasses.fields(part)}
    assert Changes.__annotations__.keys() == parameters | SLOTS.keys()


def test_the_keywords_of_simulate_are_the_settings() -> None:
    assert SettingsKeywords.__annotations__.keys() == Settings.model_fields.keys()


def test_the_keywords_of_server_app_are_taken_by_it() -> None:
    assert DeploymentKeywords.__annotations__.keys() == Deployment.model_fields.keys()
    taken = RunConfig.model_fields.keys() | Deployment.model_fields.keys() | SHORT_NAMES.keys()
    assert ServerKeywords.__annotations__.keys() - Changes.__annotations__.keys() <= taken


def test_the_keywords_allow_every_value_that_the_settings_list() -> None:
    annotations = {key: field.annotation for key, field in (Settings.model_fields | Deployment.model_fields).items()}
    for short, key in SHORT_NAMES.items():
        table, name = key.split(".")
        if table not in SLOTS:
            annotations[short] = Settings.model_fields[table].annotation.model_fields[name].annotation
    keywords = get_type_hints(ServerKeywords)
    listed = {key: strings(annotation) for key, annotation in annotations.items() if key in keywords}
    assert listed["dtype"] == {"float32", "float64", "bfloat16"}
    for key, values in listed.items():
        allowed = strings(keywords[key])
        assert str in allowed or values <= allowed, key


def strings(annotation: Any) -> set[Any]:
    """The values that the `Literal`s of a type list, and `str` if the type has any string."""
    if isinstance(annotation, str) or annotation is str:
        return {annotation}
    return set().union(*map(strings, get_args(annotation)))
