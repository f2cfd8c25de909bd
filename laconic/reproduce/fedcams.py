"""FedAMS and FedCAMS: Wang, Lin and Chen, "Communication-efficient adaptive federated learning", ICML 2022."""

from __future__ import annotations

from laconic.reproduce.claims import Claim
from laconic.reproduce.computed import RESNET_18, bits_of_two_way_training
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import (
    FINAL,
    LAST_FIVE,
    PAPER_BITS,
    PAPER_BITS_UP,
    TRAINING_LOSS,
    Measure,
    accuracy_at,
    to_accuracy,
)
from laconic.reproduce.study import Reproduction, Short, Study

PAPER = "FedCAMS (Wang, Lin and Chen, ICML 2022)"
IN_PLACE = "We use Fashion-MNIST and smaller networks instead of CIFAR-10 and ResNet-18, so compare only rankings"
REACHED = "Costs to 85 % end at the first evaluation with at least this accuracy"
_CLIENTS = "--partition iid --clients 100 --local-epochs 3 --batch-size 20"
_FASHION = f"--dataset fashion-mnist --model lenet5 {_CLIENTS} --participants 10 --eval-every 5"
_BATCH_NORM = _FASHION.replace("lenet5", "cnn_fashion")
"""The network of the published code for Fashion-MNIST. It has batch norm, as ResNet-18."""
_CIFAR = (
    f"--dataset cifar10 --augment crop:4+flip --model resnet18 {_CLIENTS} --participants 10 "
    "--eval-every 10 --device cuda"
)
_AMS = "--local-lr 0.01 --server-lr 1 --set optimizer.epsilon=1e-3"
_COMPRESSED = {
    "fed_ams": f"--algorithm fed_ams {_AMS}",
    "sign": f"--algorithm fed_cams --compressor sign@model {_AMS}",
    "top_k:1/64": f"--algorithm fed_cams --compressor top_k:1/64@model {_AMS}",
    "top_k:1/128": f"--algorithm fed_cams --compressor top_k:1/128@model {_AMS}",
    "top_k:1/256": f"--algorithm fed_cams --compressor top_k:1/256@model {_AMS}",
}
_COMPRESSED_CLAIMS = {
    "FedAMS has the lowest training loss": Claim(TRAINING_LOSS, "less", "fed_ams", tuple(_COMPRESSED)[1:]),
    "sign and top_k:1/64 have the same accuracy": Claim(LAST_FIVE, "near", "sign", "top_k:1/64", margin=1.5),
    "top_k:1/64 is above top_k:1/128": Claim(LAST_FIVE, "more", "top_k:1/64", "top_k:1/128"),
    "top_k:1/128 is above top_k:1/256": Claim(LAST_FIVE, "more", "top_k:1/128", "top_k:1/256"),
    "sign costs at most a tenth more bits than top_k:1/64": Claim(
        PAPER_BITS_UP, "less", "sign", "top_k:1/64", factor=1.1
    ),
    "top_k:1/64 costs at most a tenth more bits than sign": Claim(
        PAPER_BITS_UP, "less", "top_k:1/64", "sign", factor=1.1
    ),
}


def _figure_4(setting: str, title: str, gpu: bool, quick: tuple[str, ...] = ("sign", "top_k:1/64")) -> Study:
    return Study(
        title,
        Experiment(setting, _COMPRESSED, rounds=500),
        measures=(FINAL, LAST_FIVE, TRAINING_LOSS, PAPER_BITS_UP, to_accuracy(0.85, "uplink MB")),
        claims=_COMPRESSED_CLAIMS,
        against="bytes_up",
        second=("training_loss", "bytes_up"),
        short=Short(rounds=40),
        needs_gpu=gpu,
        quick=quick,
    )


FIGURE_4 = Reproduction(
    "Figure 4: FedCAMS with sign and top-k against uncompressed FedAMS",
    f"{PAPER}. {IN_PLACE}. With a GPU, the study also runs CIFAR-10 with ResNet-18. {REACHED}",
    {
        "fedcams-figure4": _figure_4(_FASHION, "Fashion-MNIST, LeNet-5", gpu=False, quick=()),
        "fedcams-figure4-batch-norm": _figure_4(
            _BATCH_NORM, "Fashion-MNIST, a CNN with batch norm", gpu=False, quick=("sign",)
        ),
        "fedcams-figure4-cifar10": _figure_4(_CIFAR, "CIFAR-10, ResNet-18 (needs a GPU)", gpu=True),
    },
)

