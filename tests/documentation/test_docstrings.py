"""Public methods have a docstring, of their own or of the method that they override."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

import laconic

MODULES = [
    module.name for module in pkgutil.walk_packages(laconic.__path__, "laconic.") if "__main__" not in module.name
]


def undocumented(module: object) -> Iterator[str]:
    for name, cls in vars(module).items():
        if not inspect.isclass(cls) or cls.__module__ != module.__name__ or name.startswith("_"):
            continue
        for method, value in vars(cls).items():
            value = getattr(value, "__func__", value)
            if isinstance(value, property):
                value = value.fget
            if not inspect.isfunction(value) or method.startswith("_") or value.__module__ != module.__name__:
                continue
            # inspect.getdoc looks at the overridden method, too.
            if not inspect.getdoc(getattr(cls, method)):
                yield f"{name}.{method}"


@pytest.mark.parametrize("name", MODULES)
def test_public_methods_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert [*undocumented(module)] == []
