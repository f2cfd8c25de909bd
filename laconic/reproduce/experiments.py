"""Runs of studies, as options of `laconic run`."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Experiment:
    """Runs with common options."""

    common: str
    runs: dict[str, str]
    """The remaining options by label. `{rate}` stands for the best of `rates`, found by runs of `trial` rounds."""
    rounds: int = 0
    """Rounds of each run; 0 if the options specify them."""
    rates: tuple[str, ...] = ()
    server_rates: tuple[str, ...] = ()
    """Server rates to try with each of `rates`, besides the algorithm's own. Shortened runs do not try them."""
    trial: int = 40
    long_trials: tuple[str, ...] = ()
    """Labels with trials of 100 rounds, for methods that may diverge late."""
    first_seed: int = 0
    """The first seed of the judged runs. Trials of rates use seed 0."""


BYTES = Experiment(
    "--dataset fashion-mnist --partition shards:2 --clients 100 --participants 20 --model lenet5 "
    "--local-steps 10 --batch-size 64 --eval-every 10",
    {
        "fed_ams": "--algorithm fed_ams --local-lr 0.05 --server-lr 0.03 --rounds 200",
        "fed_ams-rate-0.1": "--algorithm fed_ams --local-lr 0.1 --server-lr 0.03 --rounds 200",
        "fed_bnlaca-same-rates": "--algorithm fed_bnlaca --local-lr 0.05 --server-lr 0.03 --rounds 200 "
        "--set uplink.compressor=top_k:1/8+qsgd:5 --set downlink.compressor=top_k:1/8+qsgd:5",
        "fed_ef_ams-two-way": "--algorithm fed_ef_ams --rounds 600 --local-lr 0.1 --server-lr 0.03 "
        "--set optimizer.epsilon=1e-3 --set optimizer.beta2=0.99 --compressor heavy_sign:1/16@layer "
        "--downlink broadcast --set downlink.compressor=heavy_sign:1/64@layer",
        "fed_laconic_1": "--algorithm fed_laconic_1 --local-lr 0.1 --server-lr 0.03 --rounds 600",
    },
)
_FED_AMD_SETTING = (
    "--dataset fashion-mnist --clients 100 --participants 20 --model lenet5 "
    "--local-steps 10 --batch-size 64 --eval-every 5"
)
FED_AMD_RUNS = {
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
FED_AMD_SERVER_RATES = ("0.8", "0.1")
"""The paper's grid of server rates is 1, the default, and these (appendix F.1)."""
FED_AMD_SHUFFLED = Experiment(
    f"{_FED_AMD_SETTING} --partition pairs",
    FED_AMD_RUNS,
    rounds=400,
    rates=FED_AMD_RATES,
    server_rates=FED_AMD_SERVER_RATES,
    long_trials=_UNSTABLE,
)
FED_AMD_FIXED = replace(FED_AMD_SHUFFLED, common=f"{FED_AMD_SHUFFLED.common} --batch-order fixed")
FED_AMD_AS_COUNTED = replace(
    FED_AMD_SHUFFLED,
    runs={
        "bvr_l_sgd": "--algorithm bvr_l_sgd --set method.period=2 --set method.trainers=one --local-lr {rate}",
        "fed_page": "--algorithm fed_page --set method.steps_from=own --set method.probability=0.5 --server-lr 0.1 "
        "--local-lr {rate}",
    },
    long_trials=(),
)
"""Forms of two baselines whose costs are those of Table 2 (FedPAGE) or closer to them (BVR-L-SGD): see
docs/algorithms/bvr_l_sgd.md and fed_page.md."""
_EVERYBODY = "--clients 10 --participants 10 --local-lr 0.05 --rounds 200"
"""Full participation of ten clients, as in the paper."""
_SAMPLED = "--clients 100 --participants 20 --local-lr 0.05 --rounds 200"
"""At a rate of 0.1 SCAFFOLD diverges: in round 38 here, in round 15 with full participation."""
GRADIENT_TRACKING = Experiment(
    "--dataset mnist --partition shards:2:single --model mlp:200,200 --local-steps 10 --batch-size 50 --eval-every 5",
    {
        f"{name}, {who}": f"--algorithm {options} {setting}"
        for who, setting in (("10 of 10", _EVERYBODY), ("20 of 100", _SAMPLED))
        for name, options in {
            "fed_avg": "fed_avg",
            "scaffold": "scaffold",
            "fed_gate": "fed_gate",
            "fed_gate Option I": "fed_gate --downlink repeated",
            "fed_comgate": "fed_comgate",
            "fed_comgate Option I, quantized mean": "fed_comgate --downlink repeated "
            "--set method.mean_compressor=uniform:8@layer",
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

_ADAMW = "--local-optimizer adamw --local-lr 0.003"
LANGUAGE_MODEL = Experiment(
    "--dataset tinyshakespeare --partition natural --clients 50 --participants 5 --weighting size --model gpt:2x64 "
    "--local-steps 10 --batch-size 8 --eval-every 5",
    {
        "SGD": "--algorithm fed_avg --local-lr 0.3 --server-lr 1",
        "SGD, fed_laconic": "--algorithm fed_laconic --local-lr 0.3 --server-lr 1 --set optimizer.noise_limit=none",
        "AdamW": f"--algorithm fed_avg {_ADAMW} --server-lr 1",
        "AdamW, fed_cams sign": f"--algorithm fed_cams --compressor sign {_ADAMW} --server-lr 0.03",
        "AdamW, top_k:1/16 with memory": f"--algorithm fed_ef_sgd --compressor top_k:1/16 {_ADAMW} --server-lr 1",
        "AdamW, fed_laconic": f"--algorithm fed_laconic {_ADAMW} --server-lr 1",
    },
    rounds=300,
)
"""A small transformer, one client per role, weighted by size. A local AdamW is reset in every round. Of the SGD rates 0.3
and 1, the second did not learn in a trial of 40 rounds."""