_UNCOMPRESSED, _ONE_WAY, _TWO_WAY, _PACKETS = (
    Measure(name, lambda curve: None, scientific=True)
    for name in ("uncompressed, bits", "one-way, bits", "two-way, bits", "two-way, bits of our packets")
)
_BITS = {
    "sign": (3.58e11, 1.84e11, 1.12e10),
    "top_k:1/64": (3.58e11, 1.84e11, 1.12e10),
    "top_k:1/128": (3.58e11, 1.82e11, 5.59e9),
    "top_k:1/256": (3.58e11, 1.80e11, 2.79e9),
}
"""Table 2, ResNet-18, 500 rounds."""
TABLES_1_2 = Reproduction(
    "Tables 1 and 2: bits that one client sends and receives in 500 rounds, ResNet-18",
    f"{PAPER}. These numbers are computed exactly: in addition to the bytes of its packets, Laconic counts bits by the "
    "paper's formulas. The paper rounds to three digits. One-way compresses only updates, and two-way compresses the "
    "model, too",
    {
        "fedcams-tables1-2": Study(
            f"d = {RESNET_18:,}, T = 500",
            compute=bits_of_two_way_training,
            exact=True,
            measures=(_UNCOMPRESSED, _ONE_WAY, _TWO_WAY, _PACKETS),
            paper={
                label: dict(zip((_UNCOMPRESSED.name, _ONE_WAY.name, _TWO_WAY.name), values, strict=True))
                for label, values in _BITS.items()
            },
            claims={
                f"{label}, {measure.name}: equal to Table 2 within half of its last printed digit": Claim(
                    measure, "near", label, value, margin=0.5 * 10.0 ** (len(str(int(value))) - 3)
                )
                for label, values in _BITS.items()
                for measure, value in zip((_UNCOMPRESSED, _ONE_WAY, _TWO_WAY), values, strict=True)
            },
        )
    },
)

_WAYS = {
    "uncompressed": "--algorithm fed_ams",
    **{
        f"{compressor}, {ways}": f"--algorithm {algorithm} --set uplink.compressor={compressor}"
        + (f" --set downlink.compressor={compressor}" if ways == "two-way" else "")
        for compressor in ("sign", "top_k:1/64")
        for ways, algorithm in (("one-way", "fed_cams"), ("two-way", "fed_cams_two_way"))
    },
}


def _two_way_claims(compressor: str) -> dict[str, Claim]:
    one, two = f"{compressor}, one-way", f"{compressor}, two-way"
    return {
        f"{compressor}: two-way compression is as accurate as one-way (appendix D)": Claim(
            LAST_FIVE, "near", two, one, margin=1.5
        ),
        f"{compressor}: one-way takes at most 55 % of the uncompressed bits (Table 2: 50 to 51 %)": Claim(
            PAPER_BITS, "less", one, "uncompressed", factor=0.55
        ),
        f"{compressor}: two-way takes at most a tenth of the bits of one-way (Table 2: 6 %)": Claim(
            PAPER_BITS, "less", two, one, factor=0.1
        ),
    }


def _two_way(clients: str, title: str, claims: dict[str, Claim], quick: tuple[str, ...]) -> Study:
    return Study(
        title,
        Experiment(
            f"--dataset fashion-mnist --model lenet5 --partition iid {clients} --local-epochs 1 --batch-size 20 "
            "--local-lr 0.05 --server-lr 0.03 --set optimizer.epsilon=1e-3 --eval-every 5",
            _WAYS,
            rounds=200,
        ),
        measures=(FINAL, LAST_FIVE, TRAINING_LOSS, PAPER_BITS),
        claims=claims,
        against="bytes",
        short=Short(rounds=30),
        quick=quick,
    )


TWO_WAY = Reproduction(
    "Appendix D: two-way compression, of the updates and of the model",
    f"{PAPER}. The paper proposes two-way compression for full participation only, so our own study of partial "
    f"participation has no claims to judge. {IN_PLACE}. Runs have one local epoch and the "
    "default rates of fed_ams",
    {
        "fedcams-two-way": _two_way(
            "--clients 20 --participants 20",
            "full participation, 20 clients",
            _two_way_claims("sign") | _two_way_claims("top_k:1/64"),
            ("uncompressed", "sign, two-way"),
        ),
        "fedcams-two-way-sampled": _two_way(
            "--clients 100 --participants 10",
            "our own study: 10 of 100 clients take part",
            {},
            ("top_k:1/64, two-way",),
        ),
    },
)

_EPSILONS = ("1e-1", "1e-2", "1e-3", "1e-4", "1e-6", "1e-8")


def _epsilon(setting: str, title: str, quick: tuple[str, ...]) -> Study:
    others = tuple(f"epsilon {value}" for value in _EPSILONS if value != "1e-3")
    return Study(
        title,
        Experiment(
            f"--algorithm fed_ams {setting} --local-lr 0.01 --server-lr 1",
            {f"epsilon {value}": f"--set optimizer.epsilon={value}" for value in _EPSILONS},
            rounds=500,
        ),
        measures=(FINAL, LAST_FIVE),
        paper={
            f"epsilon {value}": {FINAL.name: accuracy}
            for value, accuracy in zip(_EPSILONS, (90.45, 90.51, 90.94, 90.72, 90.49, 90.30), strict=True)
        },
        claims={
            "epsilon = 1e-3 is best (Table 3)": Claim(LAST_FIVE, "more", "epsilon 1e-3", others),
            "with every epsilon, the accuracy is within one point of that with 1e-3 (Table 3)": Claim(
                LAST_FIVE, "near", "epsilon 1e-3", others, margin=1
            ),
        },
        short=Short(rounds=25),
        quick=quick,
    )


