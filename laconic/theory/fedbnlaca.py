"""Theorems of FedBNLACA's paper: lazy and accelerated aggregation, with compression, one way and both ways.

The statements do not follow from their proofs. Their last step divides by eta eta_l K; except in Theorems 4.1 and 4.2
some terms are then divided by the server's rate twice, and those of the downlink not at all. The entries divide every
term once. Without a threshold they are then those of FedCAMS, on which the paper builds. In Theorems 4.1 and 4.2 the
statement is the last line of the proof, whose noise is four times and whose skipping is twice that of the line before:
the sum 3 eta^2 L / 2 + ... is doubled, but what it multiplies is not halved. Theorems 4.3 and 4.4 print twice the
noise, and 2 K^2 instead of K in the skipping. The entries have the terms of the sum that the proof divides. Some terms
of the proofs have powers of G, L and eps whose units cannot be right; the comments below say which, and what the line
before gives. For accelerated aggregation the threshold h is 1 (Remarks 4.1, 4.3 and 4.5).
"""

from __future__ import annotations

from dataclasses import replace

from laconic.theory import fedcams
from laconic.theory.theorem import Theorem

PAPER = "FedBNLACA's paper"
VANISHING = "The corollary's order leaves out the terms with h, gamma and H, which do not vanish."
READING = f"Terms as in the proof: the statement counts the server's rate twice. {VANISHING}"
FLOOR_READING = "The last term has G^2 / sqrt(eps) as in the proof, where the paper prints G / eps."
FULL_SKIPPING = (
    "Noise and skipping as in the sum of the proof; its last line and the statement have four times the noise, and twice the"
    f" skipping. {VANISHING} {FLOOR_READING}"
)
PARTIAL_SKIPPING = f"{READING} It also prints twice the noise, and 2 K^2 for K in the skipping. {FLOOR_READING}"
MODEL = f"{READING} Terms of the downlink are divided by a b K, and have the powers that their units demand."
# The proof bounds sqrt(2) eta |grad f| / sqrt(eps) by G, and the mean of skipped changes by h eta_l K G.
FLOOR = "sqrt(2) * G ** 2 * h / sqrt(eps)"
"""What skipping costs in every round. It does not vanish with more rounds."""

LAZY_FULL = replace(
    fedcams.AMS_FULL,
    paper=PAPER,
    number="Theorem 4.1",
    recipes=("fed_nlaa",),
    defaults={**fedcams.FULL, "h": "0"},
    terms={
        **fedcams.AMS_FULL.terms,
        "similar updates": f"S * a * K * h ** 2 * G ** 2 / eps + {FLOOR}",
    },
    corollary="Corollary 4.1",
    reading=FULL_SKIPPING,
)

LAZY_PARTIAL = replace(
    fedcams.AMS_PARTIAL,
    paper=PAPER,
    number="Theorem 4.3",
    recipes=("fed_nlaa",),
    defaults={**fedcams.PARTIAL, "h": "0"},
    limits=("1 / (8 * K * L)", f"n * (N - 1) * eps / (48 * N * (n - 1) * K * {fedcams.DENSE_V} * S)"),
    terms={
        **fedcams.AMS_PARTIAL.terms,
        "similar updates": f"S * a * K * h ** 2 * G ** 2 / eps + {FLOOR}",
    },
    corollary="Corollary 4.2",
    reading=PARTIAL_SKIPPING,
)

_SKIPS = "sqrt(12 * q ** 2 / (1 - q ** 2) ** 2 + (1 - q ** 2) ** 2 * ratio(h, q) ** 2)"
_C2 = "(beta1 / (1 - beta1)) ** 2 + 4 * (q + gamma + lam * h) ** 2 / (1 - q ** 2) ** 2"
_COMPRESSED = {"gamma": "0", "lam": "0", "h": "0"}

