"""Models by name: `build("lenet5", (1, 28, 28), 10)`, `build("mlp:64", ...)`, `build("nets.py:net", ...)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import nn

from laconic.core.errors import ConfigError, unknown_name
from laconic.core.spelling import convert, parse
from laconic.core.user_code import is_own
from laconic.models import convolutional, dense, recurrent, residual, transformer
from laconic.models.own import build_own
from laconic.models.shapes import Shape, wrong_shape


@dataclass(frozen=True)
class ModelInfo:
    """The description of a model."""

    name: str
    builder: Callable[[Shape, int, tuple[int, ...]], nn.Module]
    description: str
    citation: str
    reference_input: Shape = (1, 28, 28)
    reference_classes: int = 10
    sizes: tuple[tuple[str, int], ...] = ()
    """Named sizes and their defaults. Omitted trailing sizes keep their defaults."""
    hidden: tuple[int, ...] = ()
    """Default hidden sizes, for a model that takes a list of any length instead of named sizes."""

    @property
    def defaults(self) -> tuple[int, ...]:
        """The default sizes."""
        return self.hidden or tuple(default for _, default in self.sizes)

    @property
    def parameters(self) -> dict[str, str]:
        """The sizes that may follow the name after a colon, in order, and their defaults."""
        if self.hidden:
            return {"hidden": ",".join(map(str, self.hidden))}
        return {name: str(default) for name, default in self.sizes}

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters at the reference input."""
        # The meta device has shapes without storage: it allocates no parameters and draws no random numbers.
        with torch.device("meta"):
            module = self.builder(self.reference_input, self.reference_classes, self.defaults)
        return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


_MODELS = (
    ModelInfo(
        "logistic", dense.logistic, "logistic (one output: linear) regression", "Li and Li 2023 (Fed-EF), figure 5"
    ),
    ModelInfo(
        "mlp",
        dense.mlp,
        "linear layers with ReLU; mlp:64 or mlp:200,200 gives the hidden sizes",
        "Haddadpour et al. 2021 (FedCOMGATE), supplement, figure 8",
        hidden=(200, 200),
    ),
    ModelInfo("lenet5", convolutional.lenet5, "LeNet-5 with max-pooling and ReLU", "Wu et al. 2023 (FedAMD), table 2"),
    ModelInfo(
        "cnn",
        convolutional.cnn,
        "two 3x3 convolutions, max-pooling, dropout, two linear layers",
        "Li and Li 2023 (Fed-EF), section 5",
    ),
    ModelInfo(
        "cnn_mnist",
        convolutional.cnn_mnist,
        "two 5x5 convolutions of 10 and 20 channels, dropout, two linear layers",
        "published code of Wang et al. 2022 (FedCAMS)",
    ),
    ModelInfo(
        "cnn_fashion",
        convolutional.cnn_fashion,
        "two 5x5 convolutions of 16 and 32 channels with batch normalization, one linear layer",
        "published code of Wang et al. 2022 (FedCAMS)",
    ),
    ModelInfo(
        "char_gru",
        recurrent.char_gru,
        "next-character model: embedding, GRU, linear; char_gru:128 gives the hidden size",
        "Cho et al. 2014 (GRU)",
        reference_input=(80,),
        reference_classes=65,
        sizes=(("hidden", 128), ("embedding", 8)),
    ),
    ModelInfo(
        "gpt",
        transformer.gpt,
        "next-character transformer with dropout; gpt:2x64 gives layers and width",
        "Radford et al. 2019 (GPT-2)",
        reference_input=(80,),
        reference_classes=65,
        sizes=(("layers", 2), ("width", 64), ("heads", 4)),
    ),
    ModelInfo(
        "vit",
        transformer.vit,
        "vision transformer with dropout; vit:2x64,4 gives layers, width and patch size",
        "Dosovitskiy et al. 2021 (ViT)",
        sizes=(("layers", 2), ("width", 64), ("patch", 4), ("heads", 4)),
    ),
    ModelInfo(
        "resnet18",
        residual.resnet18,
        "ResNet-18 in its CIFAR form: 3x3 stem, no max-pooling",
        "He et al. 2016; Wang et al. 2022 (FedCAMS), section 5",
        reference_input=(3, 32, 32),
    ),
    ModelInfo(
        "convmixer_256_8",
        residual.convmixer_256_8,
        "ConvMixer of width 256 and depth 8; convmixer_256_8:1,9 gives patch and kernel",
        "Trockman and Kolter 2022; Wang et al. 2022 (FedCAMS), section 5",
        reference_input=(3, 32, 32),
        sizes=(("patch", 2), ("kernel", 5)),
    ),
)
_BY_NAME = {info.name: info for info in _MODELS}


def build(name: str, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
    """Build a model by name.

    Args:
        name: One of `models()`, optionally with sizes (`mlp:200,200`), or your own function: `module:function` or
            `path/to/file.py:function`.
        input_shape: Shape of one input, without the batch dimension.
        classes: Number of outputs. None, as in the data of a regression, is 1.

    >>> build("mlp:64", (1, 28, 28), 10)[-1]
    Linear(in_features=64, out_features=10, bias=True)
    """
    head, colon, _ = name.partition(":")
    classes = 1 if classes is None else classes
    if not input_shape or min(input_shape) < 1:
        raise wrong_shape(name, input_shape, "positive sizes")
    if classes < 1:
        raise ConfigError(f"model '{name}' cannot have {classes} outputs: it needs at least 1")
    if head in _BY_NAME:
        info = _BY_NAME[head]
        return info.builder(tuple(input_shape), classes, _sizes(name, info))
    if is_own(name):
        return build_own(name, tuple(input_shape), classes)
    if name.endswith(".py"):
        raise ConfigError(f"model '{name}': add the name of the function that builds it, as in {name}:build")
    raise unknown_name("model", head if colon else name, [*_BY_NAME, "module:function"], listed="`laconic models`")


def models() -> list[ModelInfo]:
    """List all named models."""
    return list(_MODELS)


def _sizes(name: str, info: ModelInfo) -> tuple[int, ...]:
    """Return the sizes after the colon, completed with the defaults."""
    spelling, defaults = parse(name), info.defaults
    if ":" not in name:
        return defaults
    if not defaults:
        raise ConfigError(f"model '{name}': '{spelling.name}' takes no sizes")
    try:
        # Named sizes may also be split by an x, as in gpt:2x64.
        words = ",".join(spelling.positional())
        words = words if info.hidden else words.replace("x", ",")
        given: tuple[int, ...] = convert(tuple(words.split(",")), tuple[PositiveInt, ...])
    except ValueError:
        allowed = ", ".join(f"{key}={value}" for key, value in info.parameters.items())
        raise ConfigError(
            f"model '{name}': sizes must be positive whole numbers split by commas; default: {allowed}"
        ) from None
    if info.hidden:
        return given
    if len(given) > len(defaults):
        names = ", ".join(info.parameters)
        raise ConfigError(f"model '{name}': {len(given)} sizes given, at most {len(defaults)} allowed: {names}")
    return given + defaults[len(given) :]
