"""Theorems of FedCOM and FedCOMGATE (Haddadpour et al., AISTATS 2021): quantized updates, without and with tracking."""

from __future__ import annotations

from dataclasses import replace

from laconic.theory.theorem import Theorem

PAPER = "FedCOMGATE (Haddadpour et al., AISTATS 2021)"

# The paper's Eq. (32), the positive root of K^2 L^2 a^2 + (omega / N + 1) a b L K = 1, without its difference of nearly
# equal numbers.
COM_LIMIT = "2 / (L * K * (sqrt((omega / N + 1) ** 2 * b ** 2 + 4) + (omega / N + 1) * b))"
COM_NOISE = "(L ** 2 * K * a ** 2 * sigma ** 2 / 2 + (1 + omega) * a * b * L * sigma ** 2 / (2 * N))"
HOMOGENEOUS = "Clients have the same distribution."

COM = Theorem(
    PAPER,
    "Theorem D.4",
    ("fed_com",),
    defaults={"n": "N", "b": "N"},
    limits=(COM_LIMIT,),
    terms={
        "initial gap": "2 * D / (a * b * K * T)",
        "noise": "L * a * b * (omega + 1) * sigma ** 2 / N",
        "client drift": "L ** 2 * a ** 2 * K * sigma ** 2",
    },
    corollary="Corollary D.5",
    corollary_rate="sqrt(N / (T * K * (omega + 1))) / (L * b)",
    order="sqrt(omega + 1) / sqrt(N * T * K)",
    participation="full",
    reading=HOMOGENEOUS,
)

AVERAGING = replace(
    COM,
    number="Corollary D.6",
    recipes=("fed_avg", "fed_sgd"),
    defaults={"n": "N", "omega": "0", "b": "1"},
    corollary="",
    corollary_rate="sqrt(N / (T * K)) / L",
    order="1 / sqrt(N * T * K)",
)

COM_PL = replace(
    COM,
    number="Theorem D.7",
    terms={"initial gap": "(1 - a * b * mu * K) ** T * D", "noise and drift": f"{COM_NOISE} / mu"},
    corollary="Corollary D.8",
    corollary_rate="1 / (2 * L * (omega / N + 1) * K * b)",
    order="",
    objective="PL",
)

COM_CONVEX = replace(
    COM,
    number="Theorem D.9",
    constants={"phi": "1 / sqrt(N * K)"},
    terms={
        "initial gap": "exp(-a * b * phi * K * T) * D",
        "noise and drift": f"{COM_NOISE} / phi",
        "weight decay": "phi * W ** 2 / 2",
    },
    settings={"weight decay, method.weight_decay": "phi"},
    corollary="Theorem D.9",
    corollary_rate="1 / (2 * L * (omega / N + 1) * K * b)",
    order="",
    objective="convex",
)

GATE_LIMIT = "1 / (sqrt(30) * L * K)"

GATE = Theorem(
    PAPER,
    "Theorem E.4",
    ("fed_comgate",),
    defaults={"n": "N", "b": "N", "G_q": "0"},
    limits=(GATE_LIMIT,),
    conditions=("1 - 10 * a ** 4 * b ** 2 * (omega + 1) * L ** 4 * K ** 4 - L * a * b * K * (omega + 1)",),
    terms={
        "initial gap": "2 * D / (a * b * K * T)",
        "noise": "(omega + 1) * b * L * a * sigma ** 2 / N",
        "client drift": "36 * a ** 2 * L ** 2 * K * sigma ** 2"
        " + 10 * a ** 4 * b ** 2 * L ** 4 * K ** 3 * (omega + 1) * sigma ** 2 / N",
        "quantization": "10 * a ** 4 * b ** 2 * L ** 4 * K ** 2 * (omega + 1) * G_q + a * b * L * G_q / K",
        "first trackers": "(32 * a * L ** 2 * K * D_local + 16 * a ** 3 * L ** 3 * K ** 2 * sigma ** 2"
        " + 32 * a ** 2 * L ** 3 * K ** 2 * D) / T",
    },
    corollary="Corollary E.5",
    corollary_rate="sqrt(N / (T * K * (omega + 1))) / (L * b)",
    order="sqrt(omega + 1) / sqrt(N * T * K)",
    participation="full",
    reading="The noise of the first trackers has L^3: (74) uses a bound of local SGD and drops its factor L.",
)

# Eq. (79), with the noise of the first trackers that (88) adds and the corollary keeps.
GATE_ERROR = (
    "(18 * L ** 2 * a ** 2 * K * sigma ** 2 + 8 * L ** 4 * a ** 2 * K ** 2 * R ** 2 + 16 * L ** 3 * K ** 2 * a ** 2 * D"
    " + 8 * L ** 4 * a ** 3 * K ** 2 * sigma ** 2 / ({mu} * (1 - a * L))"
    " + 5 * L ** 4 * a ** 4 * b ** 2 * K ** 3 * (omega + 1) * sigma ** 2 / N"
    " + 5 * L ** 4 * a ** 4 * b ** 2 * K ** 2 * (omega + 1) * G_q"
    " + (omega + 1) * a * b * L * sigma ** 2 / (2 * N) + L * a * b * G_q / (2 * K))"
)
GATE_CONDITION = (
    "1 - (omega + 1) * L * a * b * K"
    " - 10 * (omega + 1) * a ** 4 * b ** 2 * K ** 4 * L ** 4"
    " / (1 - {mu} * K * a * b + 20 * {mu} * b * a ** 3 * L ** 2 * K ** 3)"
)

GATE_PL = replace(
    GATE,
    number="Theorem E.6",
    defaults={"n": "N", "b": "sqrt(N * K)", "G_q": "0"},
    limits=(GATE_LIMIT, "1 / ((omega + 1) * L * b * K)"),
    conditions=(GATE_CONDITION.format(mu="mu"),),
    terms={
        "initial gap": "(1 - mu * a * b * K / 3) ** T * D",
        "noise, drift, quantization": f"3 / mu * {GATE_ERROR.format(mu='mu')}",
    },
    corollary="Corollary E.8",
    corollary_rate="1 / (2 * L * (omega + 1) * K * b)",
    order="",
    objective="PL",
    reading="With the noise of the first trackers, which (88) adds to (79).",
)

GATE_CONVEX = replace(
    GATE_PL,
    number="Theorem E.9",
    constants={"phi": "1 / sqrt(N * K)"},
    conditions=(GATE_CONDITION.format(mu="phi"),),
    terms={
        "initial gap": "exp(-a * b * phi * K * T / 3) * D",
        "noise, drift, quantization": f"3 / phi * {GATE_ERROR.format(mu='phi')}",
        "weight decay": "phi * W ** 2 / 2",
    },
    settings={"weight decay, method.weight_decay": "phi"},
    corollary="Theorem E.9",
    objective="convex",
    reading="",
)


def _as(recipe: str, theorem: Theorem, **defaults: str) -> Theorem:
    """The same theorem for a recipe that is a special case."""
    return replace(theorem, recipes=(recipe,), defaults={**theorem.defaults, **defaults})


_AVERAGING = (COM, COM_PL, COM_CONVEX)
_TRACKING = (GATE, GATE_PL, GATE_CONVEX)
THEOREMS = (
    *(AVERAGING, *_AVERAGING, *_TRACKING),
    *(_as("fed_paq", theorem, b="1") for theorem in _AVERAGING),
    *(_as("fed_gate", theorem, omega="0") for theorem in _TRACKING),
)
