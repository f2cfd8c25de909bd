"""Fed-EF: Li and Li, "Analysis of error feedback in federated non-convex optimization", ICML 2023."""

from __future__ import annotations

from math import sqrt

from laconic.reproduce.claims import Claim, Comparable, LargerGap, MoreOften, in_order
from laconic.reproduce.computed import DISTRIBUTIONS, SCALES, TRIALS, compression_discrepancy
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import (
    FINAL,
    GRADIENT_CURVE,
    GRADIENT_NORM,
    LAST_FIVE,
    MEGABYTES_UP,
    OBJECTIVE,
    PAPER_BITS_UP,
    Measure,
    accuracy_at,
    largest_and_mean,
)
from laconic.reproduce.study import FULL_ONLY, Reproduction, Short, Study

PAPER = "Fed-EF (Li and Li, ICML 2023)"
FULL, SIGN, TOP_K, HEAVY, STOCHASTIC = "full", "sign", "top_k:0.01", "heavy_sign:0.05", "qsgd:4"
_LINKS = {
    FULL: "--compressor dense",
    SIGN: "--compressor sign@layer",
    **{f"top_k:{k}": f"--compressor top_k:{k}@layer" for k in ("0.001", "0.01", "0.05")},
    **{f"heavy_sign:{k}": f"--compressor heavy_sign:{k}@layer" for k in ("0.01", "0.05", "0.1")},
    **{f"qsgd:{bits}": f"--no-memory --compressor qsgd:{bits}@layer" for bits in (1, 2, 4)},
}
"""Every k and b of section 5."""
_RATES = {
    "fashion-mnist": {"sgd": "--server-lr 1 --local-lr 0.1", "ams": "--server-lr 0.01 --local-lr 0.1"},
    "mnist": {"sgd": "--server-lr 10 --local-lr 0.001", "ams": "--server-lr 0.001 --local-lr 0.01"},
    "cifar10": {"sgd": "--server-lr 1 --local-lr 0.1", "ams": "--server-lr 0.001 --local-lr 0.01"},
}
"""Table 2."""
_TABLES = {
    ("mnist", 100): {
        "sgd": {SIGN: 90.87, TOP_K: 91.04, HEAVY: 91.18, STOCHASTIC: 90.16, FULL: 90.85},
        "ams": {SIGN: 92.32, TOP_K: 92.74, HEAVY: 91.77, STOCHASTIC: 92.36, FULL: 92.23},
    },
    ("fashion-mnist", 100): {
        "sgd": {SIGN: 71.13, TOP_K: 71.16, HEAVY: 71.07, STOCHASTIC: 71.26, FULL: 71.20},
        "ams": {SIGN: 71.35, TOP_K: 71.90, HEAVY: 70.73, STOCHASTIC: 71.94, FULL: 71.97},
    },
    ("mnist", 20): {
        "sgd": {SIGN: 90.15, TOP_K: 90.61, HEAVY: 90.42, STOCHASTIC: 90.27, FULL: 90.22},
        "ams": {SIGN: 88.67, TOP_K: 88.97, HEAVY: 77.49, STOCHASTIC: 88.76, FULL: 89.05},
    },
    ("fashion-mnist", 20): {
        "sgd": {SIGN: 67.69, TOP_K: 67.47, HEAVY: 67.72, STOCHASTIC: 67.71, FULL: 67.50},
        "ams": {SIGN: 57.60, TOP_K: 64.09, HEAVY: 50.77, STOCHASTIC: 64.35, FULL: 64.18},
    },
}
"""Tables 3 to 6 by data set and participants: final accuracies in %, ten seeds."""
_MAIN = ("fashion-mnist", 20)
"""The setting that is run in the shortened form, too."""
_CLIPPED, _NO_MEMORY = f"ams {TOP_K}", "sign without memory"


_SINGLE = "--partition shards:2:single"
"""A client has at most two classes. The counts of MNIST's labels do not divide evenly into shards."""


def _setting(dataset: str, participants: int) -> str:
    shards = _SINGLE if dataset == "mnist" else "--partition shards:2"
    clients = f"{shards} --clients 200 --participants {participants}"
    return f"--dataset {dataset} {clients} --model cnn --local-epochs 1 --batch-size 32 --eval-every 20"


def _experiment(dataset: str, participants: int, links: dict[str, str]) -> Experiment:
    runs = {
        f"{server} {link}": f"--algorithm fed_ef_{server} {rates} {options}"
        for server, rates in _RATES[dataset].items()
        for link, options in links.items()
    }
    if (dataset, participants) == _MAIN:
        # Without gradient clipping, single clients diverge in their local epoch (round 17).
        runs[_CLIPPED] += " --set method.clip_norm=5"
    return Experiment(_setting(dataset, participants), runs, rounds=100)


