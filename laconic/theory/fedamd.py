"""Theorems of FedAMD (Wu et al., ICML 2023): anchors in turn or at random. Constants are those of the appendix."""

from __future__ import annotations

from dataclasses import replace

from laconic.theory.theorem import Theorem

PAPER = "FedAMD (Wu et al., ICML 2023)"
RECIPES = ("fed_amd",)
MINERS = ("1 / (2 * sqrt(6) * K * L)", "sqrt(B_local / K) / (4 * sqrt(3) * L_sigma)")
BATCHES = {"B": "inf", "B_local": "1"}
ANCHOR_BATCH = {"anchor batch, unless all data": "max(1, sigma ** 2 / (N * epsilon))"}
STEPS = {"local steps, at least": "max(1, 2 * L_sigma ** 2 / (B_local * L ** 2))"}

SEQUENTIAL_FULL = Theorem(
    PAPER,
    "Theorem 4.4 (D.2)",
    RECIPES,
    defaults={"n": "N", **BATCHES, "b": "1 / (sqrt(3) * tau)"},
    limits=(
        "1 / (6 * sqrt(6) * K * L * tau * b)",
        "1 / (6 * sqrt(2) * K * L)",
        "sqrt(B_local / K) / (2 * sqrt(3) * L_sigma)",
    ),
    terms={
        "initial gap": "4 * D / (a * b * K * T)",
        "noise of anchors": "16 * a * L * K * (2 * b + 3 * a * K * L) * sigma ** 2 / (N * B)",
    },
    settings={"local steps, at least": "max(1, L_sigma ** 2 / (6 * B_local * L ** 2))", **ANCHOR_BATCH},
    corollary="Corollary 4.5",
    corollary_rate="1 / (6 * sqrt(2) * K * L)",
    order="tau / T",
    participation="full",
    sequential=True,
)

# Corollary 4.5 has two more cases, with anchors' batches of a few examples.
SMALL_ANCHORS = replace(
    SEQUENTIAL_FULL,
    number="Corollary 4.5 (b = O(1))",
    constants={"B": "1"},
    settings={"anchor batch": "B"},
    corollary_rate="sqrt(N / T) / (b * K * sigma)",
    order="sigma / sqrt(T * N)",
    reading="Anchors with a batch of 1. The corollary sets K a and b to (N / (sigma^2 T))^(1/4). Here b does not depend on"
    " T, and a b K is the corollary's, which gives the same order.",
)

ANCHORS_OF_K = replace(
    SEQUENTIAL_FULL,
    number="Corollary 4.5 (b = O(K))",
    defaults={"n": "N", "B_local": "1", "b": "sqrt(K * N)"},
    constants={"B": "K"},
    settings={"anchor batch": "B"},
    corollary_rate="1 / (K * sigma * sqrt(T))",
    order="sigma / sqrt(T * K * N)",
    reading="Anchors with a batch of K.",
)

SEQUENTIAL_PARTIAL = Theorem(
    PAPER,
    "Theorem 4.6 (D.3)",
    RECIPES,
    defaults={"n": "N", **BATCHES, "b": "2 * sqrt(6) / (1 + 2 * N * tau / n)"},
    limits=(*MINERS, "1 / (K * L * (1 + 2 * N * tau / n) * b)"),
    terms={
        "initial gap": "4 * D / (a * b * K * (T - T // tau))",
        "noise of anchors": "8 * sigma ** 2 / (N * B)",
    },
    settings=ANCHOR_BATCH,
    corollary="Corollary 4.7",
    corollary_rate="1 / (2 * sqrt(6) * K * L)",
    order="N * tau / (n * T)",
    participation="partial",
    sequential=True,
)

CONSTANT = Theorem(
    PAPER,
    "Theorem 4.8 (E.4)",
    RECIPES,
    defaults={
        "n": "N",
        **BATCHES,
        "p": "(2 / (n + 2)) ** (1 / n)",
        "b": "2 * sqrt(6) / (1 + 2 * N / (n * p) * sqrt(1 - p ** n))",
    },
    limits=(*MINERS, "1 / (K * L * (1 + 2 * N / (n * p) * sqrt(1 - p ** n)) * b)"),
    terms={
        "initial gap": "4 * D / (a * b * K * T * (1 - p ** n))",
        "noise of anchors": "12 * sigma ** 2 / (N * B)",
    },
    settings={"anchor probability": "p", **STEPS, **ANCHOR_BATCH},
    corollary="Corollary 4.9",
    corollary_rate="1 / (2 * sqrt(6) * K * L)",
    order="N / (n * T)",
    sequential=False,
    reading="The noise has the factor 12 of (161), where (162) prints 3. If N sqrt(1 - p^n) is above n p / 2, the step from"
    " (158) to (161) needs a server rate that is up to sqrt(2) times lower than the printed one.",
)

PL = Theorem(
    PAPER,
    "Theorem 4.11 (E.5)",
    RECIPES,
    defaults={
        "n": "N",
        **BATCHES,
        # Corollary 4.12's p, without its difference of nearly equal numbers.
        "p": "((1 + 1 / mu ** 2)"
        " / (1 + (n + 1) / (2 * mu ** 2) + sqrt(((n + 1) / (2 * mu ** 2)) ** 2 + n / mu ** 2))) ** (1 / n)",
        "b": "min(2 * sqrt(6) * L * n * p / (N * mu * (1 - p ** n)), 2 * sqrt(6) / (1 + 16 * N * L / (mu * n * p)))",
    },
    limits=(*MINERS, "n * p / (N * K * mu * (1 - p ** n) * b)", "1 / (K * L * (1 + 16 * N * L / (mu * n * p)) * b)"),
    terms={
        "initial gap": "(1 - mu * a * b * K * (1 - p ** n) / 2) ** T * D",
        "noise of anchors": "6 * sigma ** 2 / (mu * N * B)",
    },
    settings={
        "anchor probability": "p",
        **STEPS,
        "anchor batch, unless all data": "max(1, sigma ** 2 / (N * mu * epsilon))",
    },
    corollary="Corollary 4.12",
    corollary_rate="1 / (2 * sqrt(6) * K * L)",
    objective="PL",
    sequential=False,
)

THEOREMS = (SEQUENTIAL_FULL, SMALL_ANCHORS, ANCHORS_OF_K, SEQUENTIAL_PARTIAL, CONSTANT, PL)
