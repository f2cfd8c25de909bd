"""FedAMD: Wu et al., "Anchor sampling for federated learning with partial client participation", ICML 2023."""

from __future__ import annotations

from dataclasses import replace

from laconic.reproduce.claims import Claim, Comparable, Relation
from laconic.reproduce.experiments import (
    FED_AMD_AS_COUNTED,
    FED_AMD_FIXED,
    FED_AMD_RATES,
    FED_AMD_RUNS,
    FED_AMD_SHUFFLED,
    Experiment,
)
from laconic.reproduce.measures import FINAL, LAST_FIVE, TRAINING_CURVE, TRAINING_LOSS, Measure, to_accuracy
from laconic.reproduce.study import FULL_ONLY, Axis, Reproduction, Short, Study

PAPER = "FedAMD (Wu et al., ICML 2023)"
GRADIENTS, BITS, ROUNDS = (to_accuracy(0.75, cost) for cost in ("1e5 gradients", "x 32 Mbit", "rounds"))
MEASURES = (GRADIENTS, BITS, to_accuracy(0.75, "MB both ways"), ROUNDS, FINAL, LAST_FIVE)
BASELINES = ("fed_avg", "scaffold", "bvr_l_sgd", "fed_page")
CONSTANT, SEQUENTIAL = "fed_amd constant", "fed_amd sequential"
_PAPER_TABLES = {
    20: {
        "bvr_l_sgd": (101.9, 853.9, 310, 77.0),
        "fed_avg": (40.8, 566.9, 318, 76.4),
        "fed_page": (148.6, 1670.4, 271, 79.2),
        "scaffold": (47.5, 1318.6, 370, 75.9),
        CONSTANT: (35.5, 489.8, 259, 80.6),
        SEQUENTIAL: (40.2, 475.3, 213, 79.5),
    },
    40: {
        "bvr_l_sgd": (177.4, 1492.3, 275, 78.6),
        "fed_avg": (78.3, 1087.5, 305, 76.7),
        "fed_page": (164.3, 1622.4, 203, 80.6),
        "scaffold": (91.4, 2537.8, 356, 76.0),
        CONSTANT: (55.0, 776.3, 209, 82.3),
        SEQUENTIAL: (80.4, 904.5, 190, 80.8),
    },
    100: {
        "bvr_l_sgd": (463.8, 3908.7, 291, 78.0),
        "fed_avg": (186.9, 2594.5, 291, 77.0),
        "fed_page": (525.5, 4540.3, 339, 77.1),
        "scaffold": (250.9, 6966.0, 391, 75.1),
        CONSTANT: (153.9, 2147.8, 229, 83.4),
        SEQUENTIAL: (253.8, 2998.8, 269, 78.7),
    },
}
"""Table 2 by the number of participants A: 1e5 gradients, 32 Mbit and rounds to 75 %, final accuracy in %."""


def _paper(table: dict[str, tuple[float, float, int, float]]) -> dict[str, dict[str, float]]:
    names = [measure.name for measure in (GRADIENTS, BITS, ROUNDS, FINAL)]
    return {label: dict(zip(names, values, strict=True)) for label, values in table.items()}


_FORMS_OF_TABLE_2: dict[int, dict[str, tuple[str, ...]]] = {
    20: dict.fromkeys(("rounds", "bits", "gradients", "accuracy"), (CONSTANT, SEQUENTIAL)),
    40: {
        **{"rounds": (SEQUENTIAL,), "gradients": (CONSTANT,)},
        **dict.fromkeys(("bits", "accuracy"), (CONSTANT, SEQUENTIAL)),
    },
    100: {
        **dict.fromkeys(("bits", "gradients"), (CONSTANT,)),
        **dict.fromkeys(("rounds", "accuracy"), (CONSTANT, SEQUENTIAL)),
    },
}
"""The forms of FedAMD that are ahead of all baselines in Table 2, by the number of participants."""
_IN_WORDS = {
    (CONSTANT, SEQUENTIAL): "in both forms",
    (CONSTANT,): "with constant p",
    (SEQUENTIAL,): "in its sequential form",
}


