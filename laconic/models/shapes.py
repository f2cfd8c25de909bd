"""Checks of a model's input shape."""

from __future__ import annotations

from laconic.core.errors import ConfigError

Shape = tuple[int, ...]


def wrong_shape(model: str, shape: Shape, needed: str) -> ConfigError:
    """Return the error for an input shape that a model does not support.

    >>> print(wrong_shape("char_gru", (1, 28, 28), "a sequence length"))
    model 'char_gru' cannot take input of shape 1x28x28: it needs a sequence length
    """
    text = "x".join(map(str, shape)) or "(none)"
    return ConfigError(f"model '{model}' cannot take input of shape {text}: it needs {needed}")


def image_shape(model: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    """Check and return channels, height and width. `smallest` is the smallest supported side."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise wrong_shape(model, shape, f"channels x height x width, each side at least {smallest}")
    channels, height, width = shape
    return channels, height, width