def _claims(dataset: str, participants: int) -> dict[str, Comparable]:
    sgd = tuple(f"sgd {link}" for link in (SIGN, TOP_K, HEAVY))
    claims: dict[str, Comparable] = {
        "with SGD and error feedback, sign, top_k and heavy_sign match full precision (5.1)": Claim(
            FINAL, "near", sgd, "sgd full", margin=3
        ),
        "top_k and heavy_sign take at most a fiftieth of the bytes (paper, section 5.1: a hundredth of the bits)": Claim(
            MEGABYTES_UP, "less", sgd[1:], "sgd full", factor=0.02
        ),
    }
    if (dataset, participants) == _MAIN:
        fixed, free = ("ams sign", f"ams {HEAVY}"), (f"ams {TOP_K}", f"ams {STOCHASTIC}")
        claims |= {
            "with AMS, top_k and qsgd match full precision (Table 6)": Claim(FINAL, "near", free, "ams full", 3),
            "with AMS, top_k outperforms sign and heavy_sign (5.1)": Claim(FINAL, "less", fixed, free[:1]),
            "with AMS, heavy_sign is below sign (Table 6)": Claim(FINAL, "less", fixed[1:], fixed[:1]),
        }
    if (dataset, participants) == ("mnist", 100):
        claims["with SGD, qsgd is below heavy_sign (Figure 2)"] = Claim(
            FINAL, "less", f"sgd {STOCHASTIC}", f"sgd {HEAVY}"
        )
    return claims


def _paper(dataset: str, participants: int) -> dict[str, dict[str, float]]:
    table = _TABLES[dataset, participants]
    return {f"{server} {link}": {FINAL.name: value} for server, row in table.items() for link, value in row.items()}


_FIVE = {link: _LINKS[link] for link in (FULL, SIGN, TOP_K, HEAVY, STOCHASTIC)}
_NAMES = {20: "10 % of the clients per round", 100: "half of the clients per round"}


def _table(dataset: str, participants: int) -> Study:
    first = (dataset, participants) == _MAIN
    experiment = _experiment(dataset, participants, _FIVE)
    labels = tuple(label for label in experiment.runs if label != _CLIPPED)
    if first:
        rates = _RATES[dataset]["sgd"]
        experiment.runs[f"sgd {_NO_MEMORY}"] = f"--algorithm fed_ef_sgd {rates} --no-memory {_LINKS[SIGN]}"
    return Study(
        f"{dataset}, {_NAMES[participants]}",
        experiment,
        measures=(FINAL, LAST_FIVE, MEGABYTES_UP),
        paper=_paper(dataset, participants),
        claims=_claims(dataset, participants),
        seeds=10,
        short=Short(rounds=40, labels=labels) if first else FULL_ONLY,
        quick=("sgd full", "sgd sign", f"sgd {TOP_K}") if first else ("ams heavy_sign:0.05",),
    )


TABLES_3_6 = Reproduction(
    "Tables 3 to 6: final accuracy of sign, top_k, heavy_sign, qsgd and full precision, with SGD and AMS",
    PAPER,
    {
        "fed-ef-tables": _table("fashion-mnist", 20),
        "fed-ef-tables-fashion-half": _table("fashion-mnist", 100),
        "fed-ef-tables-mnist": _table("mnist", 20),
        "fed-ef-tables-mnist-half": _table("mnist", 100),
    },
)


def _every_rate(dataset: str, participants: int, folder: str) -> Study:
    first = (dataset, participants) == _MAIN
    experiment = _experiment(dataset, participants, _LINKS)
    light = (f"sgd {SIGN}", f"sgd {TOP_K}", "sgd heavy_sign:0.1", f"sgd {STOCHASTIC}")
    return Study(
        f"{dataset}, {_NAMES[participants]}",
        experiment,
        measures=(FINAL, LAST_FIVE, PAPER_BITS_UP, MEGABYTES_UP),
        claims={
            "with SGD, every compressor matches full precision at some k or b (5.1)": Claim(
                FINAL, "near", light, "sgd full", margin=3
            ),
            "qsgd with b = 1 and no memory is below qsgd with b = 4 (Figures 2, 3)": Claim(
                FINAL, "less", "sgd qsgd:1", "sgd qsgd:4"
            ),
            "top_k:0.001 is below top_k:0.05 (appendix D.3)": Claim(FINAL, "less", "sgd top_k:0.001", "sgd top_k:0.05"),
        },
        against="paper_bits_up",
        seeds=10,
        short=Short(rounds=20, labels=tuple(label for label in experiment.runs if label.startswith("sgd ")))
        if first
        else FULL_ONLY,
        quick=("sgd full", "sgd heavy_sign:0.1", "sgd qsgd:1", "ams top_k:0.05") if first else ("ams qsgd:2",),
        folder=folder,
    )


