"""Bounds and limits have the right units: a misprinted power of L, G or eps shows when models or objectives are rescaled.

If weights are measured in units that are `weight` times smaller, and objectives in units that are `value` times smaller,
then every quantity is multiplied by a known factor. So is a correct bound, term by term.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from laconic.theory import fedcams
from laconic.theory.catalog import THEOREMS
from laconic.theory.formula import evaluate
from laconic.theory.theorem import Theorem
from tests.theory.drawn import drawn

GRADIENT = (-1, 1)
UNITS = {
    **{"L": (-2, 1), "L_sigma": (-2, 1), "mu": (-2, 1), "phi": (-2, 1)},
    **{"G": GRADIENT, "sigma": GRADIENT, "sigma_g": GRADIENT, "G_q": (-2, 2)},
    **{"D": (0, 1), "D_local": (0, 1), "W": (1, 0), "R": (1, 0), "H": (1, 0)},
    "a": (2, -1),
}
"""The powers of a weight and of the objective in each quantity; others are pure numbers."""
ADAPTIVE = {"eps": (2, 0), "b": (1, 0)}
"""An adaptive server divides by root mean squares of updates, so its rate is a length."""
UNIT_OF_BOUND = {"non-convex": (-2, 2), "PL": (0, 1), "convex": (0, 1)}
BELOW_1 = (fedcams.DENSE_V, fedcams.COMPRESSED_V, "b ** (1 / 3)")
"""Limits that use a <= 1 or eps < 1 have no units."""
SCALES = {"weights": (2.0, 1.0), "objective": (1.0, 3.0)}


def scaled(values: dict[str, float], units: dict[str, tuple[int, int]], scale: tuple[float, float]) -> dict[str, float]:
    return {
        name: number * scale[0] ** units.get(name, (0, 0))[0] * scale[1] ** units.get(name, (0, 0))[1]
        for name, number in values.items()
    }


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("theorem", THEOREMS, ids=[f"{theorem.recipes[0]}: {theorem.number}" for theorem in THEOREMS])
def test_units(theorem: Theorem, scale: tuple[float, float]) -> None:
    # The papers set the weight decay phi to a pure number. Here it is given, and has the unit of L.
    theorem = replace(
        theorem,
        constants={name: formula for name, formula in theorem.constants.items() if name != "phi"},
    )
    units = UNITS | (ADAPTIVE if "eps" in " ".join(theorem.terms.values()) else {})
    given = drawn(11) | {"phi": 0.1}
    before, after = theorem.complete(given), theorem.complete(scaled(given, units, scale))
    rate, rounds = given["a"] * 1e-3, 50
    new_rate = rate * scale[0] ** 2 / scale[1]
    first, second = theorem.parts(before, rate, rounds), theorem.parts(after, new_rate, rounds)
    power = UNIT_OF_BOUND[theorem.objective]
    factor = scale[0] ** power[0] * scale[1] ** power[1]
    assert second == pytest.approx({name: factor * part for name, part in first.items()}, rel=1e-9)
    for limit in theorem.limits:
        if not any(part in limit for part in BELOW_1):
            assert evaluate(limit, after) == pytest.approx(evaluate(limit, before) * scale[0] ** 2 / scale[1]), limit
