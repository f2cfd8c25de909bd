"""Models of linear layers. They flatten any input."""

from __future__ import annotations

import math

from torch import nn

from laconic.models.shapes import Shape


def logistic(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """Multinomial logistic regression; with one output, linear regression."""
    return mlp(input_shape, classes, ())


def mlp(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """Build linear layers with ReLU between them. `sizes` are the hidden sizes."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for size in sizes:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes))
