"""What a second Ray worker brings, and what a round costs beyond its gradients.

    python benchmarks/workers.py [--json] [--rounds 12] [--workers 1 2]

W1: LeNet-5 on Fashion-MNIST (random images where it is not at hand), 100 clients x 600 samples, 20 a round, 10 steps of 64,
one thread a worker. The numbers of workers take a round each in turn, so that what else the machine does falls on all.
Seconds are sums over the rounds after the first: clients belong to workers, so how many of a round's clients are one
worker's differs from round to round, and a round takes as long as its busiest worker.

`beyond_gradients` is the part of all workers' time, workers x the round's seconds, that is not spent in gradient calls;
`of_balance` is the part of it in which a worker has no client left while another has; `overhead`, what remains, is the cost
of the engine: packets, states to the store, Ray, the server. `ideal_speedup` is what the split of the clients allows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import laconic
from laconic import models
from laconic.engine import inline
from laconic.engine.gradients import Gradients
from laconic.run.simulation import Simulation, initial_module
from laconic.server.sampling import participants

sys.path.insert(0, str(Path(__file__).parent))
from simulation import WORKS, load_data  # noqa: E402 - a neighbour of this file


class Timed:
    """A gradient function that adds up the time spent inside."""

    def __init__(self, gradients: Gradients, seconds: Path) -> None:
        self.gradients, self.seconds = gradients, seconds
        self.total = 0.0

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        started = time.perf_counter()
        result = self.gradients(*arguments)
        self.total += time.perf_counter() - started
        return result