COMPRESSED_FULL = replace(
    fedcams.CAMS_FULL,
    paper=PAPER,
    number="Theorem A.1",
    recipes=("fed_nlaca",),
    defaults={**fedcams.FULL, **_COMPRESSED},
    constants={
        "C1": f"beta1 / (1 - beta1) + {_SKIPS}",
        "C2": _C2,
        "S": fedcams.CAMS_FULL.constants["S"],
    },
    corollary="Corollary A.1",
    reading=READING,
)

COMPRESSED_PARTIAL = replace(
    fedcams.CAMS_PARTIAL,
    paper=PAPER,
    number="Theorem A.3",
    recipes=("fed_nlaca",),
    defaults={**fedcams.PARTIAL, **_COMPRESSED},
    constants={
        "C1": f"beta1 / (1 - beta1) + N / n * {_SKIPS}",
        "C2": _C2,
        "S": fedcams.CAMS_PARTIAL.constants["S"],
    },
    limits=(
        "1 / (8 * K * L)",
        f"eps / (K * {fedcams.COMPRESSED_V} * ((3 + 2 * C2) * b * L + {fedcams.MOMENT}))",
    ),
    corollary="Corollary A.2",
    corollary_rate="1 / (K * sqrt(T))",
    reading=f"G^2 for the printed G^3; the rest as in the proof. {VANISHING}",
)

# T_5 of (E.12) and T_6 of (E.14): what the error of the model that clients have costs, divided by a b K as the proof's last
# step demands. Printed are d / eps for the norm of a difference of V^(-1/2), which is at most d / sqrt(eps);
# 2 L b^2 (gamma^2 + h^2) H^2 for the product of |theta| and the error, which is L b (gamma + h) H^2; and L^2 in T_6, where
# (E.5) is half of L times a square, and Theorem E.1 has L.
DOWNLINK = (
    "((G + L * a * b * K * G / sqrt(eps) + L * a * b * C1 * K * G * d / sqrt(eps) + L * H)"
    " * b * (gamma + h) * H / ((1 - beta1) * sqrt(eps))"
    " + 2 * L * b ** 2 * (gamma ** 2 + h ** 2) * (h ** 2 + 2) * H ** 2 / ((1 - beta1) ** 2 * eps)) / (a * b * K)"
)

BOTH_WAYS_FULL = replace(
    COMPRESSED_FULL,
    number="Theorem 4.5",
    recipes=("fed_bnlaca",),
    terms={**COMPRESSED_FULL.terms, "compressed model": DOWNLINK},
    corollary="Corollary 4.3",
    reading=MODEL,
)

BOTH_WAYS_PARTIAL = replace(
    COMPRESSED_PARTIAL,
    number="Theorem E.1",
    recipes=("fed_bnlaca",),
    limits=fedcams.CAMS_PARTIAL.limits,
    terms={**COMPRESSED_PARTIAL.terms, "compressed model": DOWNLINK},
    corollary="",
    reading=f"G^2 for the printed G^3. {MODEL}",
)


def _accelerated(theorem: Theorem, number: str, recipe: str) -> Theorem:
    """The theorem of accelerated aggregation: h = 1, whatever the threshold is."""
    defaults = {symbol: formula for symbol, formula in theorem.defaults.items() if symbol != "h"}
    constants = {"h": "1", **theorem.constants}
    return replace(theorem, number=number, recipes=(recipe,), defaults=defaults, constants=constants)


THEOREMS = (
    *(LAZY_FULL, LAZY_PARTIAL, COMPRESSED_FULL, COMPRESSED_PARTIAL, BOTH_WAYS_FULL, BOTH_WAYS_PARTIAL),
    _accelerated(LAZY_FULL, "Theorem 4.2", "fed_aa"),
    _accelerated(LAZY_PARTIAL, "Theorem 4.4", "fed_aa"),
    _accelerated(COMPRESSED_FULL, "Theorem A.2", "fed_aca"),
    _accelerated(COMPRESSED_PARTIAL, "Theorem A.4", "fed_aca"),
    _accelerated(BOTH_WAYS_FULL, "Theorem 4.6", "fed_baca"),
    _accelerated(BOTH_WAYS_PARTIAL, "Theorem E.2", "fed_baca"),
)
