"""Sparse levels on a budget: the step follows from the number of entries that may differ from zero.

Both compressors send the positions of the entries that are not zero, and their levels, entropy-coded.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field

from laconic.compression import groups
from laconic.compression.body import Floats
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.compressors.quantized import representable, round_to_kept
from laconic.compression.entropy import BLOCK, blocks
from laconic.compression.forms import Form, Kept, Levels, Signs
from laconic.compression.gap_coding import Positions
from laconic.compression.groups import Bounds, spans
from laconic.compression.selection import largest, peak

_MOST_LEVELS = 2**14
"""The largest magnitude has at most this level, however large the budget is."""

_DEAD = 0.6
"""The dead zone in steps, to each side of zero. Above 1/2, so that every entry that is sent reduces the error."""


def _whole_count(budget: float) -> float:
    if budget > 1 and budget != int(budget):
        raise ValueError("must be a share of the entries, at most 1, or a whole number of entries")
    return budget


Budget = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_whole_count)]
"""The number of non-zero entries of a group: a share of its entries if at most 1, otherwise a count."""
_FEWEST = 64
"""The least `auto` budget of 256 entries or more: fewer would save little, since a packet has about 30 other bytes."""


def _least(size: int) -> int:
    """The least `auto` budget: 64, or a quarter of fewer than 256 entries."""
    return min(_FEWEST, math.ceil(size / 4))


class Budgeted(Compressor):
    """The base of both: k is the budget for a group of d entries, at least 1 and at most d."""

    budget: Budget | Literal["auto"]
    sparse = True
    exact = False

    def forms(self, entries: Floats, bounds: Bounds, rng: np.random.Generator) -> list[Form]:
        found = [self.levels(entries[start:end], rng) for start, end in spans(bounds)]
        if all((np.abs(levels) == 1).all() for _, levels, _ in found):  # then signs are shorter
            return [Kept(positions, Signs(levels < 0, step)) for positions, levels, step in found]
        return [Kept(positions, Levels(levels, step)) for positions, levels, step in found]

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        return self.forms(x, np.array([0, len(x)]), rng)[0]

    def levels(self, x: Floats, rng: np.random.Generator) -> tuple[Positions, Floats, float]:
        """The positions of the levels that are not zero, these levels, and the step of one group."""
        raise NotImplementedError

    def kept(self, size: int) -> int:
        if self.budget == "auto":
            return max(_least(size), self.automatic(size))
        return groups.kept(self.budget, size) if self.budget <= 1 else min(int(self.budget), size)

    def automatic(self, size: int) -> int:
        """The `auto` budget of a large group."""
        raise NotImplementedError

    def value_bits(self, count: int, groups: int) -> int:
        """A sign per kept entry, and 32 per group for its step."""
        return count + 32 * groups


@compressor("stochastic", argument="budget")
class Stochastic(Budgeted):
    """step sign(x) level, with level = |x| / step rounded stochastically: unbiased, and k levels are not zero on average.

    The step solves sum(min(1, |x| / step)) = k. While all |x| are below the step, no unbiased code with k nonzero
    levels has less variance (Wangni et al., 2018); larger entries have levels above 1 instead of exact values.
    omega = max(d/k - 1, 1/2). `auto` is max(64, d / (8 n)) for n participants: the mean of n packets then has a
    relative variance of at most about 8. Below 256 entries d / 4 replaces 64. With error feedback, and in a mirrored
    downlink, `dead_zone` with the same budget (or its own `auto`) replaces it.
    """

    budget: Budget | Literal["auto"] = "auto"
    """The number of nonzero entries of a group: a share of its entries if at most 1, otherwise a count."""
    participants: Annotated[int, Field(ge=1)] | None = None
    """n of the `auto` budget; by default the number of participants of the round."""
    biased = False
    contractive = False

    def automatic(self, size: int) -> int:
        return size // (8 * (self.participants or 1))

    def for_participants(self, count: int) -> Self:
        return self.replace(participants=count) if self.budget == "auto" and self.participants is None else self

    def levels(self, x: Floats, rng: np.random.Generator) -> tuple[Positions, Floats, float]:
        step = representable(self._step(x), x.dtype)
        return *round_to_kept(x, step, _MOST_LEVELS, rng, self.kept(len(x))), step

    def _step(self, x: Floats) -> float:
        highest = peak(x)
        if highest == 0:
            return 0.0
        k = self.kept(len(x))
        # With the s largest entries above the step, 1 / step = (k - s) / (the sum of the others). s is at most k.
        top = np.sort(np.abs(x[largest(x, k)]).astype(np.float64) / highest)[::-1]
        others = _total(x, highest) - np.append(0.0, np.cumsum(top)[:-1])
        below = np.flatnonzero(top * (k - np.arange(k)) < others)
        step = others[below[0]] / (k - below[0]) if len(below) else 0.0
        return highest * float(max(step, 1 / _MOST_LEVELS))

    def omega(self, size: int) -> float:
        """max(d/k - 1, 1/2): entries below the step give at most d/k - 1, larger ones at most 1/8 of their square."""
        return max(size / self.kept(size) - 1, 0.5)

    def scaled_for_feedback(self) -> Compressor:
        """The deterministic form, which is contractive."""
        return DeadZone(self.budget)


def _total(x: Floats, highest: float) -> float:
    """The sum of |x| / highest, in the order in which NumPy sums a whole vector: float32 in pieces, float64 at once."""
    if x.dtype == np.float64:
        return float((np.abs(x) / highest).sum())
    total, buffer = np.float64(0), np.empty(min(BLOCK, len(x)), dtype=x.dtype)
    for start, end in blocks(len(x)):
        block = np.abs(x[start:end], out=buffer[: end - start])
        block /= highest
        total = np.add.reduce(block, dtype=np.float64, initial=total)
    return float(total)


@compressor("dead_zone", argument="budget")
class DeadZone(Budgeted):
    """step sign(x) floor(|x| / step + 0.4), with the step t / 0.6, where t is the k-th largest magnitude.

    Entries below t are zero, as in top_k. The others are rounded to a multiple of the step. q^2 <= 1 - 5/9 k/d. `auto` is
    max(64, d / 40), or d / 4 below 256 entries.
    """

    budget: Budget | Literal["auto"] = "auto"
    """The number of nonzero entries of a group: a share of its entries if at most 1, otherwise a count."""

    def automatic(self, size: int) -> int:
        return size // 40

    def levels(self, x: Floats, rng: np.random.Generator) -> tuple[Positions, Floats, float]:
        positions = largest(x, self.kept(len(x)))
        highest = peak(x[positions])
        relative = np.abs(x[positions]).astype(np.float64) / (highest or 1.0)
        sent = relative >= _DEAD / _MOST_LEVELS
        positions, relative = positions[sent], relative[sent]
        if not len(positions):
            return positions, np.zeros(0), 0.0
        step = max(float(relative.min()) / _DEAD, 1 / _MOST_LEVELS)
        levels = np.maximum(np.floor(relative / step + (1 - _DEAD)), 1)  # the smallest may be rounded to just below 1
        return positions, np.copysign(levels, x[positions]), representable(highest * step, x.dtype)
