"""Contenders on the same tasks: bytes to the accuracy of the best dense method.

The local rate of every contender comes from the same grid, by trials on seed 0. The tables have seeds 1 to 3. Within a
task all have the same number of local steps, so that bytes are compared at equal work per round. A last study varies the
number of steps.
"""

from __future__ import annotations

from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import LAST_FIVE, MEGABYTES
from laconic.reproduce.study import Reproduction, Short, Study

RATES = ("0.3", "0.1", "0.03", "0.01")
NETWORK = "--bandwidth-up 1Mbit --bandwidth-down 10Mbit --latency 50ms"
REFERENCES = {
    "fed_avg": "--algorithm fed_avg --weighting size --local-lr {rate}",
    "fed_avg, clipped and averaged": "--algorithm fed_avg --weighting size --set method.clip_norm=5 "
    "--set optimizer.average=10 --local-lr {rate}",
    "fed_ams": "--algorithm fed_ams --local-lr {rate}",
    "scaffold": "--algorithm scaffold --local-lr {rate}",
}
"""Dense methods. The second clips gradients as `fed_laconic` does, and evaluates an average of models over 10 rounds."""
BEST = {
    "fed_com, qsgd:1 by layer": "--algorithm fed_com --compressor qsgd:1@layer --local-lr {rate}",
    "fed_ef_sgd, heavy_sign:1/16, two-way": "--algorithm fed_ef_sgd --compressor heavy_sign:1/16@layer "
    "--downlink broadcast --set downlink.compressor=heavy_sign:1/64@layer --local-lr {rate}",
    "stc": "--algorithm stc --local-lr {rate}",
    "scafcom": "--algorithm scafcom --local-lr {rate}",
    "sparse_loco, local SGD": "--algorithm sparse_loco --local-optimizer sgd --local-lr {rate}",
    "fed_bnlaca, top_k:1/8+qsgd:5": "--algorithm fed_bnlaca --set uplink.compressor=top_k:1/8+qsgd:5 "
    "--set downlink.compressor=top_k:1/8+qsgd:5 --local-lr {rate}",
    "fed_cams_two_way": "--algorithm fed_cams_two_way --local-lr {rate}",
    "fed_laconic": "--algorithm fed_laconic",
    "fed_laconic, rate from the grid": "--algorithm fed_laconic --local-lr {rate}",
}
"""Contenders on every task: `fed_laconic` with its default rate, and with a rate chosen as for the others."""
LONGER = {
    "fed_laconic, 740 rounds": "--algorithm fed_laconic --rounds 740",
    "fed_laconic, rate from the grid, 740 rounds": "--algorithm fed_laconic --rounds 740 --local-lr {rate}",
}
"""Longer runs, to see whether the first target is reached at all: 740 rounds on the first task, three times the reference's
247."""
OTHERS = {
    "fed_cams, sign": "--algorithm fed_cams --compressor sign --local-lr {rate}",
    "fed_cams, top_k:1/64": "--algorithm fed_cams --compressor top_k:1/64 --local-lr {rate}",
    "fed_comgate": "--algorithm fed_comgate --local-lr {rate}",
    "qsparse_local_sgd": "--algorithm qsparse_local_sgd --local-lr {rate}",
    "scallion": "--algorithm scallion --local-lr {rate}",
    "scaffnew": "--algorithm scaffnew --local-lr {rate}",
    "fed_dyn": "--algorithm fed_dyn --local-lr {rate}",
    "fed_laconic_1": "--algorithm fed_laconic_1",
    "fed_com, eden": "--algorithm fed_com --compressor eden --local-lr {rate}",
    "fed_com, eden:1/8": "--algorithm fed_com --compressor eden:1/8 --local-lr {rate}",
    "fed_com, shifted, qsgd:1 by layer": "--algorithm fed_com --set uplink.name=shifted --compressor qsgd:1@layer "
    "--local-lr {rate}",
    "fed_com, natural": "--algorithm fed_com --compressor natural --local-lr {rate}",
    "fed_prox": "--algorithm fed_prox --local-lr {rate}",
    "fed_gate": "--algorithm fed_gate --local-lr {rate}",
    "fed_ef_ams": "--algorithm fed_ef_ams --local-lr {rate}",
    "diloco": "--algorithm diloco",
    "fed_laconic, subspace 1/3": "--algorithm fed_laconic --subspace 1/3",
}
"""More contenders on the first task."""
GRADIENTS = {
    **{name: f"--algorithm {name}" for name in ("ef21", "ef21_p", "ef21_bc", "ef21_sgdm", "diana")},
    "marina": "--algorithm marina --no-batch-size",
}
"""Contenders on the first task that take one step per round. They have no local steps, and their own server rate.

The gradients of `marina` are over all of a client's examples."""
LOCAL_STEPS = "--local-steps 10"
TASKS = {
    "fashion-mnist": (
        "Fashion-MNIST, LeNet-5, 20 of 100 clients with two shards each",
        "--dataset fashion-mnist --partition shards:2 --clients 100 --participants 20 --model lenet5 "
        "--batch-size 64 --eval-every 10",
        300,
        0.1,
    ),
    "femnist": (
        "FEMNIST by writer, LeNet-5, 20 of 100 clients",
        "--dataset femnist --clients 100 --participants 20 --model lenet5 --batch-size 32 --eval-every 10",
        300,
        1 / 62,
    ),
    "cifar10": (
        "CIFAR-10, LeNet-5, 10 of 50 clients with Dirichlet 0.5",
        "--dataset cifar10 --partition dirichlet:0.5 --clients 50 --participants 10 --model lenet5 "
        "--batch-size 64 --eval-every 10",
        300,
        0.1,
    ),
    "tinyshakespeare": (
        "Tiny Shakespeare by speaker, character GRU, 10 of 100 clients",
        "--dataset tinyshakespeare --clients 100 --participants 10 --model char_gru --batch-size 4 --eval-every 10",
        200,
        0.15,
    ),
    "tinyshakespeare-gpt": (
        "Tiny Shakespeare by speaker, a GPT of two layers, 10 of 100 clients",
        "--dataset tinyshakespeare --clients 100 --participants 10 --model gpt:2x64 --batch-size 4 --eval-every 10",
        200,
        0.15,
    ),
    "heart-disease": (
        "Heart disease by hospital, logistic regression, 4 of 4 clients",
        "--dataset heart-disease --clients 4 --participants 4 --model logistic --batch-size 16 --eval-every 2",
        60,
        0.5,
    ),
}
"""Title, options, rounds and accuracy of guessing."""
DENSE, SPARSE = "fed_avg, clipped and averaged", "fed_laconic"
"""The best dense method of the image tasks, and ours."""
STEPS = {
    **{f"{DENSE}, {steps} steps": f"{REFERENCES[DENSE]} --local-steps {steps}" for steps in (10, 20, 50)},
    **{f"{SPARSE}, {steps} steps": f"{BEST[SPARSE]} --local-steps {steps}" for steps in (10, 20, 50)},
    **{
        f"{name}, 20 steps, {count} participants": f"{line} --local-steps 20 --participants {count}"
        for name, line in ((DENSE, REFERENCES[DENSE]), (SPARSE, BEST[SPARSE]))
        for count in (5, 10)
    },
    f"{SPARSE}, 20 steps, 740 rounds": f"{LONGER['fed_laconic, 740 rounds']} --local-steps 20",
}
"""More work per round, and fewer participants, for both sides."""