def _claims(participants: int) -> dict[str, Comparable]:
    ahead = _FORMS_OF_TABLE_2[participants]
    statements: dict[str, tuple[str, Measure, Relation]] = {
        "rounds": ("reaches 75 % in fewer rounds than every baseline", ROUNDS, "less"),
        "bits": ("reaches 75 % with fewer bits than every baseline", BITS, "less"),
        "gradients": ("reaches 75 % with fewer gradients than every baseline", GRADIENTS, "less"),
        "accuracy": ("ends more accurate than every baseline", FINAL, "more"),
    }
    claims: dict[str, Comparable] = {
        f"FedAMD {_IN_WORDS[ahead[name]]} {text} (Table 2)": Claim(measure, relation, ahead[name], BASELINES)
        for name, (text, measure, relation) in statements.items()
    }
    claims["SCAFFOLD ends below FedAvg (Table 2)"] = Claim(FINAL, "less", "scaffold", "fed_avg")
    if participants != 20:
        claims["constant p ends above sequential (section 5)"] = Claim(FINAL, "more", CONSTANT, SEQUENTIAL)
    return claims


LOSS_AGAINST_GRADIENTS: tuple[str, Axis] = ("training_loss", "gradients")
"""The second axes of Figures 8 to 10."""
LEARNED = 50.0
"""Runs that all end below this have failed, and their order says nothing."""


def _table_2(participants: int, quick: tuple[str, ...], order: str = "", short: Short = FULL_ONLY) -> Study:
    experiment = FED_AMD_FIXED if order else FED_AMD_SHUFFLED
    common = experiment.common.replace("--participants 20", f"--participants {participants}")
    return Study(
        f"A = {participants}, {order or 'batches reshuffled every round'}",
        replace(experiment, common=common),
        measures=MEASURES,
        paper=_paper(_PAPER_TABLES[participants]),
        claims=_claims(participants),
        second=LOSS_AGAINST_GRADIENTS,
        seeds=3,
        short=short,
        quick=quick,
    )


TABLE_2 = Reproduction(
    "Table 2: costs to 75 % and final accuracy, six algorithms, 20, 40 and 100 of 100 clients",
    f"{PAPER}. On this page, A is the number of participants, and K the number of local steps. Costs to 75 % end at "
    "the first evaluation with at least this accuracy. x 32 Mbit is the paper's unit of communication: a million "
    "values of 32 bits. 1e5 gradients are 100,000 gradients of single examples. Anchors recompute their stored "
    "gradient, and miners train. In FedAMD's constant form, each participant is an anchor with probability p. In the "
    "sequential form, all participants are anchors in one round and miners in the next",
    {
        "fed-amd-table2-shuffled": _table_2(
            20, (CONSTANT, SEQUENTIAL, "fed_avg"), short=Short(rounds=150, rates=("0.03", "0.01"), trial=20)
        ),
        "fed-amd-table2-fixed": _table_2(20, (CONSTANT,), "the same batches in every round, sorted by label"),
        "fed-amd-table2-as-counted": Study(
            "A = 20, variants of BVR-L-SGD and FedPAGE whose costs are closer to the paper's counts",
            FED_AMD_AS_COUNTED,
            measures=MEASURES,
            paper=_paper({label: _PAPER_TABLES[20][label] for label in FED_AMD_AS_COUNTED.runs}),
            seeds=3,
            short=FULL_ONLY,
            quick=("bvr_l_sgd", "fed_page"),
        ),
        "fed-amd-table2-40": _table_2(40, ("bvr_l_sgd",)),
        "fed-amd-table2-100": _table_2(100, ("bvr_l_sgd",)),
    },
)

_SETTING = (
    "--algorithm fed_amd --dataset fashion-mnist --partition pairs --clients 100 --model lenet5 --batch-size 64 "
    "--eval-every 5"
)
_PATTERNS = {
    "p = 0.5": "--set method.probability=0.5",
    "p = 0.7": "--set method.probability=0.7",
    "p = 0.9": "--set method.probability=0.9",
    "p optimal": "--set method.probability=optimal",
    "{0,1}": "--set method.period=2",
    "{0,0,1}": "--set method.period=3",
}
_SEQUENCES: dict[str, Comparable] = {
    "the pattern {0,0,1} is worse than {0,1} (section 5: much worse)": Claim(LAST_FIVE, "less", "{0,0,1}", "{0,1}")
}


