"""Runs that several studies share, as options of `laconic run`, and the papers' numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """Runs with common options."""

    common: str
    runs: dict[str, str]
    """The remaining options by label. `{rate}` stands for the best of `rates`, found by runs of `trial` rounds."""
    rounds: int = 0
    """Rounds of each run; 0 if the options specify them."""
    rates: tuple[str, ...] = ()
    trial: int = 40
    long_trials: tuple[str, ...] = ()
    """Labels with trials of 100 rounds, for methods that may diverge late."""


BYTES = Experiment(
    "--dataset fashion-mnist --partition shards:2 --clients 100 --participants 20 --model lenet5 "
    "--local-steps 10 --batch-size 64 --eval-every 10",
    {
        "fed_ams": "--algorithm fed_ams --rounds 200",
        "fed_ams-rate-0.1": "--algorithm fed_ams --local-lr 0.1 --rounds 200",
        "fed_bnlaca-same-rates": "--algorithm fed_bnlaca --rounds 200 --set uplink.compressor=top_k:1/8+qsgd:5 "
        "--set downlink.compressor=top_k:1/8+qsgd:5",
        "fed_ef_ams-two-way": "--algorithm fed_ef_ams --rounds 600 --local-lr 0.1 --server-lr 0.03 "
        "--set optimizer.epsilon=1e-3 --set optimizer.beta2=0.99 --compressor heavy_sign:1/16@layer "
        "--downlink broadcast --set downlink.compressor=heavy_sign:1/64@layer",
        "fed_laconic": "--algorithm fed_laconic --rounds 600",
    },
)
_LINKS = {
    "full": "--compressor dense",
    "sign": "--compressor sign@layer",
    "top_k:0.01": "--compressor top_k:0.01@layer",
    "heavy_sign:0.05": "--compressor heavy_sign:0.05@layer",
    "qsgd:4": "--no-memory --compressor qsgd:4@layer",
}
FED_EF = Experiment(
    "--dataset fashion-mnist --partition shards:2 --clients 200 --participants 20 --model cnn "
    "--local-epochs 1 --batch-size 32 --local-lr 0.1 --eval-every 20",
    {f"sgd {name}": f"--algorithm fed_ef_sgd --server-lr 1 {link}" for name, link in _LINKS.items()}
    | {
        f"ams {name}": f"--algorithm fed_ef_ams --server-lr 0.01 {link}"
        for name, link in _LINKS.items()
        if name != "top_k:0.01"
    }
    # Without gradient clipping, single clients diverge in their local epoch (round 17).
    | {
        "ams top_k:0.01": f"--algorithm fed_ef_ams --server-lr 0.01 --set method.clip_norm=5 {_LINKS['top_k:0.01']}",
        "sgd sign without memory": "--algorithm fed_ef_sgd --server-lr 1 --no-memory --compressor sign@layer",
    },
    rounds=100,
)
FED_EF_PAPER = {
    "sgd": {"sign": 67.69, "top_k:0.01": 67.47, "heavy_sign:0.05": 67.72, "qsgd:4": 67.71, "full": 67.50},
    "ams": {"sign": 57.60, "top_k:0.01": 64.09, "heavy_sign:0.05": 50.77, "qsgd:4": 64.35, "full": 64.18},
}
"""Fed-EF (Li and Li, 2023), Tables 5 and 6: Fashion-MNIST, 10 % of the clients per round, ten seeds."""
FED_EF_FIGURE_1 = Experiment(
    "--dataset mnist --partition shards:2 --clients 200 --participants 100 --model mlp:200 "
    "--local-epochs 1 --batch-size 32 --local-lr 0.01 --server-lr 1 --eval-every 5 --algorithm fed_ef_sgd",
    {
        "full precision": "--compressor dense",
        "sign": "--compressor sign@layer",
        "sign without memory": "--no-memory --compressor sign@layer",
    },
    rounds=100,
)

_FED_AMD_SETTING = (
    "--dataset fashion-mnist --clients 100 --participants 20 --model lenet5 "
    "--local-steps 10 --batch-size 64 --eval-every 5"
)
_FED_AMD_RUNS = {
    "fed_avg": "--algorithm fed_avg --local-lr {rate}",
    "scaffold": "--algorithm scaffold --set method.warm_start=true --local-lr {rate}",
    "fed_amd constant": "--algorithm fed_amd --set method.probability=optimal --local-lr {rate}",
    "fed_amd sequential": "--algorithm fed_amd --set method.period=2 --local-lr {rate}",
    "bvr_l_sgd": "--algorithm bvr_l_sgd --local-lr {rate}",
    "fed_page": "--algorithm fed_page --set method.probability=0.5 --local-lr {rate}",
}
_UNSTABLE = ("scaffold", "fed_amd constant", "fed_amd sequential")
FED_AMD_RATES = ("0.1", "0.03", "0.02", "0.01", "0.008", "0.005")
"""The paper's grid of local rates."""
FED_AMD_SHUFFLED = Experiment(
    f"{_FED_AMD_SETTING} --partition pairs", _FED_AMD_RUNS, rounds=400, rates=FED_AMD_RATES, long_trials=_UNSTABLE
)
FED_AMD_FIXED = Experiment(
    f"{_FED_AMD_SETTING} --partition pairs --batch-order fixed",
    _FED_AMD_RUNS,
    rounds=400,
    rates=FED_AMD_RATES,
    long_trials=_UNSTABLE,
)
FED_AMD_PAPER = {
    "bvr_l_sgd": (101.9, 853.9, 310, 77.0),
    "fed_avg": (40.8, 566.9, 318, 76.4),
    "fed_page": (148.6, 1670.4, 271, 79.2),
    "scaffold": (47.5, 1318.6, 370, 75.9),
    "fed_amd constant": (35.5, 489.8, 259, 80.6),
    "fed_amd sequential": (40.2, 475.3, 213, 79.5),
}
"""FedAMD (Wu et al., 2023), Table 2, A = 20: 1e5 gradients, 32 Mbit and rounds to 75 %, final accuracy in %."""
_EVERYBODY = "--clients 10 --participants 10 --local-lr 0.05 --rounds 200"
"""Full participation of ten clients, as in the paper."""
_SAMPLED = "--clients 100 --participants 20 --local-lr 0.05 --rounds 200"
"""At a rate of 0.1 SCAFFOLD diverges: in round 38 here, in round 15 with full participation."""
GRADIENT_TRACKING = Experiment(
    "--dataset mnist --partition shards:2 --model mlp:200,200 --local-steps 10 --batch-size 50 --eval-every 5",
    {
        f"{name}, {who}": f"--algorithm {options} {setting}"
        for who, setting in (("10 of 10", _EVERYBODY), ("20 of 100", _SAMPLED))
        for name, options in {
            "fed_avg": "fed_avg",
            "scaffold": "scaffold",
            "fed_gate": "fed_gate",
            "fed_gate Option I": "fed_gate --downlink repeated",
            "fed_comgate": "fed_comgate",
        }.items()
        if not ("Option I" in name and setting == _SAMPLED)  # Option I needs full participation
    },
)

