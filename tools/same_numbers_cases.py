"""The cases of same_numbers.py: what is run on both sides, and how each side spells it.

When a change renames something that the command line takes, add a line to RENAMED; when the same words mean something else
from now on, give that case its own `now`, or a line in NOW. A commit that has this file is asked in the words of its own
copy (`base_words`), so these lines matter for commits before them only.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RENAMED: dict[str, str] = {
    "--set defence.": "--set defense.",
    "--set strikes=": "--set max_violations=",
    "quantiser": "quantizer",
    "coding=range": "coding=ans",
}
"""Former text -> text in the spelling of the work tree, for all cases: {"--set defence.": "--set defense."}."""
BY_LAYER = (
    *("heavy_sign:1/16", "heavy_sign:1/16,coding=rice", "heavy_sign:1/16,scale=printed", "uniform:4,rounding=authors"),
    *("uniform:4,rounding=nearest", "uniform:6,zero_point_noise=2", "uniform:8"),
)
"""Compressors that chose their granularity themselves. Now fed_cams's link does, and these numbers need `@layer`."""
NOW: dict[str, str] = {f"compressor/{name}": f"--algorithm fed_cams --compressor {name}@layer" for name in BY_LAYER} | {
    "uplink/accelerated-heavy-sign": (
        "--algorithm fed_baca --compressor heavy_sign:1/8@layer --set uplink.threshold=1.4"
    )
}
"""The work tree's spelling of single cases, by name, as `now` has it; for cases that are not written out one by one."""


@dataclass(frozen=True)
class Case:
    """Options of `laconic run`, after COMMON; of `&&` two runs, one after the other, in the same directory."""

    name: str
    arguments: str
    """As the first commit with this case spelled them."""
    now: str | None = None
    """As the work tree spells them; when not given, `arguments` but for RENAMED."""
    engine: str = ""
    """Options that only the work tree gets: BASE runs the clients inline, and the engines have the same numbers."""

    def spelling(self, side: str) -> str:
        """What the work tree is asked: `now`. Or `base`: what a commit without this file is asked."""
        if side == "base":
            return self.arguments
        now = NOW.get(self.name, self.now)
        return f"{renamed(self.arguments) if now is None else now} {self.engine}".strip()


def renamed(arguments: str) -> str:
    """Former arguments as the work tree spells them."""
    for before, after in RENAMED.items():
        arguments = arguments.replace(before, after)
    return arguments


Words = tuple[str, Callable[[Case], str]]
"""COMMON and the cases, as one side spells them."""


def base_words(root: Path) -> Words:
    """The words of the commit whose files are in `root`: by its own copy of this file, if any."""
    path = root / "tools" / Path(__file__).name
    if not path.exists():
        return COMMON, lambda case: case.arguments
    theirs = runpy.run_path(str(path))
    known = {case.name: case.spelling("now") for case in theirs["CASES"]}

    def spelling(case: Case) -> str:
        asked: str = known.get(case.name) or theirs["renamed"](case.arguments)
        return asked.removesuffix(case.engine).strip() if case.engine else asked

    return theirs["renamed"](theirs["COMMON"]), spelling


def registered(root: Path) -> tuple[list[str], list[str]]:
    """The recipes and compressors of a tree, from its source, since only one tree can be imported. A test compares them
    with the registries. Both are empty if the tree has its files elsewhere."""
    recipes = root / "laconic/algorithms/recipes.py"
    compressors = sorted((root / "laconic/compression/compressors").glob("*.py"))
    return (
        re.findall(r"^@_recipe\ndef (\w+)", recipes.read_text() if recipes.exists() else "", re.M),
        [name for path in compressors for name in re.findall(r'^@compressor\("(\w+)"', path.read_text(), re.M)],
    )


