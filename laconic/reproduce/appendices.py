"""Figures of the papers' appendices that repeat a figure of the main text in other settings, or show another measure of it.

Only `--full` runs them, except those that share the runs of another study.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from laconic.reproduce import fed_ef, fedamd, fedbnlaca, fedcams
from laconic.reproduce.claims import Claim
from laconic.reproduce.experiments import FED_AMD_RATES, FED_AMD_SERVER_RATES, FED_AMD_SHUFFLED, Experiment
from laconic.reproduce.measures import (
    FINAL,
    LAST_FIVE,
    MEGABYTES,
    MEGABYTES_UP,
    PAPER_BITS_UP,
    SKIP_RATE,
    TRAINING_LOSS,
    accuracy_at,
    largest_and_mean,
)
from laconic.reproduce.study import FULL_ONLY, Reproduction, Study


def _runs(reproduction: Reproduction, study: str) -> dict[str, str]:
    experiment = reproduction.studies[study].experiment
    assert experiment is not None
    return experiment.runs


def _crossed(runs: dict[str, str], cases: dict[str, str]) -> dict[str, str]:
    """Every run in every case, whose options come last."""
    return {f"{label}, {case}": f"{run} {more}" for case, more in cases.items() for label, run in runs.items()}


# Fed-EF, Figures 8, 9, 12, 13, 16 and 17: the loss of the runs of Figures 2 and 3.

FED_EF_LOSSES = Reproduction(
    "Figures 8, 9, 12, 13, 16 and 17: training loss against bits, for every k and b",
    f"{fed_ef.PAPER}. These are the runs of fed-ef-figures2-3",
    {
        name.replace("figures2-3", "losses"): replace(
            study,
            measures=(TRAINING_LOSS, PAPER_BITS_UP, MEGABYTES_UP),
            claims={},
            drawn="training_loss",
            quick=("sgd full",),
        )
        for name, study in fed_ef.FIGURES_2_3.studies.items()
    },
)

# FedBNLACA, Figures 5 to 20: both data sets and models, iid and not, half of the clients or all.

_FAMILY = _runs(fedbnlaca.FIGURES_1_4, "fedbnlaca-figures1-2")
_LOCAL = "--clients 100 --local-epochs 3 --batch-size 32 --local-lr 0.05 --eval-every 1 --diagnostics"
_CASES = {
    f"{partition}, {count} of 100": f"--partition {partition} --participants {count}"
    for partition in ("iid", "shards:2")
    for count in (50, 100)
}


def _figures_5_20(first: int, dataset: str, model: str) -> Study:
    return Study(
        f"Figures {first} to {first + 3}: {dataset}, {model}",
        Experiment(f"--dataset {dataset} --model {model} {_LOCAL}", _crossed(_FAMILY, _CASES), rounds=100),
        measures=(accuracy_at(5), FINAL, LAST_FIVE, MEGABYTES, SKIP_RATE),
        against="bytes",
        short=FULL_ONLY,
        quick=("fed_nlaa, iid, 100 of 100",),
    )


FEDBNLACA_FIGURES_5_20 = Reproduction(
    "Figures 5 to 20: accuracy against bytes in all settings",
    fedbnlaca.FIGURES_1_4.paper,
    {
        "fedbnlaca-figures5-8": _figures_5_20(5, "mnist", "mlp:64"),
        "fedbnlaca-figures9-12": _figures_5_20(9, "fashion-mnist", "mlp:64"),
        "fedbnlaca-figures13-16": _figures_5_20(13, "mnist", "lenet5"),
        "fedbnlaca-figures17-20": _figures_5_20(17, "fashion-mnist", "lenet5"),
    },
)
_LAZY = {name: _FAMILY[name] for name in ("fed_nlaca", "fed_aca", "fed_bnlaca", "fed_baca")}
FEDBNLACA_FIGURE_21 = Reproduction(
    "Figure 21: the constants of Assumption C.1 during training",
    f"{fedbnlaca.FIGURES_1_4.paper}. gamma is the distance between the compressed mean update and the mean of the "
    "compressed updates. lambda is the distance between updates that are skipped or accelerated and the last ones "
    "sent. Both are divided by the norm of the mean update",
    {
        "fedbnlaca-figure21": Study(
            "gamma and lambda, Fashion-MNIST, half of the clients",
            Experiment(
                f"--dataset fashion-mnist --partition iid --participants 50 {_LOCAL}",
                _crossed(_LAZY, {model: f"--model {model}" for model in ("lenet5", "mlp:64")}),
                rounds=100,
            ),
            measures=(*largest_and_mean("gamma", "gamma"), *largest_and_mean("lambda", "lambda"), FINAL),
            drawn="lambda",
            short=FULL_ONLY,
            quick=("fed_aca, mlp:64",),
        )
    },
)

# FedAMD, Figures 8 and 10: the algorithms of Table 2 with other numbers of local steps; Figures 5 to 7 with 40 clients.

_COUNTS = (20, 40, 100)
_PARTICIPANTS = {f"A = {count}": f"--participants {count}" for count in _COUNTS}


def _figure_8_10(figure: int, steps: int) -> Study:
    claims = {}
    for case in _PARTICIPANTS:
        best, others = f"fed_amd constant, {case}", tuple(f"{name}, {case}" for name in fedamd.BASELINES)
        if steps == 5:
            claims[f"FedAMD ends more accurate than every baseline, {case} (F.2.2)"] = Claim(
                FINAL, "more", best, others
            )
        text = f"FedAMD needs fewer gradients than every baseline, {case} (F.2.2)"
        claims[text] = Claim(fedamd.GRADIENTS, "less", best, others)
    return Study(
        f"Figure {figure}: K = {steps}",
        Experiment(
            FED_AMD_SHUFFLED.common.replace("--local-steps 10", f"--local-steps {steps}"),
            _crossed(FED_AMD_SHUFFLED.runs, _PARTICIPANTS),
            rounds=400,
            rates=FED_AMD_RATES,
            server_rates=FED_AMD_SERVER_RATES,
        ),
        measures=(fedamd.GRADIENTS, fedamd.BITS, FINAL, LAST_FIVE, TRAINING_LOSS),
        claims=claims,
        second=fedamd.LOSS_AGAINST_GRADIENTS,
        seeds=3,
        short=FULL_ONLY,
        quick=("scaffold, A = 40",),
    )


def _patterns(steps: Iterable[int]) -> Experiment:
    experiment = fedamd.FIGURE_1.studies["fedamd-figure1-40"].experiment
    assert experiment is not None
    return replace(
        experiment,
        runs=_crossed(experiment.runs, {f"K = {count}": f"--local-steps {count}" for count in steps}),
        long_trials=(),
    )


FEDAMD_FIGURES_5_10 = Reproduction(
    "Figures 8 and 10: the algorithms with 5 and 20 local steps; Figures 5 to 7: with 40 clients per round",
    fedamd.PAPER,
    {
        "fedamd-figure8": _figure_8_10(8, 5),
        "fedamd-figure10": _figure_8_10(10, 20),
        "fedamd-figures5-7-40": Study(
            "Figures 5 to 7: A = 40, with K = 5, 10 and 20 local steps",
            _patterns((5, 10, 20)),
            measures=(FINAL, LAST_FIVE, TRAINING_LOSS),
            claims={
                text: claim
                for steps in (5, 10, 20)
                for text, claim in fedamd.optimal(("p = 0.5", "p = 0.7"), case=f", K = {steps}").items()
            },
            second=("training_loss", "round"),
            seeds=3,
            short=FULL_ONLY,
            quick=("p optimal, K = 5",),
        ),
    },
)

# FedCAMS, Figure 1 on CIFAR-10, and Figures 5 to 8: ConvMixer, gamma, participants of FedCAMS, CIFAR-100. They need a GPU.

_COMPRESSED = _runs(fedcams.FIGURE_4, "fedcams-figure4")
_ADAPTIVE = _runs(fedcams.FIGURES_1_3, "fedcams-figure1")
_CLIENTS = (
    "--partition iid --clients 100 --local-epochs 3 --batch-size 20 --augment crop:4+flip --eval-every 10 --device cuda"
)
_MODELS = {model: f"--model {model}" for model in ("resnet18", "convmixer_256_8")}
_TEN = f"{_CLIENTS} --participants 10"


_BASELINES = ("fed_avg", "fed_adam", "fed_yogi", "fed_amsgrad")


def _best(model: str) -> dict[str, Claim]:
    others = tuple(f"{name}, {model}" for name in _BASELINES)
    return {f"FedAMS ends with the highest accuracy, {model}": Claim(LAST_FIVE, "more", f"fed_ams, {model}", others)}


def _on_a_gpu(title: str, experiment: Experiment, quick: str, **details: object) -> Study:
    study = Study(f"{title} (needs a GPU)", experiment, quick=(quick,), needs_gpu=True, short=FULL_ONLY)
    return replace(study, **details)  # type: ignore[arg-type]


FEDCAMS_FIGURES_5_8 = Reproduction(
    "Figures 1 and 5 to 8: CIFAR-10, ConvMixer, gamma during training, the number of participants of FedCAMS, CIFAR-100",
    f"{fedcams.PAPER}. A client compresses the sum of its update and its error memory. gamma is the distance between the "
    "compressed mean of these sums and the mean of the compressed sums, divided by the norm of the mean update",
    {
        "fedcams-figure1-cifar10": _on_a_gpu(
            "Figure 1: baselines, CIFAR-10",
            Experiment(f"--dataset cifar10 {_TEN}", _crossed(_ADAPTIVE, _MODELS), rounds=500),
            "fed_amsgrad, convmixer_256_8",
            measures=(FINAL, LAST_FIVE, TRAINING_LOSS),
            claims=_best("resnet18")
            | _best("convmixer_256_8")
            | {
                "FedYogi is near FedAMS, resnet18": Claim(
                    LAST_FIVE, "near", "fed_yogi, resnet18", "fed_ams, resnet18", margin=1
                ),
                "FedAvg is above FedAdam and FedAMSGrad, resnet18": Claim(
                    LAST_FIVE, "more", "fed_avg, resnet18", ("fed_adam, resnet18", "fed_amsgrad, resnet18")
                ),
                "every adaptive optimizer is above FedAvg, convmixer_256_8": Claim(
                    LAST_FIVE,
                    "more",
                    tuple(f"{name}, convmixer_256_8" for name in ("fed_ams", *_BASELINES[1:])),
                    "fed_avg, convmixer_256_8",
                ),
            },
            second=("training_loss", "round"),
        ),
        "fedcams-figure5": _on_a_gpu(
            "Figure 5: CIFAR-10, ConvMixer-256-8",
            Experiment(f"--dataset cifar10 --model convmixer_256_8 {_TEN}", _COMPRESSED, rounds=500),
            "sign",
            measures=(FINAL, LAST_FIVE, TRAINING_LOSS, PAPER_BITS_UP),
            claims={
                "sign is as accurate as uncompressed FedAMS": Claim(LAST_FIVE, "near", "sign", "fed_ams", margin=1),
                "top_k:1/64 is above top_k:1/128 and top_k:1/256": Claim(
                    LAST_FIVE, "more", "top_k:1/64", ("top_k:1/128", "top_k:1/256")
                ),
            },
            against="bytes_up",
            second=("training_loss", "bytes_up"),
        ),
        "fedcams-figure6": _on_a_gpu(
            "Figure 6: gamma, CIFAR-10",
            Experiment(
                f"--dataset cifar10 {_TEN} --diagnostics",
                _crossed({name: _COMPRESSED[name] for name in ("sign", "top_k:1/64")}, _MODELS),
                rounds=500,
            ),
            "sign, resnet18",
            measures=(*largest_and_mean("gamma", "gamma"), FINAL),
            drawn="gamma",
        ),
        "fedcams-figure7": _on_a_gpu(
            "Figure 7: participants of FedCAMS, CIFAR-10",
            Experiment(
                f"--dataset cifar10 {_CLIENTS}",
                _crossed(
                    {f"n = {count}": f"{_COMPRESSED['sign']} --participants {count}" for count in (5, 10, 20)}, _MODELS
                ),
                rounds=500,
            ),
            "n = 20, resnet18",
            measures=(accuracy_at(100), FINAL, LAST_FIVE),
            claims={
                f"n = {more} is faster than n = {fewer}, {model}": Claim(
                    accuracy_at(100), "more", f"n = {more}, {model}", f"n = {fewer}, {model}"
                )
                for model in _MODELS
                for more, fewer in ((20, 10), (10, 5))
            },
        ),
        "fedcams-figure8": _on_a_gpu(
            "Figure 8: baselines, CIFAR-100",
            Experiment(f"--dataset cifar100 {_TEN}", _crossed(_ADAPTIVE, _MODELS), rounds=500),
            "fed_yogi, resnet18",
            measures=(FINAL, LAST_FIVE, TRAINING_LOSS),
            claims={text: claim for model in _MODELS for text, claim in _best(model).items()},
            second=("training_loss", "round"),
        ),
    },
)
