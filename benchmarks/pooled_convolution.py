"""Measure the speedup of the hand-written vector instructions in laconic/gradients/kernels.py over the plain loop.

    OMP_NUM_THREADS=1 python benchmarks/pooled_convolution.py [--repeat 60]

LeNet-5 on batches of 64, as in workload W1: the backward pass of its two pooled convolutions, and one gradient of the model.
The two implementations alternate on one thread. A ratio compares their median times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import laconic
from laconic.core.layout import Layout
from laconic.gradients import kernels
from laconic.gradients.numerics import Numerics
from laconic.gradients.strategies import make_gradients

BATCH, KERNEL = 64, 5
LAYERS = {"first": (1, 28, 6, False), "second": (6, 12, 16, True)}
"""Input channels, image height, filters, and whether the gradient of the input is needed."""


def layer(channels: int, size: int, filters: int, of_input: bool) -> Callable[[bool], Callable[[], object]]:
    generator = np.random.default_rng(0)
    pooled = (size - KERNEL + 1) // 2
    gradient = generator.standard_normal((BATCH, pooled, pooled, filters), dtype=np.float32)
    chosen = generator.integers(0, kernels.NONE + 1, gradient.shape, dtype=np.uint8)
    images = generator.standard_normal((BATCH, size, size, channels), dtype=np.float32)
    weights = generator.standard_normal(filters * KERNEL * KERNEL * channels, dtype=np.float32)
    results = (np.zeros_like(weights), np.zeros(filters, np.float32), np.zeros(images.size * of_input, np.float32))

    def side(by_hand: bool) -> Callable[[], object]:
        back = kernels.gradient_of_pooled(KERNEL, KERNEL * channels, channels, of_input, by_hand=by_hand)
        return lambda: back(gradient, chosen, images, weights, *results)

    return side


def model() -> Callable[[bool], Callable[[], object]]:
    task = laconic.classification(laconic.models.build("lenet5", (1, 28, 28), 10))
    layout = Layout.of(task.module)
    gradients = make_gradients(task, layout, Numerics(strategy="loop"), "no", frozen=False)
    rows = layout.flatten(task.module)[None]
    batch = (torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,)))
    built: Any = kernels.gradient_of_pooled

    def side(by_hand: bool) -> Callable[[], object]:
        def run() -> None:
            kernels.gradient_of_pooled = lambda *sizes: built(*sizes, by_hand=by_hand)
            gradients(rows, rows.new_empty(1, 0), [batch], lambda row: 0)
            kernels.gradient_of_pooled = built

        return run

    return side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=60, help="turns of each side")
    repeat = parser.parse_args().repeat
    torch.set_num_threads(1)
    cases = {f"the {name} layer, backwards": layer(*sizes) for name, sizes in LAYERS.items()}
    for name, case in (cases | {"one gradient of LeNet-5": model()}).items():
        sides = [case(True), case(False)]
        times: list[list[float]] = [[], []]
        for _ in range(repeat + 3):
            for side, taken in zip(sides, times, strict=True):
                started = time.perf_counter()
                side()
                taken.append(1000 * (time.perf_counter() - started))
        by_hand, loop = (statistics.median(taken[3:]) for taken in times)
        print(f"{name}: by hand {by_hand:.2f} ms, loop {loop:.2f} ms, ratio {loop / by_hand:.2f}")


if __name__ == "__main__":
    main()
