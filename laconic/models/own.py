"""Users' own models: `module:function` or `path/to/file.py:function`."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from laconic.core.errors import ConfigError
from laconic.core.user_code import blamed, failure, load_function
from laconic.models.shapes import Shape


def build_own(spelling: str, input_shape: Shape, classes: int) -> nn.Module:
    """Call the user's function with those of `input_shape` and `classes` that it accepts."""
    name = spelling.rpartition(":")[2]
    function = load_function(spelling, f"model '{spelling}'")
    arguments = _arguments(spelling, function, {"input_shape": input_shape, "classes": classes})
    try:
        built = function(**arguments)
    except Exception as error:
        own = blamed(error)
        raise failure(f"model '{spelling}': '{name}' failed{f' at {own[0]}' if own else ''}", error) from error
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model '{spelling}': '{name}' returned {type(built).__name__}, not a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in built.parameters()):
        raise ConfigError(f"model '{spelling}': '{name}' returned a module without trainable parameters")
    return built


def _arguments(spelling: str, function: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """Select the offered arguments that the signature accepts."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # Some callables written in C have no signature: call them without arguments.
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
