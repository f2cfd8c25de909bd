"""Small transformers: a character-level language model and an image classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.core.errors import ConfigError
from laconic.models.shapes import Shape, image_shape, wrong_shape

DROPOUT = 0.1
"""The dropout of GPT-2 and ViT, after the embedding and at the end of each residual branch."""


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), causal or over all positions."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.input = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """States [B, T, width] to states of the same shape."""
        parts = self.input(states).unflatten(-1, (3, self.heads, -1)).transpose(-2, -4)  # [B, heads, 3, T, size]
        query, key, value = parts.unbind(-3)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        result: Tensor = self.output(mixed.transpose(-2, -3).flatten(-2))
        return result


class Block(nn.Module):
    """Attention and two linear layers, each normalized first and added to its input (Radford et al. 2019, section 2.3)."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.linear_norm = nn.LayerNorm(width)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, states: Tensor) -> Tensor:
        """States [B, T, width] to states of the same shape."""
        states = states + self.dropout(self.attention(self.attention_norm(states)))
        result: Tensor = states + self.dropout(self.linear(self.linear_norm(states)))
        return result


class CharacterGPT(nn.Module):
    """A decoder-only transformer: tokens [B, T] to logits [B, T, classes]."""

    def __init__(self, length: int, classes: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(classes, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, classes)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the next token at every position."""
        states = self.embedding(tokens) + self.positions.weight[: tokens.shape[-1]]
        logits: Tensor = self.output(self.norm(self.blocks(self.dropout(states))))
        return logits


class ImageTransformer(nn.Module):
    """A vision transformer that averages over patches instead of adding a class token (Beyer et al. 2022)."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, layers: int, width: int, patch: int, heads: int
    ) -> None:
        super().__init__()
        channels, height, side = shape
        self.patch = patch
        self.embedding = nn.Linear(channels * patch * patch, width)
        self.positions = nn.Parameter(0.02 * torch.randn((height // patch) * (side // patch), width))
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, channels, height, width] to logits [B, classes]."""
        patches = functional.pixel_unshuffle(images, self.patch).flatten(-2).transpose(-1, -2)  # [B, patches, C p p]
        states = self.dropout(self.embedding(patches) + self.positions)
        logits: Tensor = self.output(self.norm(self.blocks(states)).mean(-2))
        return logits


def gpt(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """Build a character-level language model. Tokens are int64 in [0, classes)."""
    if len(input_shape) != 1:
        raise wrong_shape("gpt", input_shape, "a sequence length (one number) of int64 tokens")
    layers, width, heads = sizes
    _check_heads("gpt", width, heads)
    return CharacterGPT(input_shape[0], classes, layers, width, heads)


def vit(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """Build a vision transformer (Dosovitskiy et al. 2021) for small images."""
    layers, width, patch, heads = sizes
    _check_heads("vit", width, heads)
    shape = image_shape("vit", input_shape, smallest=patch)
    if shape[1] % patch or shape[2] % patch:
        raise wrong_shape("vit", input_shape, f"sides that are multiples of the patch size {patch}")
    return ImageTransformer(shape, classes, layers, width, patch, heads)


def _check_heads(model: str, width: int, heads: int) -> None:
    if width % heads:
        raise ConfigError(f"model '{model}': the width {width} must be a multiple of the number of heads, {heads}")
