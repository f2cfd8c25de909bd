"""Shell completion. Names are copied here because their registries import torch; a test checks that they agree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

DATASETS = (
    "digits",
    "mnist",
    "mnist-by-writer",
    "fashion-mnist",
    "emnist-digits",
    "cifar10",
    "cifar100",
    "femnist",
    "tinyshakespeare",
    "heart-disease",
)
MODELS = (
    *("logistic", "mlp", "lenet5", "cnn", "cnn_mnist", "cnn_fashion"),
    *("char_gru", "gpt", "vit", "resnet18", "convmixer_256_8"),
)
PARTITIONS = ("iid", "shards", "pairs", "dirichlet", "natural")
COMPRESSORS = (
    "dense",
    "cast",
    "qsgd",
    "uniform",
    "top_k",
    "random_k",
    "sign",
    "heavy_sign",
    "stochastic",
    "dead_zone",
    "eden",
    "natural",
)
UPLINKS = ("dense", "compressed", "error_feedback", "lazy", "accelerated", "lag", "shifted")
DOWNLINKS = ("dense", "compressed", "broadcast", "estimated", "mirrored", "repeated")
AGGREGATES = ("mean", "median", "trimmed_mean", "auto")


def algorithms() -> list[str]:
    """The names of the recipes, read from the package's stub file."""
    stub = ast.parse((Path(__file__).parents[1] / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return [alias.name for node in imports if node.module == "algorithms.recipes" for alias in node.names]


def completing(names: Iterable[str] | Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A Typer completion function for names."""

    def complete(incomplete: str) -> list[str]:
        known = names() if callable(names) else names
        return [name for name in known if name.startswith(incomplete)]

    return complete
