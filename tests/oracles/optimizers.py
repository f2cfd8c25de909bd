"""Server optimizers; y is the mean update (end minus start), so every step is added.

`bias_correction=True` is the code that was published with FedCAMS, for Adam, Yogi, AMSGrad and AMS. Adagrad
has no correction there (and no first moment: b1 = 0 here).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from .problem import Vector


class Optimizer:
    """A rule that turns y into a step."""

    def increment(self, y: Vector) -> Vector:
        raise NotImplementedError

    def step(self, w: Vector, y: Vector) -> Vector:
        return w + self.increment(y)


class SGD(Optimizer):
    """w += b y; with momentum (heavy ball) h = momentum h + y, w += b h."""

    def __init__(self, rate: float = 1.0, momentum: float = 0.0) -> None:
        self.rate = rate
        self.momentum = momentum
        self.h: Vector | float = 0.0

    def increment(self, y: Vector) -> Vector:
        self.h = self.momentum * self.h + y
        return np.asarray(self.rate * self.h)


class LimitedSGD(Optimizer):
    """w += s b y, s <= 1 as large as |s b y|^2 / (4 b r_t) <= limit allows; r_t is the sum of the local rates in round t."""

    def __init__(self, rate: float, limit: float, paths: Iterable[float]) -> None:
        self.rate, self.limit, self.paths = rate, limit, iter(paths)
        self.shortened = 0

    def increment(self, y: Vector) -> Vector:
        step = self.rate * y
        excess = float(step @ step) / (4 * self.rate * next(self.paths))
        if excess <= self.limit:
            return np.asarray(step)
        self.shortened += 1
        return np.asarray(math.sqrt(self.limit / excess) * step)


class _Adaptive(Optimizer):
    """What the adaptive rules share: m = b1 m + (1 - b1) y, and the number of steps taken."""

    def __init__(
        self,
        rate: float = 0.03,
        b1: float = 0.9,
        b2: float = 0.99,
        eps: float = 1e-3,
        bias_correction: bool = False,
    ) -> None:
        self.rate = rate
        self.b1 = b1
        self.b2 = b2
        self.eps = eps
        self.bias_correction = bias_correction
        self.m: Vector | float = 0.0
        self.v: Vector | float = 0.0
        self.vhat: Vector | float = 0.0
        self.t = 0

    def moment(self, y: Vector) -> Vector:
        self.t = self.t + 1
        self.m = self.b1 * self.m + (1 - self.b1) * y
        return np.asarray(self.m)

    def second_moment(self, y: Vector) -> Vector:
        self.v = self.b2 * self.v + (1 - self.b2) * y**2
        return np.asarray(self.v)

    def first_correction(self) -> float:
        return 1 - self.b1**self.t if self.bias_correction else 1.0

    def second_correction(self) -> float:
        return 1 - self.b2**self.t if self.bias_correction else 1.0


class Adagrad(_Adaptive):
    """v += y^2; step b m / (sqrt(v) + eps)."""

    def __init__(self, rate: float = 0.03, b1: float = 0.9, eps: float = 1e-3) -> None:
        super().__init__(rate, b1, eps=eps)

    def increment(self, y: Vector) -> Vector:
        m = self.moment(y)
        self.v = self.v + y**2
        return self.rate * m / (np.sqrt(self.v) + self.eps)


class Adam(_Adaptive):
    """v = b2 v + (1 - b2) y^2; step b m / (sqrt(v) + eps)."""

    def increment(self, y: Vector) -> Vector:
        m = self.moment(y)
        v = self.second_moment(y)
        root = np.sqrt(v) / math.sqrt(self.second_correction())
        return self.rate / self.first_correction() * m / (root + self.eps)


class Yogi(_Adaptive):
    """v -= (1 - b2) sign(v - y^2) y^2; step b m / (sqrt(v) + eps). Published: only the rate corrected."""

    def increment(self, y: Vector) -> Vector:
        m = self.moment(y)
        self.v = self.v - (1 - self.b2) * np.sign(self.v - y**2) * y**2
        rate = self.rate * math.sqrt(self.second_correction()) / self.first_correction()
        return rate * m / (np.sqrt(self.v) + self.eps)


class AMSGrad(_Adaptive):
    """FedCAMS, option 2: vhat = max(vhat, v); step b m / (sqrt(vhat) + eps)."""

    def increment(self, y: Vector) -> Vector:
        m = self.moment(y)
        self.vhat = np.maximum(self.vhat, self.second_moment(y))
        root = np.sqrt(self.vhat) / math.sqrt(self.second_correction())
        return self.rate / self.first_correction() * m / (root + self.eps)


class FedEFAMSGrad(_Adaptive):
    """Fed-EF, Algorithm 1, lines 17 to 19: eps inside the root, no bias correction."""

    def __init__(self, rate: float = 0.03, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> None:
        super().__init__(rate, b1, b2, eps)

    def increment(self, y: Vector) -> Vector:
        m = self.moment(y)
        self.vhat = np.maximum(self.vhat, self.second_moment(y))
        return self.rate * m / np.sqrt(self.vhat + self.eps)


class AMS(_Adaptive):
    """FedCAMS, option 1 (max stabilization): vhat = max(vhat, v, eps); step b m / sqrt(vhat)."""

    def increment(self, y: Vector) -> Vector:
        m = self.moment(y)
        self.vhat = np.maximum(np.maximum(self.vhat, self.second_moment(y)), self.eps)
        root = np.sqrt(self.vhat) / math.sqrt(self.second_correction())
        return self.rate / self.first_correction() * m / root
