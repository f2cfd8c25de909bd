"""A person's own functions, named on the command line or in a config: `path/to/file.py:function` or `module:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from laconic.errors import ConfigError


def is_own(spelling: str) -> bool:
    """Whether a spelling has the form of a person's own function.

    >>> [is_own(text) for text in ("nets.py:build", "package.nets:build", "mlq:64", "lenet")]
    [True, True, False, False]
    """
    source, colon, function = spelling.rpartition(":")
    return bool(source and colon) and function.isidentifier()


def load_function(spelling: str, key: str) -> Callable[..., Any]:
    """The function of that spelling; every failure is one line that begins with the config's `key`."""
    if not is_own(spelling):
        raise ConfigError(f"{key}: '{spelling}': write path/to/file.py:function or module:function")
    source, _, name = spelling.rpartition(":")
    module = load_file(Path(source), key) if source.endswith(".py") else _load_module(source, key)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{key}: '{source}' has no function '{name}'")
    return function  # type: ignore[no-any-return]


def load_file(path: Path, key: str) -> ModuleType:
    """Import a file by its path."""
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file '{path}'")
    # Two files of one name must not share a module, and classes need a registered module to be pickled.
    name = f"laconic_own_{path.stem}_{blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ConfigError(f"{key}: '{path}' is not a Python file")
    module = importlib.util.module_from_spec(specification)
    before = sys.modules.get(name)
    sys.modules[name] = module
    # Files next to it can be imported while it loads, as if it had been started by name.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise failure(f"{key}: cannot load '{path}'", error) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def failure(what: str, error: Exception) -> ConfigError:
    """A person's exception as one line."""
    return ConfigError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}")


def _load_module(source: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        # A path is the likely wish only if the name itself is missing, not if something that it imports is.
        missing = f"{source}.".startswith(f"{error.name}.")
        hint = " (for a file write path/to/file.py:function)" if missing else ""
        raise ConfigError(f"{key}: cannot import '{source}': {' '.join(str(error).split())}{hint}") from error
    except Exception as error:
        raise failure(f"{key}: cannot import '{source}'", error) from error
