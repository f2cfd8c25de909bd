"""A person's own model: `module:function` or `path/to/file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from laconic.errors import ConfigError
from laconic.models.shapes import Shape


def is_own(spelling: str) -> bool:
    """Whether a spelling has the form of a person's own model.

    >>> [is_own(text) for text in ("nets.py:build", "package.nets:build", "mlq:64", "lenet")]
    [True, True, False, False]
    """
    source, colon, function = spelling.rpartition(":")
    return bool(source and colon) and function.isidentifier()


def build_own(spelling: str, input_shape: Shape, classes: int) -> nn.Module:
    """Call the person's function with those of `input_shape` and `classes` that it asks for."""
    source, _, name = spelling.rpartition(":")
    module = _load_file(spelling, Path(source)) if source.endswith(".py") else _load_module(spelling, source)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"model '{spelling}': '{source}' has no function '{name}'")
    arguments = _arguments(spelling, function, {"input_shape": input_shape, "classes": classes})
    try:
        built = function(**arguments)
    except Exception as error:
        raise _failure(spelling, f"'{name}' failed", error) from error
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model '{spelling}': '{name}' returned {type(built).__name__}, not a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in built.parameters()):
        raise ConfigError(f"model '{spelling}': '{name}' returned a module without trainable parameters")
    return built


def _load_module(spelling: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        # A path is the likely wish only if the name itself is missing, not if something that it imports is.
        missing = f"{source}.".startswith(f"{error.name}.")
        hint = " (for a file write path/to/file.py:function)" if missing else ""
        raise ConfigError(f"model '{spelling}': cannot import '{source}': {_one_line(error)}{hint}") from error
    except Exception as error:
        raise _failure(spelling, f"cannot import '{source}'", error) from error


def _load_file(spelling: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"model '{spelling}': there is no file '{path}'")
    # Two files of one name must not share a module, and classes need a registered module to be pickled.
    name = f"laconic_own_{path.stem}_{blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ConfigError(f"model '{spelling}': '{path}' is not a Python file")
    module = importlib.util.module_from_spec(specification)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise _failure(spelling, f"cannot load '{path}'", error) from error
    return module


def _arguments(spelling: str, function: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that the signature takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # Some callables written in C have no signature: they can only be called bare.
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    accepted: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in offered and parameter.kind in by_keyword:
            accepted[parameter.name] = offered[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            allowed = ", ".join(offered)
            raise ConfigError(f"model '{spelling}': parameter '{parameter.name}' has no default; allowed: {allowed}")
    return accepted


def _failure(spelling: str, what: str, error: Exception) -> ConfigError:
    return ConfigError(f"model '{spelling}': {what}: {type(error).__name__}: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
