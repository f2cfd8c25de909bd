"""Theorems of Fed-EF (Li and Li, ICML 2023): error feedback, and biased compression without it."""

from __future__ import annotations

from dataclasses import replace

from laconic.theory.theorem import Theorem

PAPER = "Fed-EF (Li and Li, ICML 2023)"
DRIFT = "(sigma ** 2 + 6 * K * sigma_g ** 2)"

BIASED = Theorem(
    PAPER,
    "Theorem 4.4",
    ("fed_avg", "fed_sgd"),
    defaults={"n": "N", "q": "0", "b": "sqrt(K * N)"},
    limits=("1 / (8 * K * L)", "1 / (64 * K * L * (1 + q ** 2) * b)"),
    terms={
        "initial gap": "D / (a * b * T * K)",
        "noise": "4 * a * b * (1 + q ** 2) * L * sigma ** 2 / N",
        "bias of compression": "64 * q ** 2 * sigma ** 2 / (K * N)",
        "client drift": "(20 * a ** 3 * b * (1 + q ** 2) * K ** 2 * L ** 3"
        f" + (320 * q ** 2 + 3) * a ** 2 * K * L ** 2) * {DRIFT}",
    },
    corollary="Theorem 4.4",
    corollary_rate="1 / (K * sqrt(T))",
    order="1 / sqrt(T * K * N)",
    participation="full",
    up_to_constant=True,
    reading="Terms as in the proof (F.5), which also needs q <= 1/32. Clients have equal weights.",
)

SGD = Theorem(
    PAPER,
    "Theorem 4.6",
    ("fed_ef_sgd", "qsparse_local_sgd"),
    defaults={"n": "N", "b": "sqrt(K * N)"},
    constants={"C1": "2 + 4 * q ** 2 / (1 - q ** 2) ** 2"},
    limits=("1 / (8 * K * L)", "1 / (2 * K * L * b * (C1 + 1))"),
    terms={
        "initial gap": "D / (a * b * T * K)",
        "noise": "2 * a * b * C1 * L * sigma ** 2 / N",
        "client drift": f"10 * a ** 3 * b * C1 * K ** 2 * L ** 3 * {DRIFT}",
    },
    corollary="Corollary 4.9",
    corollary_rate="1 / (K * sqrt(T))",
    order="1 / sqrt(T * K * N)",
    participation="full",
    up_to_constant=True,
)

AMS = Theorem(
    PAPER,
    "Theorem 4.8",
    ("fed_ef_ams",),
    defaults={"n": "N", "b": "sqrt(K * N)", "beta1": "0.9", "eps": "1e-8"},
    constants={"C1": "beta1 / (1 - beta1) + 2 * q / (1 - q ** 2)"},
    limits=(
        "1 / (8 * K * L)",
        "sqrt(eps) * (1 - q ** 2) / (4 * K * (1 + q ** 2) ** 1.5 * G)",
        "sqrt(eps) / (8 * K * L * max(16, 32 * C1 ** 2) * b)",
        "sqrt(eps) / (24 * K * L * b ** (1 / 3))",
    ),
    factor="16 * sqrt(eps)",
    terms={
        "initial gap": "D / (a * b * T * K)",
        "noise": "a * b * L * (6 + 4 * C1 ** 2) * sigma ** 2 / (N * eps)",
        "moments": "2 * C1 * G ** 2 * d / (T * sqrt(eps)) + 3 * a * b * C1 ** 2 * L * K * G ** 2 * d / (T * eps)",
        "client drift": "(5 * a ** 2 * K * L ** 2 / (2 * sqrt(eps))"
        f" + a ** 3 * b * (30 + 20 * C1 ** 2) * K ** 2 * L ** 3 / eps) * {DRIFT}",
    },
    corollary="Corollary 4.9",
    corollary_rate="1 / (K * sqrt(T))",
    order="1 / sqrt(T * K * N)",
    participation="full",
    reading="With the factor 16 sqrt(eps) of the proof (F.1), which the statement leaves out. It needs eps < 1.",
)

SAMPLING = (
    "The sampling term, and the limit that follows from it, have the factor L that the proof (F.4, term II) drops."
)

PARTIAL = Theorem(
    PAPER,
    "Theorem 4.10",
    ("fed_ef_sgd", "qsparse_local_sgd"),
    defaults={"n": "N", "b": "sqrt(K * n)"},
    constants={"C1": "q ** 2 / (1 - q ** 2) ** 3", "C2": "(N - n) / max(N - 1, 1)"},
    limits=(
        "1 / (8 * K * L)",
        "n / (500 * C2 * b * K * L)",
        "n ** 2 / (53760 * (N - n) * C1 * b * K * L)",
        "(1 - q ** 2) ** 2 * n ** 2 / (32 * q ** 2 * N ** 2 * b * K * L)",
        "1 / (32 * max(C1, 1) * b * K * L)",
    ),
    terms={
        "initial gap": "D / (a * b * T * K)",
        "noise": "(a * b * L / n + 8 * a * b * C1 * L * N / n ** 2) * sigma ** 2",
        "client drift": f"5 * a ** 2 * K * L ** 2 / 2 * {DRIFT}",
        "sampling": f"5 * a * b * C2 * L / n * {DRIFT}",
        "stale memories": f"560 * a * b * C1 * (N - n) * L / n ** 2 * {DRIFT}",
    },
    corollary="Theorem 4.10",
    corollary_rate="sqrt(n) / (K * sqrt(T * N))",
    order="sqrt(N / n) * sqrt(K) / sqrt(T * n)",
    participation="partial",
    up_to_constant=True,
    reading=SAMPLING,
)

DENSE_PARTIAL = replace(
    PARTIAL,
    number="Theorem 4.10 (Remark 4.12)",
    recipes=("fed_avg", "fed_sgd"),
    defaults={**PARTIAL.defaults, "q": "0"},
    corollary_rate="1 / (K * sqrt(T))",
    order="sqrt(K) / sqrt(T * n)",
    reading=f"Without compression. Clients have equal weights. {SAMPLING}",
)

THEOREMS = (BIASED, SGD, AMS, PARTIAL, DENSE_PARTIAL)