EPSILON = Reproduction(
    "Table 3: the epsilon of FedAMS",
    f"{PAPER}. {IN_PLACE}",
    {
        "fedcams-epsilon": _epsilon(_FASHION, "Fashion-MNIST, LeNet-5", ()),
        "fedcams-epsilon-batch-norm": _epsilon(
            _BATCH_NORM, "Fashion-MNIST, a CNN with batch norm", ("epsilon 1e-3", "epsilon 1e-8")
        ),
    },
)

_ADAPTIVE = {
    "fed_avg": "--algorithm fed_avg --local-lr 0.01 --server-lr 1",
    "fed_adam": "--algorithm fed_adam --local-lr 0.01 --server-lr 0.1 --set optimizer.epsilon=0.1",
    "fed_yogi": "--algorithm fed_yogi --local-lr 0.01 --server-lr 1 --set optimizer.epsilon=0.1",
    "fed_amsgrad": "--algorithm fed_amsgrad --local-lr 0.01 --server-lr 0.1 --set optimizer.epsilon=0.1",
    "fed_ams": f"--algorithm fed_ams {_AMS}",
    "fed_ams, server rate 0.1": f"--algorithm fed_ams {_AMS} --server-lr 0.1",
}
_OTHERS = ("fed_avg", "fed_adam", "fed_yogi", "fed_amsgrad")


def _figure_1(setting: str, title: str, short: Short, quick: tuple[str, ...]) -> Study:
    return Study(
        title,
        Experiment(setting, _ADAPTIVE, rounds=500),
        measures=(FINAL, LAST_FIVE, TRAINING_LOSS),
        claims={
            "FedAMS ends with the lowest training loss": Claim(TRAINING_LOSS, "less", "fed_ams", _OTHERS),
            "FedAMS ends with the highest accuracy": Claim(LAST_FIVE, "more", "fed_ams", _OTHERS),
            "FedYogi is near FedAMS": Claim(LAST_FIVE, "near", "fed_yogi", "fed_ams", margin=1),
            "FedAdam and FedAMSGrad have the same accuracy": Claim(
                LAST_FIVE, "near", "fed_adam", "fed_amsgrad", margin=1
            ),
            "FedAvg is above FedAdam and FedAMSGrad": Claim(LAST_FIVE, "more", "fed_avg", ("fed_adam", "fed_amsgrad")),
        },
        second=("training_loss", "round"),
        short=short,
        quick=quick,
    )


_AS_PRINTED = ("fed_ams", *_OTHERS)
FIGURES_1_3 = Reproduction(
    "Figures 1 to 3: FedAMS against the baselines, and the numbers of participants and of local epochs",
    f"{PAPER}. {IN_PLACE}. The rates are those of the paper's appendix E.1. {REACHED}",
    {
        "fedcams-figure1": _figure_1(_FASHION, "Figure 1: baselines, LeNet-5", Short(rounds=100), tuple(_ADAPTIVE)),
        "fedcams-figure1-batch-norm": _figure_1(
            _BATCH_NORM,
            "Figure 1: baselines, a CNN with batch norm",
            Short(rounds=30, labels=_AS_PRINTED),
            ("fed_ams", "fed_yogi"),
        ),
        "fedcams-figure2": Study(
            "Figure 2: participants n",
            Experiment(
                f"--algorithm fed_ams {_FASHION} {_AMS}",
                {f"n = {count}": f"--participants {count}" for count in (5, 10, 20)},
                rounds=500,
            ),
            measures=(accuracy_at(20), to_accuracy(0.85, "rounds"), FINAL, LAST_FIVE),
            claims={
                "n = 20 is faster than n = 10": Claim(accuracy_at(20), "more", "n = 20", "n = 10"),
                "n = 10 is faster than n = 5": Claim(accuracy_at(20), "more", "n = 10", "n = 5"),
            },
            short=Short(rounds=30),
            quick=("n = 5", "n = 20"),
        ),
        "fedcams-figure3": Study(
            "Figure 3: local epochs E",
            Experiment(
                f"--algorithm fed_ams {_FASHION} {_AMS}",
                {f"E = {count}": f"--local-epochs {count}" for count in (3, 10, 30, 100)},
                rounds=500,
            ),
            measures=(accuracy_at(20), FINAL, LAST_FIVE),
            claims={
                "E = 10 is faster than E = 3": Claim(accuracy_at(20), "more", "E = 10", "E = 3"),
                "E = 30 is faster than E = 10": Claim(accuracy_at(20), "more", "E = 30", "E = 10"),
                "a larger E does not end higher": Claim(LAST_FIVE, "near", "E = 30", ("E = 3", "E = 10"), margin=1.5),
            },
            short=Short(rounds=20, labels=("E = 3", "E = 10")),
            quick=("E = 3", "E = 10"),
        ),
    },
)
