"""Figures and tables without training: message sizes, compression of simulated gradients, gradient similarity."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from laconic import Layout, Randomness, data, fed_avg
from laconic.compression import HEADER_BYTES, GroupedCompressor, decode_body
from laconic.data import ClientData
from laconic.reproduce.study import Mode
from laconic.run import FullGradient, Settings, Simulation, task_of

Numbers = dict[str, dict[str, float | None]]

RESNET_18 = 11_173_962
"""Number of parameters of ResNet-18 in its CIFAR form."""
ROUNDS = 500


def bits_of_two_way_training(mode: Mode, seed: int) -> Numbers:
    """FedCAMS's Tables 1 and 2 by the paper's bit counts, with the size of our packets beside them."""
    layout = flat_layout(RESNET_18 if mode != "quick" else 10_000)
    generator = np.random.default_rng(seed)
    vector = torch.from_numpy(generator.standard_normal(layout.size, np.float32))
    dense = 32 * layout.size * ROUNDS
    rows: Numbers = {}
    for name in ("sign", "top_k:1/64", "top_k:1/128", "top_k:1/256"):
        compressor = GroupedCompressor.parse(name)
        up = compressor.paper_bits(layout) * ROUNDS
        packet = 8 * (HEADER_BYTES + len(compressor.encode(vector, layout, generator).data))
        rows[name] = {
            "uncompressed, bits": 2 * dense,
            "one-way, bits": up + dense,
            "two-way, bits": 2 * up,
            "two-way, bits of our packets": 2 * packet * ROUNDS,
        }
    return rows


def flat_layout(size: int) -> Layout:
    """Return the layout of a model with `size` parameters in one layer."""
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(size))
    return Layout.of(module)


CLIENTS, DIMENSIONS, STRONG = 5, 1100, 200
SCALES = (2, 10, 100)
DISTRIBUTIONS = ("Gaussian", "Laplace")
TRIALS: dict[Mode, int] = {"full": 100_000, "short": 2_000, "quick": 4}


def compression_discrepancy(mode: Mode, seed: int) -> Numbers:
    """Fed-EF's Figure 20: q_A^2 and q_C^2 if each client's gradient is large in 200 coordinates of its own."""
    layout = flat_layout(DIMENSIONS)
    rows: Numbers = {}
    for name in ("top_k:0.1", "sign"):
        compressor = GroupedCompressor.parse(name)
        for distribution in DISTRIBUTIONS:
            for scale in SCALES:
                generator = Randomness(seed).numpy(f"{distribution}/{scale}")
                ratios = np.array(
                    [_ratios(compressor, distribution, scale, layout, generator) for _ in range(TRIALS[mode])]
                )
                q_a, q_c = ratios.mean(axis=0)
                rows[f"{name}, {distribution}, s = {scale}"] = {"q_A squared": float(q_a), "q_C squared": float(q_c)}
    return rows


def _ratios(
    compressor: GroupedCompressor, distribution: str, scale: int, layout: Layout, generator: np.random.Generator
) -> tuple[float, float]:
    draw = generator.normal if distribution == "Gaussian" else generator.laplace
    gradients = draw(0.0, 0.01, (CLIENTS, DIMENSIONS))
    for client in range(CLIENTS):
        gradients[client, client * STRONG : (client + 1) * STRONG] *= scale
    rows = torch.from_numpy(gradients.astype(np.float32))

    def compressed(vector: Tensor) -> Tensor:
        return decode_body(compressor.encode(vector, layout, generator), layout).dense()

    mean = rows.mean(dim=0)
    size = float(mean.square().sum())
    decoded = torch.stack([compressed(row) for row in rows]).mean(dim=0)
    return float((decoded - mean).square().sum()) / size, float((compressed(mean) - mean).square().sum()) / size


ALIKE = 0.5
"""Cosine above which two clients' gradients count as highly correlated."""


def gradient_similarity(mode: Mode, seed: int) -> Numbers:
    """FedCOMGATE's Figure 7: cosines of 20 clients' full gradients, with one writer and with two classes per client."""
    if mode == "quick":
        sources = {"alike (iid)": ("digits", "iid"), "two classes a client": ("digits", "shards:2:single")}
    else:
        sources = {
            "one writer a client": ("mnist-by-writer", "natural"),
            "two classes a client": ("mnist", "shards:2:single"),
        }
    rows: Numbers = {}
    for label, (dataset, partition) in sources.items():
        model = "logistic" if mode == "quick" else "mlp:200,200"
        cosines = client_cosines(data.load(dataset, clients=20, partition=partition, seed=seed), model, seed)
        others = cosines[~np.eye(len(cosines), dtype=bool)].reshape(len(cosines), -1)
        rows[label] = {
            "mean cosine": float(others.mean()),
            "lowest cosine": float(others.min()),
            "share of negative cosines, %": 100 * float((others < 0).mean()),
            "largest number of other clients with which one client has a cosine above 0.5": float(
                (others > ALIKE).sum(axis=1).max()
            ),
        }
    return rows


def client_cosines(clients: ClientData, model: str, seed: int) -> np.ndarray:
    """Return the cosines of the clients' full gradients at the initial model: [n, n]."""
    simulation = Simulation(
        fed_avg(),
        task_of(model, clients, seed),
        clients,
        Settings.model_validate({"full_gradient": True, "weighting": "uniform"}),
    )
    try:
        measured: FullGradient | None = simulation.full_gradient
        assert measured is not None
        measured.measure(simulation.server)
        assert measured.similarity is not None
        return measured.similarity
    finally:
        simulation.close()
