"""Packet sizes compared with their information-theoretic bounds, and codec speed as ratios.

    python benchmarks/codec.py [--json] [--quick]

Sizes: random vectors, and one client's real update from a short training run, at d = 44,426, 1.2 M and 11.2 M. Where
Fashion-MNIST or CIFAR-10 is not available in `LACONIC_DATA`, digits enlarged to the same shape replace it, and a note says
so. Every row has the measured bytes, the bound, the papers' count, and the cost of 32-bit positions.

Speed: the two sides of a ratio are timed alternately. The ratio is that of their fastest times, since slower times are
caused by other work on the machine; the ratio of the medians is beside it. Aggregation of packets is compared with that of
dense vectors, with one thread, as in the server of a simulation, and with all threads.

`codec_fraction_of_round`: of a round's processor time, the part that links take: error memory, compression, encoding, and
decoding on both sides. `of_wall_time` is the same by the clock: seconds in links / (threads x seconds of the round).

`--quick` takes the smallest model and one round.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import laconic
from laconic import models
from laconic.compression import QSGD, Codec, GroupedCompressor, Sign, Uniform, decode_body
from laconic.compression.codec import form_of
from laconic.compression.groups import group_bounds, spans
from laconic.compression.packet import Body, CoreStream, Packet
from laconic.compression.payload import DensePayload
from laconic.compression.selection import largest
from laconic.core.layout import Layout
from laconic.data import Examples, FederatedData
from laconic.federation.aggregation import RunningMean
from laconic.federation.replies import CodedVector
from laconic.run.settings import Settings
from laconic.run.simulation import Simulation, initial_module, make_task

SPELLINGS = [
    "dense",
    "cast:float16",
    "sign",
    "sign@layer",
    "heavy_sign:0.05@layer",
    "heavy_sign:0.01@model",
    "qsgd:2",
    "qsgd:4",
    "qsgd:8",
    "qsgd:4,norm=max",
    "qsgd:8,norm=max",
    "qsgd:4@layer",
    "uniform:4@layer",
    "uniform:8@layer",
    "uniform:8@model",
    "top_k:1/64",
    "top_k:1/64,coding=rice",
    "top_k:0.01",
    "top_k:0.01,coding=rice",
    "top_k:0.01@layer",
    "top_k:0.05",
    "top_k:0.25",
    "random_k:1/64",
    "top_k:1/64+qsgd:4",
    "top_k:0.01+uniform:5",
]
MODELS = {
    "lenet5": ("fashion-mnist", (1, 28, 28)),
    "cnn": ("fashion-mnist", (1, 28, 28)),
    "resnet18": ("cifar10", (3, 32, 32)),
}
ROUNDS = {"lenet5": {"local_steps": 10, "batch_size": 64}, "cnn": {"local_steps": 10, "batch_size": 32}}
"""The workload of the rounds in which the links' share is measured."""


def position_bound(size: int, count: int) -> float:
    """log2 C(d, k), the fewest bits that can encode an arbitrary set of k positions."""
    return (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)


def vectors(quick: bool) -> Iterator[tuple[str, Layout, Tensor]]:
    """Random and real vectors for every model."""
    for model, (_, shape) in list(MODELS.items())[: 1 if quick else None]:
        layout = Layout.of(models.build(model, shape, 10))
        yield "normal", layout, torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
        yield real_update(model, rounds=1 if model == "resnet18" else 3)


def real_update(model: str, rounds: int) -> tuple[str, Layout, Tensor]:
    """Return one client's update: with one participant and a server rate of 1, it is the model's change."""
    name, shape = MODELS[model]
    data = client_data(name, shape)
    module = initial_module(lambda: models.build(model, shape, 10), 0)
    work = {"local_steps": 2, "batch_size": 8} if model == "resnet18" else {"local_steps": 10, "batch_size": 32}
    algorithm = laconic.fed_avg(local_lr=0.05, **work)
    settings = Settings(rounds=rounds, participants=1, eval_every=rounds)
    simulation = Simulation(algorithm, make_task(module, data), data, settings)
    models_seen = [simulation.server.model]
    try:
        models_seen += [simulation.server.model for _ in simulation.rounds()]
    finally:
        simulation.close()
    return f"update on {data.name}", simulation.layout, models_seen[-1] - models_seen[-2]