def optimal(
    others: tuple[str, ...], ones: tuple[str, ...] = ("p optimal", "p = 0.9"), case: str = ""
) -> dict[str, Claim]:
    """The best performance of constant p "is achieved when p approximates or equals optimal" (section 5)."""
    return {
        f"{one} is above {' and '.join(others)}{case} (section 5)": Claim(
            LAST_FIVE, "more", f"{one}{case}", tuple(f"{other}{case}" for other in others)
        )
        for one in ones
    }


def _patterns(participants: int, steps: int) -> Experiment:
    common = f"{_SETTING} --participants {participants} --local-steps {steps}"
    runs = {label: f"{pattern} --local-lr {{rate}}" for label, pattern in _PATTERNS.items()}
    return Experiment(common, runs, rounds=400, rates=FED_AMD_RATES, long_trials=tuple(runs))


_SHORT_PATTERNS = Short(rounds=400, rates=("0.01",), trial=1)


def _figure_1(participants: int) -> Study:
    claims: dict[str, Comparable] = {**_SEQUENCES, **optimal(("p = 0.5", "p = 0.7"))}
    if participants == 20:
        text = "at A = 20 the optimal p and {0,1} are above p = 0.5, p = 0.7 and {0,0,1} (Figure 1a)"
        claims[text] = Claim(LAST_FIVE, "more", ("p optimal", "{0,1}"), ("p = 0.5", "p = 0.7", "{0,0,1}"))
        text = "at A = 20 the optimal p and {0,1} are within two points of each other (Figure 1a)"
        claims[text] = Claim(LAST_FIVE, "near", "p optimal", "{0,1}", margin=2)
    else:
        text = f"at A = {participants} constant p is above sequential (Figure 1b, 1c)"
        claims[text] = Claim(LAST_FIVE, "more", "p optimal", ("{0,1}", "{0,0,1}"))
    return Study(
        f"A = {participants}",
        _patterns(participants, 10),
        measures=(ROUNDS, FINAL, LAST_FIVE),
        claims=claims,
        seeds=3,
        short=_SHORT_PATTERNS if participants == 20 else FULL_ONLY,
        quick=("p optimal", "{0,1}", "{0,0,1}") if participants == 20 else ("{0,1}",),
    )


FIGURE_1 = Reproduction(
    "Figure 1: the probability of being an anchor",
    f"{PAPER}. The paper does not list the constant probabilities that it tried; ours are around its optimal p. In a "
    "pattern such as {0,1}, 1 is a round of anchors, and 0 is a round of miners",
    {f"fedamd-figure1-{participants}": _figure_1(participants) for participants in (20, 40, 100)},
)

_BATCHES = ("64", "256", "full")
_FORMS = {"p = 0.9": "probability=0.9", "p optimal": "probability=optimal", "{0,1}": "period=2"}


FIGURES_2_4 = Reproduction(
    "Figures 2 to 4: the anchors' batch size b, for three choices of the probability p",
    PAPER,
    {
        "fedamd-figures2-4": Study(
            "A = 20, K = 10",
            Experiment(
                f"{_SETTING} --participants 20 --local-steps 10",
                {
                    f"{form}, b = {batch}": f"--set method.{setting} --set method.anchor_batch={batch} --local-lr {{rate}}"
                    for form, setting in _FORMS.items()
                    for batch in _BATCHES
                },
                rounds=400,
                rates=FED_AMD_RATES,
                long_trials=tuple(f"{form}, b = {batch}" for form in _FORMS for batch in _BATCHES),
            ),
            measures=(FINAL, LAST_FIVE, TRAINING_LOSS, TRAINING_CURVE),
            claims={
                f"b = full is above b = 256 and b = 64, {form} (Figures 2 to 4, appendix F.2.1)": Claim(
                    LAST_FIVE, "more", f"{form}, b = full", (f"{form}, b = 256", f"{form}, b = 64")
                )
                for form in _FORMS
            }
            | {
                f"b = 256 and b = 64 end at the same accuracy, {form} (appendix F.2.1)": Claim(
                    LAST_FIVE, "near", f"{form}, b = 256", f"{form}, b = 64", margin=2
                )
                for form in _FORMS
            }
            | {
                f"b = 256 attains a lower training loss than b = 64 during training, {form} (appendix F.2.1)": Claim(
                    TRAINING_CURVE, "less", f"{form}, b = 256", f"{form}, b = 64"
                )
                for form in _FORMS
            },
            second=("training_loss", "round"),
            seeds=3,
            short=_SHORT_PATTERNS,
            quick=("p optimal, b = full", "p optimal, b = 64", "{0,1}, b = 256"),
        )
    },
)


