"""FedBNLACA and its family: "Bidirectional communication-efficient federated learning", its text and figures only."""

from __future__ import annotations

from laconic.reproduce.claims import Claim, Comparable
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import FINAL, LAST_FIVE, MEGABYTES, SKIP_RATE, accuracy_at, to_accuracy
from laconic.reproduce.study import Reproduction, Short, Study

PAPER = (
    "FedBNLACA's paper has figures but no numbers, and does not say which learning rates and thresholds its runs use"
)
_AMS = "--server-lr 0.1"
"""The best of 0.03 (the default), 0.1 and 0.3 for FedAMS after six rounds of the first setting."""
_THRESHOLD = "--set uplink.threshold=0.5"
_TOP, _FEW = (f"--compressor top_k:{kept}@model" for kept in ("1/8", "1/128"))
_DOWN, _FEW_DOWN = (f"--set downlink.compressor=top_k:{kept}@model" for kept in ("1/8", "1/128"))
_LAZY_DOWN = "--set downlink.threshold=0.1"
"""On digits, 0.1 skips a tenth of the downlink at two points less; 0.3 costs half of the accuracy."""
_RUNS = {
    "fed_avg": "--algorithm fed_avg",
    "fed_adam": "--algorithm fed_adam",
    "fed_ams": f"--algorithm fed_ams {_AMS}",
    "fed_cams": f"--algorithm fed_cams {_AMS} {_TOP}",
    "fed_nlaa": f"--algorithm fed_nlaa {_AMS} {_THRESHOLD}",
    "fed_nlaca": f"--algorithm fed_nlaca {_AMS} {_TOP} {_THRESHOLD}",
    "fed_bnlaca": f"--algorithm fed_bnlaca {_AMS} {_TOP} {_DOWN} {_THRESHOLD}",
    "fed_aa": f"--algorithm fed_aa {_AMS} {_THRESHOLD}",
    "fed_aca": f"--algorithm fed_aca {_AMS} {_TOP} {_THRESHOLD}",
    "fed_baca": f"--algorithm fed_baca {_AMS} {_TOP} {_DOWN} {_THRESHOLD}",
    "fed_bnlaca, downlink 0.1": f"--algorithm fed_bnlaca {_AMS} {_TOP} {_DOWN} {_THRESHOLD} {_LAZY_DOWN}",
    "fed_cams, 1/128": f"--algorithm fed_cams {_AMS} {_FEW}",
    "fed_nlaca, 1/128": f"--algorithm fed_nlaca {_AMS} {_FEW} {_THRESHOLD}",
    "fed_bnlaca, 1/128, downlink 0.1": f"--algorithm fed_bnlaca {_AMS} {_FEW} {_FEW_DOWN} {_THRESHOLD} {_LAZY_DOWN}",
    "fed_aca, 1/128": f"--algorithm fed_aca {_AMS} {_FEW} {_THRESHOLD}",
    "fed_baca, 1/128, downlink 0.1": f"--algorithm fed_baca {_AMS} {_FEW} {_FEW_DOWN} {_THRESHOLD} {_LAZY_DOWN}",
}
"""The paper's rates of top-k are 1/8 and 1/128. The downlink has the threshold 0 unless the label says otherwise."""
_BASELINES = ("fed_avg", "fed_adam", "fed_ams")
_ACCELERATED = ("fed_aca", "fed_baca")


