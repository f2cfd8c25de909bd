"""Dropout from named randomness.

Torch's dropout uses one global generator, so its masks would depend on the order of threads. While a gradient is computed,
`NamedDraws` replaces torch's random functions by draws from one generator per client. The masks are the same with every
strategy, on every thread and on every machine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from laconic.core.task import Batch, Task

Draw = Callable[..., Tensor]
Stochastic = Literal["no", "named", "serial"]


class NamedDraws(TorchFunctionMode):
    """Replaces torch's random functions by draws from one generator per client.

    In a vmap, `row` is the index of the current row, a batched tensor. The numbers of all clients are drawn and stacked, and
    each row selects its own.
    """

    def __init__(self, generators: Sequence[torch.Generator], row: Tensor | None = None) -> None:
        super().__init__()
        self.generators = generators
        self.row = row

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace random functions, and call all others unchanged."""
        handler = _HANDLERS.get(func)
        return handler(self, *args, **(kwargs or {})) if handler else func(*args, **(kwargs or {}))

    def draw(self, function: Draw, shape: Sequence[int], like: Tensor) -> Tensor:
        """Random numbers of that shape for the current row, at least in float32."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        rows = [function(*shape, generator=g, dtype=dtype, device=g.device) for g in self.generators]
        if self.row is None:
            return rows[0]
        return torch.stack(rows).index_select(0, self.row.reshape(1)).squeeze(0)

    def keep(self, shape: Sequence[int], p: float, like: Tensor) -> Tensor:
        """A dropout mask: 1 with probability 1 - p, else 0."""
        return (self.draw(torch.rand, shape, like) >= p).to(like.dtype)


def _dropout(dimensions: int) -> Callable[..., Tensor]:
    """Dropout of single entries, or of whole channels, which precede `dimensions` spatial ones, with or without a batch."""

    def dropout(
        mode: NamedDraws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        mask = mode.keep([*input.shape[: input.ndim - dimensions], *([1] * dimensions)], p, input)
        return input * mask / (1 - p) if p < 1 else input * 0

    return dropout


def _alpha_dropout(
    mode: NamedDraws, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    if not training or p == 0:
        return input
    # Klambauer et al. (2017): dropped units are set to SELU's lower limit; an affine map restores mean and variance.
    limit = -1.7580993408473766
    scale: float = ((1 - p) * (1 + p * limit**2)) ** -0.5
    mask = mode.keep(input.shape, p, input)
    return scale * (input * mask + limit * (1 - mask)) - scale * p * limit


def _like(function: Draw) -> Callable[..., Tensor]:
    def draw(mode: NamedDraws, input: Tensor, **options: Any) -> Tensor:
        return mode.draw(function, input.shape, input).to(input.dtype)

    return draw


def _bernoulli(mode: NamedDraws, input: Tensor, **options: Any) -> Tensor:
    return (mode.draw(torch.rand, input.shape, input) < input).to(input.dtype)


def _attention(
    mode: NamedDraws,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Attention by its definition (Vaswani et al. 2017, equation 1), with dropout of its weights."""
    if not dropout_p:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **options)
    if options.get("enable_gqa"):
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scale = options.get("scale")
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores, attn_mask = scores + attn_mask, ~attn_mask.isneginf()
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:
        # A row without any allowed position is 0, as in torch, and its gradient is not NaN.
        weights = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min).softmax(-1) * attn_mask
    return _dropout(0)(mode, weights, dropout_p) @ value


# Torch calls a mode for the whole function, not for the dropout inside. This copy of the function does not ask for a mode.
_multi_head_attention_body = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def _multi_head_attention(mode: NamedDraws, *args: Any, **options: Any) -> Any:
    with mode:
        return _multi_head_attention_body(*args, **options)


_HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.dropout: _dropout(0),
    torch.dropout: lambda mode, input, p, train: _dropout(0)(mode, input, p, train),
    F.dropout1d: _dropout(1),
    F.dropout2d: _dropout(2),
    F.dropout3d: _dropout(3),
    F.alpha_dropout: _alpha_dropout,
    torch.rand_like: _like(torch.rand),
    torch.randn_like: _like(torch.randn),
    torch.bernoulli: _bernoulli,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head_attention,
}


def stochastic(task: Task, batch: Batch) -> Stochastic:
    """Try whether a module in training mode draws random numbers.

    - "no": it draws none.
    - "named": `NamedDraws` can replace all of its draws.
    - "serial": it draws in other ways, such as dropout inside a recurrent layer. Its gradients are computed one at a time,
      with torch's global generator seeded for each.
    """
    module, device = copy.deepcopy(task.module).train(), batch[0].device
    with forked(device):
        before = _state(device)
        task.loss(module, batch)
        if torch.equal(before, _state(device)):
            return "no"
        before = _state(device)
        with NamedDraws([torch.Generator(device)]):
            task.loss(module, batch)
        return "named" if torch.equal(before, _state(device)) else "serial"


def forked(device: torch.device) -> AbstractContextManager[None]:
    """A context that restores torch's global generators, on the CPU and on the device."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _state(device: torch.device) -> Tensor:
    host = torch.get_rng_state()
    return torch.cat([host, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else host