def client_data(name: str, shape: tuple[int, ...]) -> FederatedData:
    try:
        data = laconic.data.load(name, clients=20, partition="shards:2", download=False)
    except laconic.DataError:
        digits = laconic.data.load("digits", clients=20, partition="shards:2")
        assert isinstance(digits, FederatedData)
        inputs, targets = digits.examples.batch(torch.arange(len(digits.examples)))
        enlarged = F.interpolate(inputs, shape[1:], mode="bilinear").expand(-1, *shape).contiguous()
        print(f"note: {name} is not available, digits replace it", file=sys.stderr)
        return FederatedData("enlarged digits", digits.kind, Examples(enlarged, targets), digits.clients, None, 10)
    assert isinstance(data, FederatedData)
    return data


def size_row(grouped: GroupedCompressor, vector: Tensor, layout: Layout) -> dict[str, Any]:
    compressor, groups = grouped.compressor, len(group_bounds(layout, grouped.granularity)) - 1
    body = grouped.encode(vector, layout, np.random.default_rng(0))
    size = len(Packet(body, CoreStream.MODEL, layout.fingerprint, 1, 1).to_bytes())
    count = sum(map(compressor.kept, np.diff(group_bounds(layout, grouped.granularity)).tolist()))
    row: dict[str, Any] = {
        "compressor": str(grouped),
        "bytes": size,
        "bits_per_parameter": round(8 * size / layout.size, 4),
    }
    row |= {"paper_bytes": -(-grouped.paper_bits(layout) // 8)}
    if compressor.name in ("top_k", "heavy_sign"):
        # The body without values and scales, but with the count.
        values = 4 * count if compressor.name == "top_k" else -(-count // 8) + 4 * groups
        bits, bound = 8 * (len(body.data) - values), position_bound(layout.size, count)
        slack = 1.02 if compressor.parameters()["coding"] == "rice" else 1.01
        row |= {"position_bits": bits, "log2_choose": round(bound), "over_log2_choose": round(bits / bound, 4)}
        row |= {"bits_of_32_bit_positions": 32 * count, "within": bits <= slack * bound + 64}
    elif isinstance(compressor, Sign):
        row |= {"bound_bytes": layout.size / 8 + 4 * groups + 40}
    elif isinstance(compressor, QSGD | Uniform):
        entropy = pooled_entropy(body, layout, grouped.granularity) / 8
        row |= {"entropy_bytes": round(entropy), "bound_bytes": round(1.02 * entropy + 64 + 4 * groups, 1)}
    if "bound_bytes" in row:
        row["within"] = size <= row["bound_bytes"]
    return row


def pooled_entropy(body: Body, layout: Layout, granularity: str) -> float:
    """Return the entropy of a packet's levels in bits, for independent levels with their empirical distribution."""
    bounds = group_bounds(layout, granularity)
    groups = len(bounds) - 1
    fields = 2 * groups if form_of(body.codec) is Codec.GRID else groups
    numbers = np.append(np.frombuffer(body.data, "<f4", fields), np.zeros(2 * groups - fields)).astype(np.float64)
    entries = decode_body(body, layout).dense().numpy()
    levels = [
        np.rint((entries[start:end] - offset) / (step or 1.0)).astype(np.int32)
        for (start, end), step, offset in zip(spans(bounds), numbers[:groups], numbers[groups:], strict=True)
    ]
    _, counts = np.unique(np.concatenate(levels), return_counts=True)
    return float(-(counts * np.log2(counts / counts.sum())).sum())


@dataclass(frozen=True)
class Times:
    """Milliseconds of one side."""

    fastest: float
    median: float


def timed(repeat: int, *sides: Callable[[], object]) -> list[Times]:
    """Time all sides alternately, so that other work on the machine affects them equally."""
    times: list[list[float]] = [[] for _ in sides]
    for turn in range(repeat + 1):
        for side, taken in zip(sides, times, strict=True):
            started = time.perf_counter()
            side()
            if turn:  # the first one warms up
                taken.append(1000 * (time.perf_counter() - started))
    return [Times(min(taken), statistics.median(taken)) for taken in times]


def ratio(reference: str, own: str, times: list[Times], target: float, share: float = 1.0) -> dict[str, Any]:
    found = times[0].fastest / times[1].fastest
    row = {f"{reference}_ms": round(times[0].fastest * share, 3), f"{own}_ms": round(times[1].fastest * share, 3)}
    row |= {"ratio": round(found, 2), "ratio_of_medians": round(times[0].median / times[1].median, 2)}
    return row | {"target": target, "reached": found >= target}


def speeds(layout: Layout) -> dict[str, Any]:
    size = layout.size
    vector = torch.randn(size, generator=torch.Generator().manual_seed(1))
    magnitudes, entries, count = vector.abs(), vector.numpy(), size // 100
    draws = np.random.default_rng(0)
    sign, copy = Sign(), torch.empty_like(vector)

    def through_sign() -> Tensor:
        return decode_body(sign.encode(vector, layout, draws), layout).dense()

    times = timed(5, lambda: torch.topk(magnitudes, count, sorted=False), lambda: largest(entries, count))
    result = {"top_k selection, k/d = 1/100": ratio("torch_topk", "largest", times, 12)}
    times = timed(9, lambda: entries.copy(), through_sign, lambda: copy.copy_(vector))
    result["sign, encode + decode"] = ratio("copy", "sign", times, 0.25)
    result["sign, encode + decode"]["copy_into_memory_at_hand_ms"] = round(times[2].fastest, 3)
    for coding, target in (("ans", 1.5), ("rice", 3.0)):
        result |= adding(layout, coding, target)
    return result


def adding(layout: Layout, coding: str, target: float) -> dict[str, Any]:
    """Compare decoding and adding 100 packets with adding 100 dense vectors (ten different ones, ten times)."""
    compressor = GroupedCompressor.parse(f"top_k:1/64,coding={coding}")
    dense = [torch.randn(layout.size, generator=torch.Generator().manual_seed(seed)) for seed in range(10)]
    bodies = [compressor.encode(vector, layout, np.random.default_rng(0)) for vector in dense]
    packets = [Packet(body, CoreStream.MODEL, layout.fingerprint, 1, 1).to_bytes() for body in bodies]
    mean = RunningMean(layout.size, layout.dtype, torch.device("cpu"))

    def add_dense() -> None:
        for vector in 10 * dense:
            mean.add(DensePayload(vector), 0.01)

    def add_packets(times: int = 10) -> None:
        for packet in times * packets:
            mean.add(decode_body(Packet.parse(packet, layout).body, layout), 0.01)

    rows, available = {}, torch.get_num_threads()
    for threads in sorted({1, available}):
        torch.set_num_threads(threads)
        row = ratio("dense", "packets", timed(4, add_dense, add_packets), target)
        tracemalloc.start()
        add_packets(times=1)
        row |= {"packet_bytes": len(packets[0]), "memory_beside_accumulator": tracemalloc.get_traced_memory()[1]}
        tracemalloc.stop()
        rows[f"100 sparse packets, {coding}, threads: {threads}"] = row
    torch.set_num_threads(available)
    return rows


def codec_fraction(model: str, spelling: str, rounds: int) -> dict[str, float]:
    """Measure the links' share of a round, with the engine's number of threads."""
    data = client_data(*MODELS[model])
    module = initial_module(lambda: models.build(model, MODELS[model][1], 10), 0)
    algorithm = laconic.fed_cams(compressor=spelling, local_lr=0.05, **ROUNDS[model])
    settings = Settings(rounds=rounds + 2, participants=20, eval_every=rounds + 2)  # no evaluation before the end
    taken: list[tuple[float, float]] = []
    plain = [
        (owner, name, getattr(owner, name))
        for owner, name in ((laconic.Compressed, "encode"), (CodedVector, "_decode"))
    ]
    for owner, name, method in plain:
        setattr(owner, name, clocked(method, taken))
    simulation = Simulation(algorithm, make_task(module, data), data, settings)
    try:
        own_rounds = simulation.rounds()
        next(own_rounds)  # warms up
        taken.clear()
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            next(own_rounds)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        own_rounds.close()
    finally:
        simulation.close()
        for owner, name, method in plain:
            setattr(owner, name, method)
    inside = [sum(column) for column in zip(*taken, strict=True)]
    fractions = {
        "codec_fraction_of_round": inside[1] / processor,
        "of_wall_time": inside[0] / wall / simulation.local_engine.threads,
    }
    return {"seconds_per_round": round(wall / rounds, 3)} | {
        name: round(fraction, 4) for name, fraction in fractions.items()
    }


def clocked(method: Callable[..., Any], taken: list[tuple[float, float]]) -> Callable[..., Any]:
    """Wrap a method to record wall-clock and processor seconds of each call."""

    def call(*arguments: Any) -> Any:
        wall, processor = time.perf_counter(), time.thread_time()
        result = method(*arguments)
        taken.append((time.perf_counter() - wall, time.thread_time() - processor))
        return result

    return call


def times_of(spelling: str, vector: Tensor, layout: Layout) -> dict[str, float]:
    compressor = GroupedCompressor.parse(spelling)
    draws = np.random.default_rng(0)
    body = compressor.encode(vector, layout, draws)
    encoding, decoding = timed(
        3, lambda: compressor.encode(vector, layout, draws), lambda: decode_body(body, layout).dense()
    )
    return {"encode_ms": round(encoding.fastest, 2), "decode_ms": round(decoding.fastest, 2)}


def measure(quick: bool) -> dict[str, Any]:
    report: dict[str, Any] = {"sizes": [], "times": {}}
    for source, layout, vector in vectors(quick):
        for spelling in SPELLINGS:
            row = size_row(GroupedCompressor.parse(spelling), vector, layout)
            report["sizes"].append({"d": layout.size, "vector": source} | row)
        report["times"][f"d = {layout.size}"] = {spelling: times_of(spelling, vector, layout) for spelling in SPELLINGS}
    report["speed"] = speeds(layout)
    report["rounds"] = {
        f"{model}, {spelling}": codec_fraction(model, spelling, 1 if quick else 4)
        for model in list(ROUNDS)[: 1 if quick else None]
        for spelling in ("top_k:1/64", "sign")
    }
    report["all_within"] = all(row.get("within", True) for row in report["sizes"])
    return report


def show(report: dict[str, Any]) -> None:
    for row in report["sizes"]:
        bound = row.get("bound_bytes") or row.get("log2_choose", 0) / 8
        mark = {True: "", False: "  ABOVE THE BOUND"}[row.get("within", True)]
        over = ""
        if "over_log2_choose" in row:
            wide = (row["bits_of_32_bit_positions"] - row["position_bits"]) // 8 + row["bytes"]
            over = f"  32-bit positions {wide:>11,}  positions {row['over_log2_choose']} x log2 C(d, k)"
        print(
            f"{row['d']:>11,} {row['vector']:<26} {row['compressor']:<24} {row['bytes']:>11,} bytes  bound {bound:>13,.0f}"
            f"  papers {row['paper_bytes']:>11,}{over}{mark}"
        )
    for name, row in (report["speed"] | report["rounds"]).items():
        print(f"{name}: {row}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="the smallest model only, and one round")
    arguments = parser.parse_args()
    report = measure(arguments.quick)
    if arguments.json:
        print(json.dumps(report))
    else:
        show(report)


if __name__ == "__main__":
    main()
