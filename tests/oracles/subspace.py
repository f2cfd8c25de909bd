"""Training in a random subspace (contenders.md, "subspace"): w_j = base_j + s_j z_h(j) / sqrt(entries per bucket)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .problem import Indices, Problem, Vector


def expand(base: Vector, buckets: Indices, signs: Vector, z: Vector) -> Vector:
    """w = base + P z, one entry after the other."""
    counts = [int(sum(buckets == bucket)) for bucket in range(len(z))]
    w = base.copy()
    for j in range(len(w)):
        w[j] += signs[j] * z[buckets[j]] / np.sqrt(counts[buckets[j]])
    return w


def project(buckets: Indices, signs: Vector, numbers: int, g: Vector) -> Vector:
    """P^T g, the gradient with respect to z."""
    counts = [int(sum(buckets == bucket)) for bucket in range(numbers)]
    result = np.zeros(numbers)
    for j in range(len(g)):
        result[buckets[j]] += signs[j] * g[j] / np.sqrt(counts[buckets[j]])
    return result


def within(problem: Problem, buckets: Indices, signs: Vector, numbers: int) -> Problem:
    """The problem of finding z for the first entries, which the buckets are of; the other entries follow as they are."""
    large = len(buckets)
    base, rest = problem.initial[:large], problem.initial[large:]

    def gradient(client: int, z: Vector, indices: Indices) -> Vector:
        w = np.concatenate([expand(base, buckets, signs, z[:numbers]), z[numbers:]])
        g = problem.gradient(client, w, indices)
        return np.concatenate([project(buckets, signs, numbers, g[:large]), g[large:]])

    return replace(problem, initial=np.concatenate([np.zeros(numbers), rest]), gradient=gradient)
