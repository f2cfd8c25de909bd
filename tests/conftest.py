"""Fixtures of all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import laconic.algorithms.recipes  # noqa: F401  (registers every built-in part)
from laconic.compression import COMPRESSORS
from laconic.core.part import SLOTS
from laconic.core.user_code import LOADED

REGISTRIES = [COMPRESSORS, *SLOTS.values()]
BUILT_IN = [dict(registry) for registry in REGISTRIES]
COLLECTED: list[dict[str, type]] = []
"""BUILT_IN, and what modules of tests registered while they were collected."""


def pytest_collection_finish() -> None:
    COLLECTED[:] = [dict(registry) for registry in REGISTRIES]


@pytest.fixture(autouse=True)
def registry(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test sees the built-in parts, those of its own module, and those of the modules that it imports from."""
    test_module = request.node.getparent(pytest.Module)  # None for a doctest
    modules = set() if test_module is None else _modules(vars(test_module.obj))
    loaded = set(LOADED)
    for names, built_in, collected in zip(REGISTRIES, BUILT_IN, COLLECTED, strict=True):
        _replace(names, built_in | {name: cls for name, cls in collected.items() if cls.__module__ in modules})
    yield
    LOADED.intersection_update(loaded)
    for names, collected in zip(REGISTRIES, COLLECTED, strict=True):
        _replace(names, collected)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window. One for all tests: Playwright starts once in a process."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def _modules(namespace: dict[str, object]) -> set[str]:
    """The module of a namespace, and those that define its objects."""
    return {str(namespace["__name__"]), *(getattr(value, "__module__", "") for value in namespace.values())}


def _replace(registry: dict[str, type], names: dict[str, type]) -> None:
    registry.clear()
    registry.update(names)