def uses(arguments: str) -> tuple[set[str], set[str]]:
    """The recipes and the compressors that arguments name."""
    spelled = [part for name in re.findall(r"compressor[ =](\S+)", arguments) for part in name.split("+")]
    flower = re.match(r"\w+", arguments)  # a case of Flower is the spelling of an algorithm
    recipes = {*re.findall(r"--algorithm (\w+)", arguments), *([flower[0]] if flower else [])}
    return recipes, {re.split("[:,@]", part)[0] for part in spelled} | ({"chain"} if "+" in arguments else set())


COMMON = (
    "--dataset digits --partition dirichlet:0.3 --clients 20 --participants 8 --rounds 6 --eval-every 1000 "
    "--no-report --json --weighting uniform --out run"
)
"""Of two equal options the last one counts, so a case may say otherwise."""
FILES = {
    "own.py": """
import torch

def train(module, dataset):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    for inputs, targets in torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
""",
    "trace.csv": "client,round,up,down,latency\na,0,1Mbit,8Mbit,20ms\nb,0,200kbit,1Mbit,0.3s\nb,3,2Mbit,9Mbit,10ms\n",
}
"""What is in the folder of every case."""
RECIPES, _ = registered(Path(__file__).resolve().parents[1])
"""Every recipe of the tree that this file is in."""
COMPRESSORS = (
    "sign sign@layer top_k:1/64 top_k:1/64@layer top_k:0.1,coding=rice top_k:1/64+qsgd:4 top_k:0.1+qsgd:4@layer "
    "top_k:1/16+sign top_k:1/16+uniform:4 top_k:1/16+cast random_k:1/16+cast:bfloat16 heavy_sign:1/16 "
    "heavy_sign:1/16@model heavy_sign:1/16,scale=printed heavy_sign:1/16,coding=rice random_k:1/16 "
    "random_k:1/16,unbiased=false@layer uniform:8 uniform:4@model uniform:4,rounding=nearest "
    "uniform:4,rounding=authors uniform:6,zero_point_noise=2 qsgd:4 qsgd:4@layer qsgd:4,norm=max qsgd:8,damped=true "
    "cast cast:bfloat16 dense dead_zone:1/32 dead_zone:1/32@layer eden eden@layer stochastic:1/32 "
    "stochastic:1/32@layer natural natural@layer"
)
EVERY_FAULT = "--drop 0.15 --late 0.15 --duplicate 0.15 --crash 0.15 --lose-state 0.1 --rounds 10"
FEW = "--partition iid --participants 4 --rounds 2"
RAY = "--engine ray --workers 2"
PROCESSES = "--engine processes --threads 2"
OWN_TRAINING = "--set method.name=own_training --set method.function=own.py:train"
NATURAL = "--partition natural --participants 4 --rounds 2"
FED_AMD, FED_EF_AMS = "--algorithm fed_amd --local-lr 0.05", "--algorithm fed_ef_ams --server-lr 0.03"
"""With their former default rates."""


def _recipe(name: str) -> str:
    return {"fed_amd": FED_AMD, "fed_ef_ams": FED_EF_AMS}.get(name, f"--algorithm {name}")


RESUMED = {
    **{name: _recipe(name) for name in RECIPES},
    "faults": "--algorithm fed_cams --drop 0.2 --late 0.3 --lose-state 0.1 --refuse-updates auto",
    "lazy": "--algorithm fed_nlaa --set uplink.threshold=0.15",
    "broadcast": "--algorithm fed_ef_sgd --downlink broadcast",
    "repeated": "--algorithm fed_gate --downlink repeated",
    "momentum": "--set optimizer.momentum=0.9 --set method.local_schedule=cosine:10",
    "noise": "--clip-updates 0.5 --dp-noise 0.5 --sampling poisson",
    "deadline": "--bandwidth-up lognormal:1Mbit,1 --bandwidth-down 10Mbit --deadline 0.2s",
    "batch-norm": "--model cnn_fashion --participants 4",
}
"""Run for three rounds, and then for three more."""