def _figures(partition: str, figures: str) -> Study:
    claims: dict[str, Comparable] = {
        f"FedNLAA takes fewer bytes than the baselines (Figure {figures[0]})": Claim(
            MEGABYTES, "less", "fed_nlaa", _BASELINES
        ),
        f"FedNLAA is more accurate than the baselines (Figure {figures[0]})": Claim(
            LAST_FIVE, "more", "fed_nlaa", _BASELINES
        ),
        f"FedNLACA takes fewer bytes than FedNLAA (Figure {figures[0]})": Claim(
            MEGABYTES, "less", "fed_nlaca", "fed_nlaa"
        ),
        f"FedBNLACA takes fewer bytes than FedNLACA, FedNLAA and FedCAMS (Figure {figures[0]})": Claim(
            MEGABYTES, "less", "fed_bnlaca", ("fed_nlaca", "fed_nlaa", "fed_cams")
        ),
        f"FedAA is faster than the baselines (Figure {figures[1]})": Claim(
            accuracy_at(5), "more", "fed_aa", _BASELINES
        ),
        f"FedACA and FedBACA end more accurate than the baselines (Figure {figures[1]})": Claim(
            LAST_FIVE, "more", _ACCELERATED, _BASELINES
        ),
        f"with top-k 1/128 FedNLACA takes fewer bytes than FedNLAA (Figure {figures[0]})": Claim(
            MEGABYTES, "less", "fed_nlaca, 1/128", "fed_nlaa"
        ),
        f"with top-k 1/128 and a lazy downlink FedBNLACA takes the fewest bytes (Figure {figures[0]})": Claim(
            MEGABYTES, "less", "fed_bnlaca, 1/128, downlink 0.1", ("fed_nlaca, 1/128", "fed_nlaa", "fed_cams, 1/128")
        ),
        f"FedACA and FedBACA end more accurate than the baselines with top-k 1/128 (Figure {figures[1]})": Claim(
            LAST_FIVE, "more", ("fed_aca, 1/128", "fed_baca, 1/128, downlink 0.1"), _BASELINES
        ),
    }
    if partition != "iid":
        others = (*_BASELINES[1:], "fed_cams", "fed_nlaa", "fed_nlaca", "fed_bnlaca", "fed_aa", *_ACCELERATED)
        claims["FedAvg is the worst with heterogeneous clients (Figure 3)"] = Claim(
            LAST_FIVE, "less", "fed_avg", others
        )
    return Study(
        f"Figures {figures[0]} and {figures[1]}: Fashion-MNIST, CNN, {partition}",
        Experiment(
            f"--dataset fashion-mnist --partition {partition} --clients 100 --participants 50 --model lenet5 "
            "--local-epochs 3 --batch-size 32 --local-lr 0.05 --eval-every 1 --diagnostics",
            _RUNS,
            rounds=100,
        ),
        measures=(accuracy_at(5), FINAL, LAST_FIVE, MEGABYTES, SKIP_RATE),
        claims=claims,
        against="bytes",
        short=Short(rounds=20),
        quick=("fed_ams", "fed_nlaa", "fed_bnlaca", "fed_baca, 1/128, downlink 0.1")
        if partition == "iid"
        else ("fed_nlaca",),
    )


FIGURES_1_4 = Reproduction(
    "Figures 1 to 4: accuracy against bytes, with lazy (NLA) and accelerated (AA) aggregation",
    f"{PAPER}. With lazy aggregation, a client skips an update that is close to its last one, and the server uses the "
    "last one again. With accelerated aggregation, the server adds the last update to a new one that is close to it. "
    "We chose LeNet-5 as the CNN, a threshold of 0.5 on the uplink, and of 0 on the downlink (0.1 in rows that say so). "
    "Top-k keeps 1/8 of the entries, or 1/128 in rows that say so, as in the paper",
    {"fedbnlaca-figures1-2": _figures("iid", "12"), "fedbnlaca-figures3-4": _figures("shards:2", "34")},
)

_THRESHOLDS = ("0", "0.1", "0.3", "0.5", "0.7", "1")
_MLP = (
    "--dataset mnist --partition shards:2 --clients 100 --participants 50 --model mlp:64 --local-epochs 3 --batch-size 32 "
    "--local-lr 0.05 --eval-every 2 --diagnostics"
)


