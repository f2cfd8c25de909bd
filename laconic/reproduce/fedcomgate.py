"""FedCOM, FedGATE, FedCOMGATE: Haddadpour et al., "Federated learning with compression", AISTATS 2021, supplement."""

from __future__ import annotations

from laconic.reproduce.claims import Claim, in_order
from laconic.reproduce.computed import gradient_similarity
from laconic.reproduce.experiments import GRADIENT_TRACKING, Experiment
from laconic.reproduce.measures import FINAL, LAST_FIVE, LOSS, MEGABYTES, MEGABYTES_UP, Measure, to_accuracy
from laconic.reproduce.study import Reproduction, Short, Study

PAPER = "FedCOMGATE (Haddadpour et al., AISTATS 2021), supplement, which has figures but no numbers"
_UP = to_accuracy(0.8, "uplink MB")
_BOTH = to_accuracy(0.8, "MB both ways")
_QUANTIZED = "fed_comgate, quantized mean"
_LIGHT, _HEAVY = ("fed_comgate", "fed_paq"), ("fed_avg", "scaffold", "fed_gate")
FIGURE_6 = Reproduction(
    "Figure 6: each client is a writer, and the data are nearly homogeneous",
    f"{PAPER}. We use 500 writers of MNIST instead of the paper's 1,000 writers of EMNIST. Costs to 80 % end at the first "
    "evaluation with at least this accuracy",
    {
        "fedcomgate-figure6": Study(
            "MNIST by writer, an MLP of two layers of 200, a tenth of the clients per round, rate 0.01",
            Experiment(
                "--dataset mnist-by-writer --partition natural --clients 500 --participants 50 --model mlp:200,200 "
                "--local-steps 10 --batch-size 20 --local-lr 0.01 --eval-every 10",
                {name: f"--algorithm {name}" for name in ("fed_avg", "fed_paq", "scaffold", "fed_gate", "fed_comgate")}
                | {_QUANTIZED: "--algorithm fed_comgate --set method.mean_compressor=uniform:8@layer"},
                rounds=300,
            ),
            measures=(_UP, _BOTH, FINAL, LAST_FIVE, MEGABYTES),
            claims={
                "FedCOMGATE and FedPAQ need the fewest uplink bytes to reach 80 % (Figure 6)": Claim(
                    _UP, "less", _LIGHT, _HEAVY
                ),
                "a quantized mean (Section B.2) needs fewer bytes in both directions": Claim(
                    _BOTH, "less", _QUANTIZED, "fed_comgate"
                ),
                "all end at the same accuracy (Figure 6)": Claim(LAST_FIVE, "near", _LIGHT, _HEAVY, margin=1),
            },
            against="bytes",
            short=Short(rounds=150),
            quick=("fed_paq", "scaffold", "fed_comgate"),
        )
    },
)

_COSINES = tuple(
    Measure(name, lambda curve: None, digits)
    for name, digits in (
        ("mean cosine", 3),
        ("lowest cosine", 3),
        ("share of negative cosines, %", 0),
        ("largest number of other clients with which one client has a cosine above 0.5", 0),
    )
)
_WRITERS, _CLASSES = "one writer a client", "two classes a client"
FIGURE_7 = Reproduction(
    "Figure 7: cosine similarity of the clients' gradients",
    f"{PAPER}. We use MNIST by writer instead of EMNIST",
    {
        "fedcomgate-figure7": Study(
            "20 clients, the initial MLP of two layers of 200",
            compute=gradient_similarity,
            measures=_COSINES,
            claims={
                "writers' gradients are similar: no cosine is negative (Figure 7)": Claim(
                    _COSINES[1], "more", _WRITERS, 0.0
                ),
                "with two classes many gradients are dissimilar: some cosines are negative (Figure 7)": Claim(
                    _COSINES[1], "less", _CLASSES, 0.0
                ),
                "with two classes each client has a cosine above 0.5 with fewer than 8 others (the paper: at most 4)": Claim(
                    _COSINES[3], "less", _CLASSES, 8.0
                ),
                "writers are more similar than clients with two classes (Figure 7)": Claim(
                    _COSINES[0], "more", _WRITERS, _CLASSES
                ),
            },
        )
    },
)