FIGURES_2_3 = Reproduction(
    "Figures 2 and 3: accuracy against bits, for every k and b",
    f"{PAPER}. k is the share of entries that top_k and heavy_sign keep, and b is the number of bits of qsgd",
    {
        "fed-ef-figures2-3-fashion": _every_rate("fashion-mnist", 20, "fed-ef-tables"),
        "fed-ef-figures2-3-fashion-half": _every_rate("fashion-mnist", 100, "fed-ef-tables-fashion-half"),
        "fed-ef-figures2-3-mnist": _every_rate("mnist", 20, "fed-ef-tables-mnist"),
        "fed-ef-figures2-3-mnist-half": _every_rate("mnist", 100, "fed-ef-tables-mnist-half"),
    },
)


def _cifar(participants: int) -> Study:
    runs = {
        f"{server} {link}": f"--algorithm fed_ef_{server} {rates} {_LINKS[link]}"
        for server, rates in _RATES["cifar10"].items()
        for link in (FULL, SIGN, TOP_K, "heavy_sign:0.1")
    }
    common = (
        f"--dataset cifar10 --augment crop:4+flip --model resnet18 --partition shards:2 --clients 200 "
        f"--participants {participants} --local-epochs 1 --batch-size 32 --eval-every 10 --device cuda"
    )
    links = tuple(f"sgd {link}" for link in (SIGN, TOP_K, "heavy_sign:0.1"))
    return Study(
        f"CIFAR-10, ResNet-18, {_NAMES[participants]} (needs a GPU)",
        Experiment(common, runs, rounds=200),
        measures=(FINAL, LAST_FIVE, PAPER_BITS_UP, MEGABYTES_UP),
        claims={
            "with SGD, all three compressors match full precision (Figures 6, 7)": Claim(
                LAST_FIVE, "near", links, "sgd full", margin=3
            )
        },
        against="paper_bits_up",
        needs_gpu=True,
        quick=("sgd sign",),
    )


FIGURES_6_7 = Reproduction(
    "Figures 6 and 7: CIFAR-10 and ResNet-18, with random crops and flips",
    f"{PAPER}. The paper does not give k; 0.01 for top_k and 0.1 for heavy_sign match its compression rates",
    {"fed-ef-figure6-cifar10": _cifar(100), "fed-ef-figure7-cifar10": _cifar(20)},
)

FIGURE_1 = Reproduction(
    "Figure 1: sign without error memory",
    PAPER,
    {
        "fed-ef-figure1": Study(
            "MNIST, an MLP of 784-200-10, half of 200 clients per round",
            Experiment(
                f"--dataset mnist {_SINGLE} --clients 200 --participants 100 --model mlp:200 --local-epochs 1 "
                "--batch-size 32 --local-lr 0.01 --server-lr 1 --eval-every 5 --algorithm fed_ef_sgd",
                {"full precision": _LINKS[FULL], SIGN: _LINKS[SIGN], _NO_MEMORY: f"--no-memory {_LINKS[SIGN]}"},
                rounds=100,
            ),
            measures=(accuracy_at(20), accuracy_at(50), accuracy_at(100), LAST_FIVE),
            claims={
                "sign without memory is far below full precision (Figure 1)": Claim(
                    LAST_FIVE, "less", _NO_MEMORY, "full precision", margin=5
                ),
                "with error feedback, sign matches full precision (section 3)": Claim(
                    LAST_FIVE, "near", "sign", "full precision", margin=2
                ),
            },
        )
    },
)

_LARGEST_Q_A, _MEAN_Q_A = largest_and_mean("q_a", "q_A")
_COMPRESSORS = ("sign", "top_k:0.01", "top_k:0.1")
FIGURE_21 = Reproduction(
    "Figure 21: q_A during training",
    f"{PAPER}. q_A is the relative error of the mean of the compressed updates, ‖mean C(x) - mean x‖ / ‖mean x‖",
    {
        f"fed-ef-figure21-{dataset}": Study(
            dataset,
            Experiment(
                f"{_setting(dataset, 20)} --algorithm fed_ef_sgd --server-lr 1 --local-lr 0.01 --diagnostics",
                {name: f"--compressor {name}@layer" for name in _COMPRESSORS},
                rounds=100,
            ),
            measures=(_LARGEST_Q_A, _MEAN_Q_A, FINAL),
            claims={"q_A stays below 1 (Assumption 4.3, Figure 21)": Claim(_LARGEST_Q_A, "less", _COMPRESSORS, 1.0)},
            drawn="q_a",
            short=Short(rounds=20),
            quick=_COMPRESSORS if dataset == "mnist" else ("sign",),
        )
        for dataset in ("mnist", "fashion-mnist")
    },
)