CASES = [
    *(Case(f"memory/{name}", f"{_recipe(name)} --partition iid") for name in RECIPES),
    *(Case(f"disk/{name}", f"{_recipe(name)} --store disk") for name in RECIPES),
    *(Case(f"ray/{name}", f"{_recipe(name)} --partition iid {RAY}") for name in RECIPES),
    *(Case(f"processes/{name}", f"{_recipe(name)} --partition iid", engine=PROCESSES) for name in RECIPES),
    *(Case(f"faults/{name}", f"{_recipe(name)} {EVERY_FAULT}") for name in RECIPES),
    Case("flower/fed_avg", "fed_avg", "fed_avg:weighting=uniform"),
    Case("flower/fed_cams", "fed_cams:compressor=sign"),
    Case("flower/scaffold", "scaffold"),
    Case("flower/fed_bnlaca", "fed_bnlaca"),
    Case("flower/fed_amd", "fed_amd", "fed_amd:local_lr=0.05"),
    Case("flower/fed_comgate", "fed_comgate"),
    Case("model/logistic", "--model logistic"),
    Case("model/mlp-deep", "--model mlp:32,16"),
    Case("model/cnn-dropout", f"--model cnn {FEW}"),
    Case("model/cnn-dropout-vmap", f"--model cnn --strategy vmap {FEW}"),
    Case("model/batch-norm", f"--model cnn_fashion {FEW}"),
    Case("model/batch-norm-top-k", f"--model cnn_fashion --algorithm fed_cams {FEW} --rounds 3"),
    Case("model/batch-norm-frozen", f"--model cnn_fashion --set buffers=frozen {FEW}"),
    Case("model/batch-norm-median", f"--model cnn_fashion --aggregate median {FEW}"),
    Case("model/batch-norm-disk", f"--model cnn_fashion --algorithm scaffold --store disk {FEW}"),
    Case("model/convmixer", f"--model convmixer_256_8 {FEW} --rounds 1 --local-steps 2 --batch-size 8"),
    Case("model/resnet18", f"--model resnet18 {FEW} --participants 2 --rounds 1 --local-steps 1 --batch-size 4"),
    Case("ray/model-batch-norm", f"--model cnn_fashion {RAY} {FEW}"),
    Case("ray/faults", f"--algorithm fed_bnlaca {RAY} {EVERY_FAULT}"),
    Case("processes/batch-norm", f"--model cnn_fashion {FEW}", engine=PROCESSES),
    Case("processes/faults", f"--algorithm fed_bnlaca {EVERY_FAULT}", engine=PROCESSES),
    Case("processes/own-training", OWN_TRAINING, engine=PROCESSES),
    Case("data/mnist-lenet5", f"--dataset mnist --model lenet5 {FEW}"),
    Case("data/mnist-lenet5-heavy-sign", f"--dataset mnist --model lenet5 --algorithm fed_laconic_1 {FEW}"),
    Case("data/mnist-cnn-mnist", f"--dataset mnist --model cnn_mnist {FEW} --local-steps 3"),
    Case("data/fashion-mnist-lenet5", f"--dataset fashion-mnist --model lenet5 --compressor sign {FEW}"),
    Case("data/fashion-mnist-cnn-fashion", f"--dataset fashion-mnist --model cnn_fashion {FEW} --local-steps 3"),
    Case("data/tinyshakespeare-char-gru", f"--dataset tinyshakespeare --model char_gru {NATURAL} --local-steps 3"),
    Case("data/tinyshakespeare-top-k", f"--dataset tinyshakespeare --algorithm fed_cams {NATURAL} --local-steps 3"),
    Case("data/heart-disease", f"--dataset heart-disease --clients 4 {NATURAL} --rounds 6"),
    Case("data/iid", "--partition iid"),
    Case("data/shards", "--partition shards:2"),
    Case("data/pairs", "--partition pairs"),
    Case("data/pairs-shuffled", "--partition pairs:shuffled"),
    Case("data/all-participants", "--participants 20"),
    Case("data/seed", "--seed 7 --algorithm fed_cams"),
    Case("numerics/float64", "--dtype float64"),
    Case("numerics/float64-top-k", "--dtype float64 --algorithm fed_bnlaca"),
    Case("numerics/loop", "--strategy loop"),
    Case("numerics/vmap", "--strategy vmap"),
    Case("numerics/stacked", "--strategy stacked"),
    Case("numerics/one-thread", "--threads 1 --algorithm scaffold"),
    Case("numerics/chunk", "--chunk 3 --algorithm fed_bnlaca"),
    Case("numerics/no-cache", "--store disk --store-cache 0MB --algorithm fed_bnlaca"),
    Case("weighting/size", "--weighting size"),
    Case("weighting/size-top-k", "--weighting size --algorithm fed_cams"),
    Case("sampling/weighted", "--sampling weighted"),
    Case("sampling/poisson", "--sampling poisson"),
    Case("sampling/poisson-scaffold", "--sampling poisson --algorithm scaffold"),
    Case("fault/drop", "--algorithm fed_cams --drop 0.3"),
    Case("fault/late", "--algorithm fed_cams --late 0.3"),
    Case("fault/duplicate", "--algorithm fed_cams --duplicate 0.5"),
    Case("fault/crash", "--algorithm fed_cams --crash 0.3"),
    Case("fault/lose-state", "--algorithm fed_bnlaca --lose-state 0.3"),
    Case("fault/lazy", f"--algorithm fed_nlaa --set uplink.threshold=0.15 {EVERY_FAULT}"),
    Case("fault/accelerated", f"--algorithm fed_aa --set uplink.threshold=0.15 {EVERY_FAULT}"),
    Case("fault/broadcast", f"--algorithm fed_ef_sgd --downlink broadcast {EVERY_FAULT}"),
    Case("fault/repeated", f"--algorithm fed_gate --downlink repeated {EVERY_FAULT}"),
    Case("fault/disk", f"--algorithm fed_bnlaca --store disk {EVERY_FAULT}"),
    Case("attack/not-finite", "--set faults.not_finite=3"),
    Case("attack/boosted", "--set faults.boosted=3 --set faults.boost=10"),
    Case("attack/boosted-clip", "--set faults.boosted=3 --clip-updates median"),
    Case("attack/boosted-refuse", "--set faults.boosted=3 --refuse-updates auto --rounds 10 --set strikes=1"),
    Case("attack/both-median", "--set faults.not_finite=1 --set faults.boosted=2 --aggregate median"),
    Case("attack/boosted-top-k", "--set faults.boosted=2 --set faults.boost=-5 --algorithm fed_cams"),
    Case("network/bandwidth", "--bandwidth-up 1Mbit --bandwidth-down 10Mbit"),
    Case("network/lognormal", f"--bandwidth-up lognormal:1Mbit,0.5 --latency lognormal:50ms,0.5 {FED_AMD}"),
    Case("network/latency", "--latency 50ms --algorithm fed_comgate"),
    Case("network/compute", "--set network.compute=1e-4"),
    Case("network/deadline", "--bandwidth-up lognormal:1Mbit,1 --bandwidth-down 10Mbit --deadline 0.2s"),
    Case("network/deadline-scaffold", "--algorithm scaffold --bandwidth-up lognormal:1Mbit,1 --deadline 0.4s"),
    Case("network/trace", "--set network.trace=trace.csv --deadline 0.8s --algorithm fed_avg"),
    Case("defense/median", "--aggregate median"),
    Case("defense/median-sign", "--aggregate median --algorithm fed_cams --compressor sign"),
    Case("defense/trimmed-mean", "--aggregate trimmed_mean:0.2"),
    Case("defense/clip", "--clip-updates 0.5"),
    Case("defense/clip-key", "--set defence.clip=0.5 --set defence.aggregate=trimmed_mean:0.2"),
    Case("defense/clip-median", "--clip-updates median --algorithm fed_cams"),
    Case("defense/refuse", "--refuse-updates 0.75"),
    Case("defense/refuse-auto", f"--refuse-updates auto {FED_AMD}"),
    Case("privacy/noise", "--clip-updates 0.5 --dp-noise 0.5"),
    Case("privacy/noise-poisson", "--clip-updates 0.5 --dp-noise 1 --dp-delta 1e-4 --sampling poisson"),
    Case(
        "privacy/noise-sign",
        "--clip-updates 0.5 --dp-noise 0.1 --algorithm fed_cams --compressor sign --sampling poisson",
    ),
    *(Case(f"compressor/{name}", f"--algorithm fed_cams --compressor {name}") for name in COMPRESSORS.split()),
    Case("compressor/coding-range", "--algorithm fed_cams --compressor top_k:1/16,coding=range"),
    Case("compressor/without-memory", "--algorithm fed_cams --compressor sign --no-memory"),
    Case("compressor/with-memory", "--algorithm fed_com --memory --compressor uniform:3"),
    Case("compressor/on-fed-avg", "--compressor top_k:1/16"),
    Case("compressor/in-fed-ef", f"{FED_EF_AMS} --compressor sign"),
    Case("compressor/in-fed-com", "--algorithm fed_com --compressor qsgd:8"),
    Case("compressor/restart", "--algorithm fed_cams --set uplink.restart_after=1 --set uplink.restart_from=2"),
    Case("uplink/lazy", "--algorithm fed_nlaa --set uplink.threshold=0.15"),
    Case("uplink/lazy-sign", "--algorithm fed_nlaca --compressor sign --set uplink.threshold=1.9"),
    Case("uplink/lazy-top-k", "--algorithm fed_nlaca --compressor top_k:1/16 --set uplink.threshold=1.2"),
    Case("uplink/lazy-constant", "--algorithm fed_nlaa --set uplink.constant=1.5 --set uplink.alpha=1.1"),
    Case("uplink/lazy-in-fed-cams", "--algorithm fed_cams --set uplink.name=lazy --set uplink.threshold=1.2"),
    Case("uplink/accelerated", "--algorithm fed_aa --set uplink.threshold=0.15"),
    Case("uplink/accelerated-sign", "--algorithm fed_aca --compressor sign --set uplink.threshold=1.9"),
    Case("uplink/accelerated-used", "--algorithm fed_aca --set uplink.threshold=1.3 --set uplink.feedback=used"),
    Case(
        "uplink/accelerated-heavy-sign", "--algorithm fed_baca --compressor heavy_sign:1/8 --set uplink.threshold=1.4"
    ),
    Case("downlink/broadcast", f"{FED_EF_AMS} --downlink broadcast"),
    Case("downlink/broadcast-sign", "--downlink broadcast --set downlink.compressor=sign --participants 4 --rounds 10"),
    Case("downlink/broadcast-top-k", "--downlink broadcast --compressor top_k:1/200 --participants 3 --rounds 12"),
    Case("downlink/mirrored", "--algorithm fed_cams --downlink mirrored"),
    Case("downlink/mirrored-qsgd", "--downlink mirrored --set downlink.compressor=qsgd:4@layer"),
    Case("downlink/mirrored-threshold", "--algorithm fed_bnlaca --set downlink.threshold=0.05 --rounds 10"),
    Case("downlink/mirrored-literal", "--algorithm fed_bnlaca --set downlink.literal=true"),
    Case("downlink/repeated", "--algorithm fed_gate --downlink repeated"),
    Case("downlink/repeated-all", "--algorithm fed_comgate --downlink repeated --participants 20"),
    Case("local/epochs", "--local-epochs 2"),
    Case("local/epochs-scaffold", "--local-epochs 1 --algorithm scaffold --partition shards:2"),
    Case("local/fixed-order", "--batch-order fixed --partition pairs"),
    Case("local/batch-size", "--batch-size 7 --local-steps 3"),
    Case("local/rates", "--local-lr 0.2 --server-lr 0.7"),
    Case("local/clip-norm", "--set method.clip_norm=0.5"),
    Case("local/clip-norm-page", "--algorithm fed_page --set method.clip_norm=0.5"),
    Case("local/prox", "--algorithm fed_prox --set method.proximal=0.5"),
    Case("local/own-training", OWN_TRAINING),
    Case("schedule/local-step", "--set method.local_schedule=step:2:0.5"),
    Case("schedule/local-inverse-sqrt", "--set method.local_schedule=inverse_sqrt --algorithm scaffold"),
    Case("schedule/local-cosine", "--set method.local_schedule=cosine:10 --algorithm fed_comgate"),
    Case("schedule/server-cosine", "--set optimizer.server_schedule=cosine:10 --algorithm fed_ams"),
    Case("schedule/server-step", "--set optimizer.server_schedule=step:2:0.5 --algorithm ef21"),
    Case("optimizer/momentum", "--set optimizer.momentum=0.9 --server-lr 0.3"),
    Case("optimizer/yogi", "--set optimizer.name=yogi --set optimizer.beta2=0.9 --set optimizer.epsilon=0.01"),
    Case("optimizer/bias-correction", "--algorithm fed_adam --set optimizer.bias_correction=true"),
    Case("optimizer/epsilon-inside", "--algorithm fed_amsgrad --set optimizer.epsilon_inside=true"),
    Case("method/anchor-probability", f"{FED_AMD} --set method.probability=0.4 --set method.anchor_batch=20"),
    Case("method/anchor-period", f"{FED_AMD} --set method.period=3 --set method.first_pass=compressed"),
    Case("method/anchor-pl", f"{FED_AMD} --set method.probability=optimal_pl --compressor top_k:1/16"),
    Case("method/anchor-mean", f"{FED_AMD} --set method.mean_compressor=sign --compressor qsgd:4"),
    Case("method/scaffold-warm", "--algorithm scaffold --set method.warm_start=true"),
    Case("method/scaffold-mean", "--algorithm scaffold --set method.mean_compressor=top_k:1/8 --compressor top_k:1/16"),
    Case("method/tracker-rate", "--algorithm fed_gate --set method.tracker_rate=0.5"),
    Case("method/tracking-memory", "--algorithm fed_comgate --compressor top_k:1/16 --set method.memory=global"),
    Case("method/tracking-top-k", "--algorithm fed_comgate --compressor top_k:1/16"),
    Case("method/bvr-compressed", "--algorithm bvr_l_sgd --set method.gradient_compressor=qsgd:4"),
    Case("method/page-batch", "--algorithm fed_page --set method.anchor_batch=20 --set method.probability=0.2"),
    Case("method/ef21-batch", "--algorithm ef21 --batch-size 16 --compressor sign"),
    Case("method/diana-alpha", "--algorithm diana --set method.alpha=0.1 --set method.quantiser=qsgd:2"),
    Case("method/marina", "--algorithm marina --set method.probability=0.5 --compressor random_k:1/16"),
    Case("measure/diagnostics", "--algorithm fed_cams --diagnostics --eval-every 2"),
    Case("measure/diagnostics-lazy", "--algorithm fed_bnlaca --diagnostics --eval-every 2"),
    Case("measure/full-gradient", "--algorithm fed_avg --full-gradient --eval-every 2"),
    Case("measure/records", f"--algorithm fed_bnlaca --eval-every 2 --latency 50ms {EVERY_FAULT}"),
    *(
        Case(f"resume/{store}/{name}", f"{options} --store {store} --rounds 3 && {options} --store {store} --resume")
        for store in ("memory", "disk")
        for name, options in RESUMED.items()
    ),
    Case("ray/resume", f"--algorithm fed_bnlaca {RAY} --rounds 3 && --algorithm fed_bnlaca {RAY} --resume"),
]
for unknown in NOW.keys() - {case.name for case in CASES}:
    raise KeyError(f"NOW: there is no case {unknown}")