_README = "--clients 20 --model mlp:200,200 --local-steps 10 --batch-size 50 --local-lr 0.05"
"""The example of the published code, with a lower rate: at its 0.1, FedGATE and SCAFFOLD diverge here with 20 clients."""
_TWO_CLASSES = {"mnist": "--partition shards:2:single", "fashion-mnist": "--partition shards:2"}
"""A client has at most two classes. The counts of MNIST's labels do not divide evenly into shards."""
_RATIOS = ("0.5", "0.3", "0.1")
FIGURE_8 = Reproduction(
    "Figure 8: sparsification with error memory",
    f"{PAPER}. C_r is the paper's compression ratio, the share of the bytes that is sent. The paper "
    "counts a position like a value, so k/d = C_r / 2. Our packets are smaller, because positions are entropy-coded",
    {
        f"fedcomgate-figure8-{dataset}": Study(
            dataset,
            Experiment(
                f"--dataset {dataset} {_TWO_CLASSES[dataset]} {_README} --eval-every 5",
                {"fed_gate": "--algorithm fed_gate"}
                | {
                    f"C_r = {ratio}": f"--algorithm fed_comgate --memory --compressor top_k:{float(ratio) / 2:g}@layer"
                    for ratio in _RATIOS
                },
                rounds=100,
            ),
            measures=(FINAL, LAST_FIVE, LOSS, MEGABYTES_UP),
            claims={
                "with C_r = 0.5 almost no accuracy is lost (Figure 8)": Claim(
                    LAST_FIVE, "near", "C_r = 0.5", "fed_gate", margin=1
                ),
                "C_r = 0.1 leaves a residual error (Figure 8)": Claim(LAST_FIVE, "less", "C_r = 0.1", "fed_gate"),
            },
            against="bytes",
            quick=("fed_gate", "C_r = 0.1") if dataset == "mnist" else ("C_r = 0.5",),
        )
        for dataset in ("mnist", "fashion-mnist")
    },
)

_NOISES = (0, 64, 96, 128)
_STEPS = (5, 10, 20)
FIGURE_9 = Reproduction(
    "Figure 9: noise of the quantizer, and whether more local steps compensate for it",
    f"{PAPER}. The paper does not give the ranges of the noise",
    {
        "fedcomgate-figure9a": Study(
            "(a) noise on the zero point of an 8-bit grid, measured in steps of the grid",
            Experiment(
                f"--algorithm fed_comgate --dataset mnist {_TWO_CLASSES['mnist']} {_README} --eval-every 5",
                {f"noise {n}": f"--compressor uniform:8,zero_point_noise={n}@layer" for n in _NOISES},
                rounds=100,
            ),
            measures=(FINAL, LAST_FIVE, LOSS),
            claims=in_order("noise {later} is worse than {earlier} (Figure 9a)", LOSS, "more", "noise {}", _NOISES),
            quick=("noise 0", "noise 128"),
        ),
        "fedcomgate-figure9b": Study(
            "(b) more local steps tau, all with noise 64",
            Experiment(
                f"--algorithm fed_comgate --dataset mnist {_TWO_CLASSES['mnist']} {_README} --eval-every 5 "
                "--compressor uniform:8,zero_point_noise=64@layer",
                {f"tau = {steps}": f"--local-steps {steps}" for steps in _STEPS},
                rounds=100,
            ),
            measures=(FINAL, LAST_FIVE, LOSS),
            claims=in_order("tau = {later} is better than {earlier} (Figure 9b)", LOSS, "less", "tau = {}", _STEPS),
            quick=("tau = 5", "tau = 20"),
        ),
    },
)


def _tracking_claims(who: str) -> dict[str, Claim]:
    gate, comgate, scaffold = f"fed_gate, {who}", f"fed_comgate, {who}", f"scaffold, {who}"
    return {
        f"FedGATE's clients send half of the bytes of SCAFFOLD's, {who} (section 4)": Claim(
            MEGABYTES_UP, "less", gate, scaffold, factor=0.51
        ),
        f"FedGATE ends at SCAFFOLD's accuracy, {who}": Claim(LAST_FIVE, "near", gate, scaffold, margin=0.5),
        f"FedCOMGATE ends at FedGATE's accuracy, {who}": Claim(LAST_FIVE, "near", comgate, gate, margin=0.5),
        f"FedCOMGATE needs at most a quarter of FedGATE's bytes up, {who} (8 bits of 32)": Claim(
            MEGABYTES_UP, "less", comgate, gate, factor=0.25
        ),
    }


TRACKING = Reproduction(
    "Gradient tracking against control variates: FedGATE reaches SCAFFOLD's accuracy with half of the bytes up",
    PAPER.partition(", which")[0],
    {
        "gradient-tracking": Study(
            "MNIST, two classes per client; 10 of 10 clients, or 20 of 100",
            GRADIENT_TRACKING,
            measures=(FINAL, LAST_FIVE, MEGABYTES_UP, MEGABYTES),
            claims=_tracking_claims("10 of 10")
            | _tracking_claims("20 of 100")
            | {
                "FedCOMGATE with a quantized mean needs at most three tenths of FedGATE's bytes both ways, 10 of 10 (8 bits "
                "of 32; B.2)": Claim(
                    MEGABYTES,
                    "less",
                    "fed_comgate Option I, quantized mean, 10 of 10",
                    "fed_gate Option I, 10 of 10",
                    factor=0.3,
                )
            },
            against="bytes",
            quick=("scaffold, 10 of 10", "fed_gate, 20 of 100", "fed_gate Option I, 10 of 10"),
        )
    },
)