def _steps() -> Study:
    """Both sides with the number of local steps that suits them."""
    _, common, rounds, chance = TASKS["fashion-mnist"]
    experiment = Experiment(f"{common} {NETWORK}", STEPS, rounds=rounds, rates=RATES, trial=60, first_seed=1)
    return Study(
        "Fashion-MNIST with 10, 20 and 50 local steps",
        experiment,
        measures=(LAST_FIVE, MEGABYTES),
        against="bytes",
        seeds=3,
        short=Short(rounds=rounds // 2, labels=tuple(label for label in STEPS if "740" not in label)),
        quick=(f"{DENSE}, 10 steps", f"{SPARSE}, 10 steps"),
        references=tuple(label for label in STEPS if label.startswith(DENSE)),
        goals=(0.764,),
        chance=chance,
    )


def _study(name: str) -> Study:
    title, common, rounds, chance = TASKS[name]
    first = name == "fashion-mnist"
    local = {**REFERENCES, **BEST, **(LONGER if rounds == 300 else {}), **(OTHERS if first else {})}
    runs = {label: f"{line} {LOCAL_STEPS}" for label, line in local.items()} | (GRADIENTS if first else {})
    trial = 40 if rounds == 200 else 60
    experiment = Experiment(f"{common} {NETWORK}", runs, rounds=rounds, rates=RATES, trial=trial, first_seed=1)
    return Study(
        title,
        experiment,
        measures=(LAST_FIVE, MEGABYTES),
        against="bytes",
        seeds=3,
        short=Short(rounds=rounds // 2, labels=tuple(label for label in runs if label not in LONGER)),
        quick=("fed_avg", "fed_laconic"),
        references=tuple(REFERENCES),
        goals=(0.764,) if first else (),
        chance=chance,
    )


FRONTIER = Reproduction(
    "How many bytes each algorithm sends to reach the accuracy of the best dense method (dense: without compression)",
    """This is our own study.

- **Rates.** We chose the local learning rate of each algorithm from 0.3, 0.1, 0.03 and 0.01, in trial runs of 60
  rounds (40 on Tiny Shakespeare) on seed 0. An algorithm without a rate in parentheses keeps its default rates.
- **Seeds.** The tables show seeds 1 to 3. A final accuracy is the mean of the last five evaluations.
- **Targets.** The best dense method is the one with the highest final accuracy, B. The high target of a task is one
  point below B. The low target is G + 0.9 (B - G), where G is the accuracy of random guessing. Fashion-MNIST has a
  third target, 76.4 %, from our first study. A run reaches a target when the mean of its last five evaluations
  reaches it. A target counts as reached only if all seeds reach it.
- **Tables.** Each target has a table of the algorithms that reach it, the fewest bytes first. The line below the table
  names the others. The columns from bytes to simulated seconds are costs up to the target. Some columns have no ±, only the
  mean. "1e5 gradients" and "1e3 gradients" count gradients of single examples, in units of 100,000 and 1,000.
  In a row marked *diverged*, at least one seed diverged; its numbers are from the rounds before.
  Simulated seconds assume 1 Mbit/s up, 10 Mbit/s down and a latency of 50 ms.
- **Byte ratio.** We compare with the cheapest dense method: the one with the lowest mean bytes to the target. On the
  image tasks, the best dense method is also the cheapest. The ratio of a run is the mean bytes of the cheapest dense
  method, divided by the bytes of the run, so a ratio above 1 means fewer bytes. The tables show the mean over seeds.
  The factors "times fewer bytes" in the text below are computed in the same way""",
    {f"frontier-{name}": _study(name) for name in TASKS} | {"frontier-local-steps": _steps()},
)