def _sweep(name: str, title: str, options: str, link: str = "uplink") -> Study:
    claims: dict[str, Comparable] = {
        "larger thresholds give larger errors: threshold 1 ends below threshold 0 (section 5)": Claim(
            LAST_FIVE, "less", "threshold 1", "threshold 0"
        ),
        "a medium threshold saves bytes: threshold 0.5 needs fewer bytes to 85 % than threshold 0": Claim(
            to_accuracy(0.85, "MB both ways"), "less", "threshold 0.5", "threshold 0"
        ),
    }
    if link == "uplink":  # the skip rate is that of the clients
        text = "small thresholds do not help: at 0.1 hardly any update is skipped (section 5)"
        claims = {text: Claim(SKIP_RATE, "less", "threshold 0.1", 5.0), **claims}
    return Study(
        title,
        Experiment(
            f"--algorithm {name} {_MLP} {options}",
            {f"threshold {value}": f"--set {link}.threshold={value}" for value in _THRESHOLDS},
            rounds=100,
        ),
        measures=(SKIP_RATE, FINAL, LAST_FIVE, MEGABYTES, to_accuracy(0.85, "MB both ways")),
        claims=claims,
        against="bytes",
        short=Short(rounds=60),
        quick=("threshold 0", "threshold 0.7", "threshold 1"),
    )


THRESHOLDS = Reproduction(
    "The thresholds of lazy aggregation on the uplink and on the downlink",
    f"{PAPER}. Costs to 85 % end at the first evaluation with at least this accuracy",
    {
        "fedbnlaca-threshold-nlaa": _sweep("fed_nlaa", "FedNLAA: uncompressed updates", ""),
        "fedbnlaca-threshold-nlaca": _sweep("fed_nlaca", "FedNLACA: top-k 1/8 with error feedback", _TOP),
        "fedbnlaca-threshold-downlink": _sweep(
            "fed_bnlaca", "FedBNLACA: the threshold of the downlink, top-k 1/8 both ways", f"{_TOP} {_DOWN}", "downlink"
        ),
    },
)

_BOTH = f"--algorithm fed_bnlaca {_AMS} {_TOP} {_DOWN} {_THRESHOLD}"
_SUGGESTED = " ".join(f"--set {link}.constant=suggested --set {link}.alpha=1e-6" for link in ("uplink", "downlink"))
"""With alpha = 1e-6, 100 clients and 50 participants, the threshold is 0.43."""
VARIANTS = Reproduction(
    "Options that the paper describes and does not compare: the LAG rule, the error memory of a skip, the first mirrors, "
    "the compressed model, and the threshold C / (alpha S) for S participants",
    f"{PAPER}. LAG skips an update that has changed less than the model has moved in the last ten rounds",
    {
        "fedbnlaca-variants": Study(
            "MNIST, MLP, two classes a client: our own study",
            Experiment(
                _MLP,
                {
                    "fed_nlaa": f"--algorithm fed_nlaa {_AMS} {_THRESHOLD}",
                    "LAG, alpha 0.03": f"--algorithm fed_ams {_AMS} --uplink lag --set uplink.alpha=0.03",
                    "LAG, alpha 0.01": f"--algorithm fed_ams {_AMS} --uplink lag --set uplink.alpha=0.01",
                    "fed_nlaca, threshold 1": f"--algorithm fed_nlaca {_AMS} {_TOP} --set uplink.threshold=1",
                    "fed_nlaca, threshold 1, (D.1)": f"--algorithm fed_nlaca {_AMS} {_TOP} --set uplink.threshold=1 "
                    "--set uplink.skip_feedback=computed",
                    "fed_bnlaca": _BOTH,
                    "fed_bnlaca, mirrors from 0": f"{_BOTH} --set downlink.mirror_start=zero",
                    "fed_bnlaca, as printed": f"{_BOTH} --set downlink.literal=true",
                    "fed_bnlaca, C / (alpha S)": f"--algorithm fed_bnlaca {_AMS} {_TOP} {_DOWN} {_SUGGESTED}",
                },
                rounds=60,
            ),
            measures=(SKIP_RATE, FINAL, LAST_FIVE, MEGABYTES, to_accuracy(0.85, "MB both ways")),
            against="bytes",
            quick=("LAG, alpha 0.01", "fed_bnlaca, as printed"),
        )
    },
)
