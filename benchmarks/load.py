"""Load test: many nodes in one process, through the real server code.

The nodes do not train. Each answers with the same update, compressed to one bit per parameter. What is measured is the
server: instructions, validation, aggregation, and a checkpoint after every round.

python benchmarks/load.py [--nodes 2000] [--participants 100] [--parameters 1000000] [--rounds 200]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message
from torch import nn

import laconic
from laconic.compression import GroupedCompressor
from laconic.compression.packet import Body, Packet
from laconic.flower import wire
from laconic.flower.server import serve
from laconic.run.callbacks import Run
from laconic.run.records import Record
from laconic.run.training import Result
from tests.flower.loopback import LoopbackGrid


def resident() -> float:
    """The memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def make_task(parameters: int) -> laconic.Task:
    """A model with exactly this many parameters."""
    return laconic.regression(nn.Linear(parameters, 1, bias=False))


class FixedNode:
    """A node that answers every instruction with the same update."""

    def __init__(self, client: int, layout: laconic.Layout, body: Body) -> None:
        self.client, self.layout, self.body = client, layout, body

    def __call__(self, message: Message, context: Context) -> Message:
        record = wire.read_record(message)
        if "plan" in record:
            return Message(wire.content(name=f"{self.client:032x}", client=self.client, examples=100), reply_to=message)
        asked = Packet.parse(wire.packets_of(record)[0], self.layout)
        label = (asked.stream, asked.fingerprint, asked.sequence + 1, asked.round)
        packet = Packet(self.body, *label, incarnation=asked.incarnation, exchange=asked.exchange).to_bytes()
        counts = {"examples": 100, "gradients": 32, "samples": 32, "loss": 1.0}
        return Message(wire.content(round=asked.round, packets=[packet], **counts), reply_to=message)


class Meter(laconic.Callback):
    """Notes the time of each round, and the memory after some of them: all, and what the allocator cannot return."""

    def __init__(self, measured: Collection[int], *, shown: bool = False) -> None:
        self.measured, self.shown = measured, shown
        self.memory: list[tuple[float, float]] = []
        self.times = [time.perf_counter()]

    def on_round_end(self, run: Run, record: Record) -> None:
        self.times.append(time.perf_counter())
        if record["round"] in self.measured:
            total = resident()
            gc.collect()
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            self.memory.append((total, resident()))
            if self.shown:
                print(f"round {record['round']:4}: {total:,.0f} MB, {self.memory[-1][1]:,.0f} MB in use", flush=True)

    def rounds_per_minute(self) -> float:
        """Without the first round, in which the nodes join."""
        return 60 * (len(self.times) - 2) / (self.times[-1] - self.times[1])


def run_load(folder: Path, meter: Meter, nodes: int, participants: int, parameters: int, rounds: int) -> Result:
    """Run a federation of `nodes` nodes that answer at once."""
    task = make_task(parameters)
    layout = laconic.Layout.of(task.module)
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(parameters).astype(np.float32) / 1000)
    body = GroupedCompressor.parse("sign").encode(vector, layout, np.random.default_rng(0))
    grid = LoopbackGrid()
    for client in range(nodes):
        node = FixedNode(client, layout, body)
        grid.add(1000 + client, lambda node=node: node)
    settings = {"clients": nodes, "participants": participants, "rounds": rounds, "eval_every": rounds, "seed": 1}
    settings |= {"out": str(folder / "run"), "local_steps": 1}
    return serve(grid, "fed_cams:compressor=sign", lambda: make_task(parameters), None, settings, [meter])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--participants", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    meter = Meter({1, *range(50, options.rounds, 50), options.rounds}, shown=True)
    with tempfile.TemporaryDirectory() as folder:
        run_load(Path(folder), meter, **vars(options))
    print(f"{meter.rounds_per_minute():.1f} rounds per minute")


if __name__ == "__main__":
    main()
