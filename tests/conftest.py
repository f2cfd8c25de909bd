"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import laconic.algorithms.recipes  # noqa: F401  (registers every built-in part before `registry` looks)
from laconic.compression import COMPRESSORS
from laconic.core.part import SLOTS
from laconic.core.user_code import LOADED


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Parts and compressors that a test registers are gone after it."""
    registered = [COMPRESSORS, *SLOTS.values()]
    before, loaded = [dict(names) for names in registered], set(LOADED)
    yield
    LOADED.intersection_update(loaded)
    for names, kept in zip(registered, before, strict=True):
        names.clear()
        names.update(kept)