_SEQUENTIAL = "--algorithm fed_amd --set method.period=2"
_ADAPTIVE = "--set optimizer.name=ams --set optimizer.server_lr=0.02 --set optimizer.epsilon=1e-3"
FED_AMD_SETTINGS = Experiment(
    f"{_FED_AMD_SETTING} --partition pairs",
    {
        "sequential, rate 0.03": f"{_SEQUENTIAL} --local-lr 0.03",
        "sequential, rate 0.1, clipped to 1": f"{_SEQUENTIAL} --local-lr 0.1 --set method.clip_norm=1",
        "sequential, rate 0.03, server AMS": f"{_SEQUENTIAL} --local-lr 0.03 {_ADAPTIVE}",
        "p = 0.887, rate 0.01": "--algorithm fed_amd --local-lr 0.01",
        "p = 0.887, rate 0.02": "--algorithm fed_amd --local-lr 0.02",
        "p = 0.5, rate 0.03": "--algorithm fed_amd --set method.probability=0.5 --local-lr 0.03",
    },
    rounds=200,
)


def _two_way(kept: str) -> str:
    both = f"--compressor top_k:{kept} --downlink broadcast --set downlink.compressor=top_k:{kept}"
    return f"{_SEQUENTIAL} --local-lr 0.03 {both} --set method.mean_compressor=qsgd:8"


FED_AMD_LINKS = Experiment(
    f"{_FED_AMD_SETTING} --partition pairs",
    {
        "plain": f"{_SEQUENTIAL} --local-lr 0.03",
        "top_k:1/16 both ways": _two_way("1/16"),
        "top_k:1/64 both ways": _two_way("1/64"),
    },
    rounds=400,
)
"""FedAMD with compressed links: top_k with error feedback for updates, top_k for changes of anchors and for the model,
qsgd:8 for the mean of the anchors."""
