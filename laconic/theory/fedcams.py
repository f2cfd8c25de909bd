"""Theorems of FedCAMS (Wang et al., ICML 2022): FedAMS, and FedCAMS with compressed updates and error feedback."""

from __future__ import annotations

from laconic.theory.theorem import Theorem

PAPER = "FedCAMS (Wang et al., ICML 2022)"
DRIFT = "(sigma ** 2 + 6 * K * sigma_g ** 2)"
ADAPTIVE = {"n": "N", "beta1": "0.9", "beta2": "0.99", "eps": "1e-3"}
FULL = {**ADAPTIVE, "b": "sqrt(K * N)"}
PARTIAL = {**ADAPTIVE, "b": "sqrt(K * n)"}
MOMENT = "2 * sqrt(2 * (1 - beta2)) * G"
"""What a change of the second moment costs."""

GAP = {
    "initial gap": "D / (a * b * K * T)",
    "moments": "(C1 * G ** 2 * d / sqrt(eps) + 2 * C1 ** 2 * a * b * K * L * G ** 2 * d / eps) / T",
    "client drift": f"5 * a ** 2 * K * L ** 2 / sqrt(2 * eps) * {DRIFT}",
}
SAMPLED = f"(15 * K ** 2 * L ** 2 * a ** 2 * {DRIFT} + 3 * K * sigma_g ** 2)"

# V bounds the denominator of the step: with the local rate a, and with a <= 1 in the limits.
DENSE = "sqrt(beta2 * a ** 2 * K ** 2 * G ** 2 + eps)"
DENSE_V = "sqrt(beta2 * K ** 2 * G ** 2 + eps)"
COMPRESSED = "sqrt(4 * beta2 * (1 + q ** 2) ** 3 / (1 - q ** 2) ** 2 * a ** 2 * K ** 2 * G ** 2 + eps)"
COMPRESSED_V = "sqrt(4 * beta2 * (1 + q ** 2) ** 3 / (1 - q ** 2) ** 2 * K ** 2 * G ** 2 + eps)"

AMS_FULL = Theorem(
    PAPER,
    "Theorem 4.4",
    ("fed_ams",),
    defaults=FULL,
    constants={"C1": "beta1 / (1 - beta1)", "S": f"(3 + C1 ** 2) * b * L + {MOMENT}"},
    limits=("1 / (8 * K * L)", f"eps / (K * {DENSE_V} * S)"),
    factor=f"4 * {DENSE}",
    terms={**GAP, "noise": "S * a * sigma ** 2 / (2 * N * eps)"},
    corollary="Corollary 4.6",
    corollary_rate="1 / (K * sqrt(T))",
    order="1 / sqrt(T * K * N)",
    participation="full",
)

AMS_PARTIAL = Theorem(
    PAPER,
    "Theorem 4.9",
    ("fed_ams",),
    defaults=PARTIAL,
    constants={"C1": "beta1 / (1 - beta1)", "S": f"(3 + C1 ** 2) * b * L + {MOMENT}"},
    limits=("1 / (8 * K * L)", f"n * (N - 1) * eps / (24 * N * (n - 1) * K * {DENSE_V} * S)"),
    factor=f"8 * {DENSE}",
    terms={
        **GAP,
        "noise": "S * a * sigma ** 2 / (2 * n * eps)",
        "sampling": f"S * a * (N - n) / (2 * n * max(N - 1, 1) * eps) * {SAMPLED}",
    },
    corollary="Corollary 4.11",
    corollary_rate="1 / (K * sqrt(T))",
    order="sqrt(K) / sqrt(T * n)",
    participation="partial",
    reading="In the sampling term a is the local rate, as in (A.32); the statement prints the server's.",
)

CAMS_FULL = Theorem(
    PAPER,
    "Theorem 4.18",
    ("fed_cams",),
    defaults={**FULL, "gamma": "0"},
    constants={
        "C1": "beta1 / (1 - beta1) + 2 * q / (1 - q ** 2)",
        "C2": "(beta1 / (1 - beta1)) ** 2 + 4 * (q + gamma) ** 2 / (1 - q ** 2) ** 2",
        "S": f"(3 + 2 * C2) * b * L + {MOMENT}",
    },
    limits=("1 / (8 * K * L)", f"eps / (K * {COMPRESSED_V} * S)"),
    factor=f"4 * {COMPRESSED}",
    terms={**GAP, "noise": "S * a * sigma ** 2 / (2 * N * eps)"},
    corollary="Corollary 4.20",
    corollary_rate="1 / (K * sqrt(T))",
    order="1 / sqrt(T * K * N)",
    participation="full",
)

CAMS_PARTIAL = Theorem(
    PAPER,
    "Theorem B.2",
    ("fed_cams",),
    defaults=PARTIAL,
    constants={
        "C1": "beta1 / (1 - beta1) + 2 * q / (1 - q ** 2)",
        "S": "b * L + sqrt(2 * (1 - beta2)) * G",
    },
    limits=("1 / (8 * K * L)", f"n * (N - 1) * eps / (48 * N * (n - 1) * K * {COMPRESSED_V} * S)"),
    factor=f"8 * {COMPRESSED}",
    terms={
        **GAP,
        "memories": "C1 * a * b * K * L * G ** 2 / eps",
        "noise": "S * a * sigma ** 2 / (n * eps)",
        "sampling": f"S * a * (N - n) / (n * max(N - 1, 1) * eps) * {SAMPLED}",
    },
    corollary_rate="1 / (K * sqrt(T))",
    participation="partial",
)

THEOREMS = (AMS_FULL, AMS_PARTIAL, CAMS_FULL, CAMS_PARTIAL)
