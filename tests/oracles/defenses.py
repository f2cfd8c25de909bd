"""Defenses in aggregation, literally: Yin et al. (2018), Definitions 1 and 2; McMahan et al. (2018), Algorithm 1."""

from __future__ import annotations

import math

import numpy as np

from .problem import Vector


def clipped(u: Vector, length: float) -> Vector:
    """u / max(1, ||u|| / S)."""
    norm = math.sqrt(sum(float(x) ** 2 for x in u))
    return np.asarray(u / max(1.0, norm / length))


def median(updates: list[Vector]) -> Vector:
    """The usual one-dimensional median, in every coordinate."""
    result = []
    for j in range(len(updates[0])):
        values = sorted(float(u[j]) for u in updates)
        n = len(values)
        result.append(values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2)
    return np.array(result)


def trimmed_mean(updates: list[Vector], beta: float) -> Vector:
    """The mean of what is left once the largest and the smallest beta fraction of each coordinate are removed."""
    result = []
    for j in range(len(updates[0])):
        values = sorted(float(u[j]) for u in updates)
        b = math.floor(beta * len(values) + 1e-9)
        left = values[b : len(values) - b]
        result.append(sum(left) / len(left))
    return np.array(result)


def private_mean(updates: list[Vector], length: float, noise: Vector, expected: int) -> Vector:
    """(sum of clipped updates + z S N(0, 1)) / qN; `noise` is z S N(0, 1) as it was drawn."""
    total = sum((clipped(u, length) for u in updates), np.zeros_like(noise))
    return np.asarray((total + noise) / expected)