def _figure_5_7(steps: int, participants: int) -> Study:
    full = participants == 100
    text = f"with K = {steps} and full participation, {{0,0,1}} beats {{0,1}} (appendix F.2.1)"
    exception: dict[str, Comparable] = {text: Claim(LAST_FIVE, "more", "{0,0,1}", "{0,1}")}
    whole = full or steps == 10
    best = optimal(("p = 0.5", "p = 0.7")) if whole else optimal(("p = 0.5",), ("p optimal",))
    return Study(
        f"K = {steps}, A = {participants}",
        _patterns(participants, steps),
        measures=(FINAL, LAST_FIVE, TRAINING_LOSS),
        claims={**best, **(exception if full and steps != 10 else _SEQUENCES)},
        second=("training_loss", "round"),
        seeds=3,
        learned=LEARNED,
        short=FULL_ONLY if full else _SHORT_STEPS[steps],
        quick=("{0,1}",) if full else ("p optimal", "{0,1}"),
        folder=f"fedamd-figure1-{participants}" if steps == 10 else "",
    )


_SHORT_LABELS = ("p = 0.5", "p optimal", "{0,1}", "{0,0,1}")
_SHORT_STEPS = {
    5: Short(rounds=400, labels=_SHORT_LABELS, rates=("0.01",), trial=1),
    10: _SHORT_PATTERNS,
    20: Short(rounds=120, labels=_SHORT_LABELS, rates=("0.01", "0.008", "0.005"), trial=40),
}
"""Twenty steps cost twice as much as ten, and do not stand the rate that ten stand: each setting has its own."""
FIGURES_5_7 = Reproduction(
    "Figures 5 to 7: the number of local steps K",
    PAPER,
    {f"fedamd-figures5-7-k{steps}-{a}": _figure_5_7(steps, a) for steps in (5, 10, 20) for a in (20, 100)},
)

_DIGITS = (
    "--partition pairs --clients 100 --participants 20 --model mlp:100 --local-steps 10 --batch-size 64 --eval-every 5 "
    "--set method.local_schedule=step:100:0.5"
)
_DIGITS_RUNS = FED_AMD_RUNS | {
    "fed_amd {0,0,1}": "--algorithm fed_amd --set method.period=3 --local-lr {rate}",
    "fed_amd p = 0.5": "--algorithm fed_amd --set method.probability=0.5 --local-lr {rate}",
    "fed_page": "--algorithm fed_page --set method.probability=0.2 --local-lr {rate}",
}


def _emnist(dataset: str) -> Study:
    target = 0.8
    gradients = to_accuracy(target, "1e5 gradients")
    return Study(
        f"{dataset}, MLP of 784-100-10, A = 20",
        Experiment(f"--dataset {dataset} {_DIGITS}", _DIGITS_RUNS, rounds=400, rates=FED_AMD_RATES),
        measures=(gradients, to_accuracy(target, "rounds"), FINAL, LAST_FIVE),
        claims={
            "FedAMD needs fewer gradients than every baseline (F.3)": Claim(gradients, "less", CONSTANT, BASELINES),
            "{0,1} is above {0,0,1} (F.3)": Claim(LAST_FIVE, "more", SEQUENTIAL, "fed_amd {0,0,1}"),
            "p optimal is above p = 0.5 (F.3)": Claim(LAST_FIVE, "more", CONSTANT, "fed_amd p = 0.5"),
        },
        second=("accuracy", "gradients"),
        seeds=3,
        short=Short(rounds=100, rates=("0.1", "0.02"), trial=20),
        quick=("fed_avg", CONSTANT, "fed_page"),
    )


EMNIST = Reproduction(
    "Figure 11: EMNIST digits, and the same runs on MNIST",
    f"{PAPER}. The paper shows these runs in figures, without numbers. We halve the local rate every 100 rounds; the "
    "published code halves it after one half and three quarters of the rounds. Costs to 80 % end at the first evaluation "
    "with at least this accuracy",
    {"fedamd-emnist": _emnist("emnist-digits"), "fedamd-emnist-on-mnist": _emnist("mnist")},
)
