"""Accuracies under attack on label-skewed digits, for docs/defenses.md.

    python tools/attack_table.py [RESULTS [SEEDS]]    # seconds per run; finished runs in RESULTS (.jsonl) are not repeated

30 clients with two labels each, 10 participants per round, 3, 6 or 9 of the clients malicious: on average one, two or three
of ten participants. "none" is the same run in which these clients are absent.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import laconic
from laconic.algorithms.recipes import make
from laconic.compression import decode_body, encode_dense
from laconic.compression.packet import Packet
from laconic.core.layout import Layout
from laconic.federation.messages import Reply
from laconic.federation.settings import Defenses
from laconic.federation.update_norms import NormLimits, UpdateNormFilter
from laconic.run.simulation import Simulation, initial_module, make_task

CLIENTS, PARTICIPANTS, ROUNDS = 30, 10, 100
SEEDS = [0, 1, 2]
PARTITION = "shards:2"
ALGORITHMS = (
    "fed_avg",
    "fed_cams:compressor=sign",
    "scaffold",
    "fed_ef_sgd",
    "fed_adam:server_lr=0.1",
    "fed_laconic",
)
DEFENSES: dict[str, dict[str, Any]] = {
    "mean": {},
    "deployment": {"aggregate": "auto", "clip": "auto", "refuse": "auto"},
    "clip median": {"clip": "median"},
    "clip median:2": {"clip": "median:2"},
    "median": {"aggregate": "median"},
    "trimmed_mean:0.2": {"aggregate": "trimmed_mean:0.2"},
}
COMPARED = ("-20 x", "noise", "-1 x", "constant")
ATTACKS = ("-20 x", "-1e6 x once", "noise", "-1 x", "constant", "label flip")


def attacked(update: Tensor, kind: str, round: int, client: int) -> Tensor:
    """What an attacker sends in place of its update."""
    if kind == "-20 x":
        return -20 * update
    if kind == "-1e6 x once":
        return -1e6 * update if round == 0 else update
    if kind == "noise":
        noise = torch.randn(len(update), generator=torch.Generator().manual_seed(1000 * round + client))
        return noise * (20 * update.norm() / noise.norm())
    if kind == "-1 x":
        return -update
    if kind == "constant":
        return torch.full_like(update, float(update.norm()) / len(update) ** 0.5)
    return update


class Attackers:
    """In place of `laconic.engine.faults.Attacks`: the first `count` clients attack, or send nothing at all."""

    def __init__(self, kind: str, count: int, layout: Layout) -> None:
        self.kind, self.count, self.layout = kind, count, layout
        self.factors = dict.fromkeys(range(count), 1.0)

    def apply(self, reply: Reply) -> Reply:
        """The reply, or what an attacker sends instead."""
        if reply.client >= self.count:
            return reply
        if self.kind == "none":
            # Damaged packets are refused: the client is as good as absent.
            return replace(reply, packets=(b"",))
        packets = [Packet.parse(packet, self.layout) for packet in reply.packets]
        return replace(reply, packets=tuple(self._attacked(packet, reply) for packet in packets))

    def _attacked(self, packet: Packet, reply: Reply) -> bytes:
        update = decode_body(packet.body, self.layout).dense()
        vector = attacked(update, self.kind, reply.round, reply.client)
        return replace(packet, body=encode_dense(vector)).to_bytes() if vector is not update else packet.to_bytes()


class Recorder(UpdateNormFilter):
    """Accepts every reply, and measures the largest norm in multiples of the round's median."""

    def __init__(self, defenses: Defenses) -> None:
        super().__init__(defenses)
        self.largest = {True: 0.0, False: 0.0}
        """For updates, and for other vectors."""
        self.clipped = 0

    def limits(self, replies: Any) -> NormLimits:
        for kind in {kind for norms in replies for kind in norms}:
            norms = sorted(each[kind] for each in replies if each.get(kind))
            if len(norms) >= 3:
                middle = (norms[len(norms) // 2] + norms[(len(norms) - 1) // 2]) / 2
                update = kind.endswith("/model")
                self.largest[update] = max(self.largest[update], norms[-1] / middle)
                self.clipped += update * sum(norm > 2 * middle for norm in norms)
        return NormLimits({}, {})


def simulation(
    algorithm: str, seed: int, kind: str, count: int, partition: str = PARTITION, **given: Any
) -> Simulation:
    """One run. With flipped labels the attackers are honest, but their data is not."""
    data = laconic.data.load("digits", clients=CLIENTS, partition=partition, seed=seed)
    if kind == "label flip":
        examples = data.examples
        targets = examples.targets.clone()
        for client in range(count):
            targets[torch.from_numpy(data.clients[client])] = 9 - targets[torch.from_numpy(data.clients[client])]
        data = replace(data, examples=replace(examples, targets=targets))
    module = initial_module(lambda: laconic.models.build("mlp:32", data.input_shape, 10), seed)
    recipe, _, rest = algorithm.partition(":")
    parameters = dict(each.split("=") for each in rest.split(",") if each)
    changes: dict[str, Any] = {
        key: json.loads(value) if value[0].isdigit() else value for key, value in parameters.items()
    }
    settings = laconic.Settings(
        **{"rounds": ROUNDS, "participants": PARTICIPANTS, "seed": seed, "eval_every": 5, "threads": 1}
        | given
        | ({"faults": {"boosted": 1}} if count else {})
    )
    found = Simulation(make(recipe, **changes), make_task(module, data), data, settings)
    if found.faulty is not None:
        found.faulty.attacks = Attackers(kind, count, found.layout)  # type: ignore[assignment]
        found.policy.attackers = frozenset(range(count))
    return found


def accuracy(algorithm: str, seed: int, defense: str, kind: str, count: int) -> float:
    """In percent: the mean of the last three evaluations, since label skew makes a single one noisy."""
    run = simulation(algorithm, seed, kind, count, defense=DEFENSES[defense])
    try:
        found = [record["accuracy"] for record in run.rounds() if "accuracy" in record]
    except laconic.LaconicError:
        return 10.0  # diverged: as good as a guess
    finally:
        run.close()
    return 100 * mean(found[-3:])


def honest_ratio(algorithm: str, seed: int, partition: str) -> tuple[float, float, float]:
    """The largest ratios of an honest norm to the round's median, and the share of updates above two medians."""
    run = simulation(algorithm, seed, "none", 0, partition, defense={"refuse": "auto"})
    run.server.norms = recorder = Recorder(run.server.defenses)
    try:
        used = sum(record["participants"] for record in run.rounds())
    finally:
        run.close()
    return recorder.largest[True], recorder.largest[False], recorder.clipped / max(1, used)


def cases() -> Iterator[tuple[Any, ...]]:
    """Every run, the most important ones first."""
    others = (
        "fed_avg:local_epochs=5",
        "fed_gate",
        "fed_amd:local_lr=0.05",
        "fed_page",
        "bvr_l_sgd",
        "ef21:server_lr=0.5",
        "diana:server_lr=0.5",
        "fed_aa:threshold=0.7",
    )
    for count in (0, 3, 6, 9):
        for seed in SEEDS:
            for algorithm in ALGORITHMS:
                yield "accuracy", algorithm, seed, "mean", "none", count
                for attack in ATTACKS if count else ("none",):
                    yield "accuracy", algorithm, seed, "deployment", attack, count
        if count == 0:
            yield from (("ratio", algorithm, seed, PARTITION) for algorithm in (*ALGORITHMS, *others) for seed in SEEDS)
    for seed in SEEDS:
        for algorithm in ALGORITHMS[:2]:
            for defense in DEFENSES:
                yield "accuracy", algorithm, seed, defense, "none", 0
                for attack in COMPARED:
                    yield "accuracy", algorithm, seed, defense, attack, 3


def measure(results: Path) -> dict[str, Any]:
    """Run what is missing."""
    done = {}
    if results.exists():
        done = {json.dumps(case): value for case, value in map(json.loads, results.read_text().splitlines())}
    with results.open("a") as file:
        for case in cases():
            if json.dumps(case) in done:
                continue
            value = honest_ratio(*case[1:]) if case[0] == "ratio" else accuracy(*case[1:])
            done[json.dumps(case)] = value
            print(json.dumps([case, value]), file=file, flush=True)
    return done


def tables(done: dict[str, Any]) -> str:
    """The tables of docs/defenses.md."""
    return "\n".join([*attacks_table(done), "", *defenses_table(done), "", *norms_table(done)])


def attacks_table(done: dict[str, Any]) -> Iterator[str]:
    """Accuracies with a deployment's defenses: every attack, one to three attackers among ten participants."""
    yield "| attackers | algorithm | absent | " + " | ".join(ATTACKS) + " |"
    yield "|---" * (3 + len(ATTACKS)) + "|"
    for count in (3, 6, 9):
        for algorithm in ALGORITHMS:
            absent = cell(done, algorithm, "mean", "none", count)
            row = [absent, *(cell(done, algorithm, "deployment", kind, count) for kind in ATTACKS)]
            yield f"| {count // 3} of 10 | `{algorithm}` | {' | '.join(row)} |"


def defenses_table(done: dict[str, Any]) -> Iterator[str]:
    """Accuracies with every defense: no attacker, or one among ten participants."""
    yield "| defense | algorithm | honest | " + " | ".join(COMPARED) + " |"
    yield "|---" * 7 + "|"
    for algorithm in ALGORITHMS[:2]:
        for defense in DEFENSES:
            honest = cell(done, algorithm, defense, "none", 0)
            row = [honest, *(cell(done, algorithm, defense, kind, 3) for kind in COMPARED)]
            yield f"| {defense} | `{algorithm}` | {' | '.join(row)} |"


def cell(done: dict[str, Any], algorithm: str, defense: str, kind: str, count: int) -> str:
    """The mean accuracy over all seeds; "-" if a run is missing."""
    keys = [json.dumps(("accuracy", algorithm, seed, defense, kind, count)) for seed in SEEDS]
    return f"{mean(done[key] for key in keys):.1f}" if all(key in done for key in keys) else "-"


def norms_table(done: dict[str, Any]) -> Iterator[str]:
    """How large honest updates are, relative to the median of their round."""
    yield "| algorithm | largest update / median | largest other vector / median | updates above twice the median |"
    yield "|---|---|---|---|"
    ratios = [(json.loads(key), value) for key, value in done.items()]
    for algorithm in {case[1]: None for case, _ in ratios if case[0] == "ratio"}:
        found = [value for case, value in ratios if case[:2] == ["ratio", algorithm]]
        update, other, clipped = (max(values) for values in zip(*found, strict=True))
        shown = [f"{ratio:.3g}" if ratio else "" for ratio in (update, other)]
        yield f"| `{algorithm}` | {' | '.join(shown)} | {100 * clipped:.1f} % |"


if __name__ == "__main__":
    logging.getLogger("laconic").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description="Accuracies under attack, for docs/defenses.md.")
    parser.add_argument(
        "results", nargs="?", type=Path, default=Path("attack_table.jsonl"), help="finished runs (.jsonl)"
    )
    parser.add_argument("seeds", nargs="?", default="", help="such as 23,24,25")
    options = parser.parse_args()
    SEEDS[:] = map(int, options.seeds.split(",")) if options.seeds else SEEDS
    print(tables(measure(options.results)))
