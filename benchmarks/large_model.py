"""The peak of memory of one round of fed_cams with a model of 100 million trainable parameters.

    python benchmarks/large_model.py [--json] [--parameters 100000000] [--clients 4 8] [--threads 1]

The model is an embedding of many words, a frozen layer of a transformer (requires_grad=False: it never travels) and a linear
layer on top. Every client has an error memory as long as the model; these are on disk (`store = "disk"`), with nothing of
them kept in memory. Each measurement is a process of its own, so its peak is its own. `vectors` is the peak, less what the
process had before the model was made, in vectors of the model's length.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import laconic
from laconic.data import GeneratedData

WIDTH, CLASSES, EXAMPLES, WORDS = 500, 10, 64, 16
STEPS, BATCH = 2, 32


class Words(nn.Module):
    """Embedding -> a frozen transformer layer -> mean -> linear."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.mix = nn.TransformerEncoderLayer(WIDTH, 4, 1000, dropout=0.0, batch_first=True).requires_grad_(False)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.mix(self.embedding(tokens)).mean(1))


def make_data(clients: int, vocabulary: int) -> GeneratedData:
    def make(client: int) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng(client)
        return generator.integers(0, vocabulary, (EXAMPLES, WORDS)), generator.integers(0, CLASSES, EXAMPLES)

    return GeneratedData(clients, EXAMPLES, make, kind="classification", classes=CLASSES)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(parameters: int, clients: int, threads: int) -> dict[str, Any]:
    """One round with all clients, in this process."""
    vocabulary = (parameters - (WIDTH + 1) * CLASSES) // WIDTH
    before = peak_bytes()
    torch.manual_seed(0)
    model = Words(vocabulary)
    algorithm = laconic.fed_cams(compressor="sign", local_steps=STEPS, batch_size=BATCH, local_lr=0.05)
    data = make_data(clients, vocabulary)
    started = time.perf_counter()
    result = laconic.simulate(algorithm, model, data, rounds=1, store="disk", store_cache=0, threads=threads)
    size = sum(each.numel() for each in model.parameters() if each.requires_grad)
    return {
        "parameters": size,
        "clients": clients,
        "threads": threads,
        "seconds": time.perf_counter() - started,
        "peak_rss_gb": peak_bytes() / 1e9,
        "vectors": (peak_bytes() - before) / (4 * size),
        "bytes_up": result.ledger.bytes("up"),
        "bytes_down": result.ledger.bytes("down"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 8], help="how many take part, each in turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(options.parameters, options.clients[0], options.threads)))
        return
    found = []
    for clients in options.clients:
        command = [sys.executable, __file__, "--alone", "--clients", str(clients)]
        command += ["--parameters", str(options.parameters), "--threads", str(options.threads)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        line = "{clients} clients, {threads} threads: {peak_rss_gb:.2f} GB ({vectors:.1f} vectors), {seconds:.0f} s"
        print(line.format(**found[-1]), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"peak_rss_gb": max(each["peak_rss_gb"] for each in found), "rounds": found}))


if __name__ == "__main__":
    main()