_MLP = f"--dataset mnist {_SINGLE} --local-epochs 1 --batch-size 32 --local-lr 0.1 --eval-every 5 --full-gradient"
_TOP = "--algorithm fed_ef_sgd --compressor top_k:0.01@layer"
_COUNTS = (20, 40, 60, 100)


def _figure_4(symbol: str, title: str, options: str, short: Short, quick: tuple[str, ...]) -> Study:
    label = f"{symbol} = {{}}"
    faster = f"with {symbol} = {{later}} {{what}} is lower than with {symbol} = {{earlier}} (Figure 4)"
    claims: dict[str, Comparable] = {}
    for what, measure in (("the gradient's norm", GRADIENT_CURVE), ("the training loss", OBJECTIVE)):
        claims |= in_order(faster.replace("{what}", what), measure, "less", label, _COUNTS)
    if symbol == "m":
        text = "raising m from 20 to 100 lowers the gradient's norm by a larger factor than raising n from 20 to 100"
        claims[f"{text} (Figure 4)"] = LargerGap(GRADIENT_CURVE, ("m = 20", "m = 100"), ("n = 20", "n = 100"))
    return Study(
        title,
        Experiment(
            f"{_MLP} {_TOP} --model mlp:200{' --clients 200' if symbol == 'm' else ''}",
            {f"{symbol} = {n}": f"{options.format(n)} --server-lr {0.1 * sqrt(n):.4f}" for n in _COUNTS},
            rounds=100,
        ),
        measures=(GRADIENT_CURVE, GRADIENT_NORM, OBJECTIVE, FINAL),
        claims=claims,
        beside="fed-ef-figure4-n" if symbol == "m" else "",
        drawn="gradient_norm_squared",
        second=("objective", "round"),
        seeds=10,
        short=short,
        quick=quick,
    )


_ALL, _SOME = "full participation, n clients", "m of 200 clients take part"
FIGURE_4 = Reproduction(
    "Figure 4: linear speedup in the number of clients n and of participants m",
    PAPER,
    {
        "fed-ef-figure4-n": _figure_4(
            "n", _ALL, "--clients {0} --participants {0}", Short(rounds=40), ("n = 20", "n = 40")
        ),
        "fed-ef-figure4-m": _figure_4("m", _SOME, "--participants {}", Short(rounds=40), ("m = 20", "m = 100")),
    },
)

_RESTART = "--set uplink.restart_after=10 --set uplink.restart_from=50"
FIGURE_5 = Reproduction(
    "Figure 5: error restarting, which drops error memories that are too old",
    f"{PAPER}. The paper does not give the number of participants; we use 20 of 200",
    {
        f"fed-ef-figure5-{name}": Study(
            title,
            Experiment(
                f"{_MLP} {_TOP} --model {model} --clients 200 --participants 20 --server-lr 1",
                {"standard": "", "restarting": _RESTART},
                rounds=150,
            ),
            measures=(GRADIENT_NORM, OBJECTIVE, FINAL),
            claims={
                "after round 50 the gradient's norm is smaller with restarting in most evaluations (Figure 5)": MoreOften(
                    "gradient_norm_squared", "restarting", "standard", after=50
                )
            },
            drawn="gradient_norm_squared",
            seeds=10,
        )
        for name, title, model in (("logistic", "logistic regression", "logistic"), ("mlp", "MLP", "mlp:200"))
    },
)

_Q_A, _Q_C = (Measure(name, lambda curve: None, 3) for name in ("q_A squared", "q_C squared"))
FIGURE_20 = Reproduction(
    "Figure 20: q_A of simulated gradients",
    f"{PAPER}. q_A is the relative error of the mean of the compressed gradients, ‖mean C(x) - mean x‖ / ‖mean x‖, and "
    "q_C is the relative error of the compressor on the mean, ‖C(mean x) - mean x‖ / ‖mean x‖. There are five clients and "
    "1,100 dimensions. Some coordinates of a client's gradient are strong: s times as large as the others. The paper does "
    "not say which ones; here each client has 200 strong coordinates of its own",
    {
        "fed-ef-figure20": Study(
            "TopK-0.1 and Sign, Gaussian and Laplace",
            compute=compression_discrepancy,
            trials=TRIALS,
            measures=(_Q_A, _Q_C),
            claims={
                "q_A is below 1 in all cases (Figure 20)": Claim(
                    _Q_A,
                    "less",
                    tuple(f"{c}, {d}, s = {s}" for c in ("top_k:0.1", "sign") for d in DISTRIBUTIONS for s in SCALES),
                    1.0,
                )
            },
        )
    },
)
