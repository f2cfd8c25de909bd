"""Layers with separate parameters for each of C equal parts of their batch.

Parameters and gradients are views of the cohort's matrices. A layer's gradients come in pairs: the gradient at the result
of a product, and the rows that were multiplied. `Stacked.keep` turns a pair into the gradients of a weight and its bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor | None]
"""A weight [C, out, in] and its bias [C, out]."""


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply the rows [C, B, in] of every client by its weights [C, out, in], and add its bias."""
    transposed = weight.transpose(1, 2)
    return torch.bmm(rows, transposed) if bias is None else torch.baddbmm(bias[:, None], rows, transposed)


class Stacked(nn.Module):
    """What the layers have in common. `StackedGradients` makes layers of a module instances of a subclass."""

    PAIRS: tuple[tuple[str, str], ...] = (("weight", "bias"),)
    """The names of each weight and its bias."""
    stack: list[Pair]
    """Weights and biases: views of the clients' models."""
    result: list[Pair]
    """Views of the gradients, in the same shapes."""
    written: bool
    """Whether `result` holds the gradients of the current call."""
    uses: int
    """How often the layer was used in the forward pass."""
    rate: float | None
    """If set, the backward pass moves the weights by -rate times their gradients instead of writing `result`."""
    anchor: Tensor
    """Requires a gradient, so that autograd runs the backward pass even if the input requires none."""

    def keep(self, gradients: list[tuple[Tensor, Tensor]]) -> None:
        """Use the gradients of the layer's products: pairs of a gradient [C, B, out] and rows [C, B, in]."""
        target, rate = (self.result, -1.0) if self.rate is None else (self.stack, self.rate)
        for (weight, bias), (gradient, rows) in zip(target, gradients, strict=True):
            if self.rate is None and not self.written:
                torch.bmm(gradient.transpose(1, 2), rows, out=weight)
                if bias is not None:
                    torch.sum(gradient, 1, out=bias)
            else:  # move the weights, or add to the gradients of an earlier use
                weight.baddbmm_(gradient.transpose(1, 2), rows, alpha=-rate)
                if bias is not None:
                    bias.sub_(gradient.sum(1), alpha=rate)
        self.written = True


class StackedLinear(Stacked, nn.Linear):
    """`nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = _Product.apply(input, self.anchor, self)  # type: ignore[no-untyped-call]
        return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, anchor: Tensor, layer: StackedLinear) -> Tensor:
        weight, bias = layer.stack[0]
        layer.uses += 1
        rows = input.reshape(len(weight), -1, input.shape[-1])
        product = multiply(rows, weight, bias)
        ctx.layer = layer
        ctx.save_for_backward(rows)
        return product.view(*input.shape[:-1], weight.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        layer, (rows,) = ctx.layer, ctx.saved_tensors
        weight, _ = layer.stack[0]
        gradient = gradients[0].reshape(len(weight), -1, weight.shape[1])
        back = None
        if ctx.needs_input_grad[0]:  # before `keep` changes the weights
            back = torch.bmm(gradient, weight).view(*gradients[0].shape[:-1], weight.shape[2])
        layer.keep([(gradient, rows)])
        return back, None, None


class StackedEmbedding(Stacked, nn.Embedding):
    """`nn.Embedding` without its options."""

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = _Lookup.apply(input, self.anchor, self)  # type: ignore[no-untyped-call]
        return result

    def keep(self, gradients: list[tuple[Tensor, Tensor]]) -> None:
        """Use the gradients [C, B, size] of the entries of the table at the indices [C, B]."""
        (gradient, index), target = gradients[0], (self.result if self.rate is None else self.stack)[0][0]
        if self.rate is None and not self.written:
            target.zero_()
        for table, rows, part in zip(target, index, gradient, strict=True):
            table.index_add_(0, rows, part, alpha=1.0 if self.rate is None else -self.rate)
        self.written = True


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, anchor: Tensor, layer: StackedEmbedding) -> Tensor:
        table, _ = layer.stack[0]
        layer.uses += 1
        index = input.reshape(len(table), -1)
        ctx.layer = layer
        ctx.save_for_backward(index)
        found = table[torch.arange(len(table), device=table.device)[:, None], index]
        return found.view(*input.shape, table.shape[2])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        (index,) = ctx.saved_tensors
        ctx.layer.keep([(gradients[0].reshape(*index.shape, -1), index)])
        return None, None, None


class StackedGRU(Stacked, nn.GRU):
    """`nn.GRU` with one layer, `batch_first`, biases and a multiple of 32 units, from an initial state of 0."""

    PAIRS = (("weight_ih_l0", "bias_ih_l0"), ("weight_hh_l0", "bias_hh_l0"))

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if hx is not None or input.ndim != 3:
            raise RuntimeError("only batches of sequences, and no initial state")
        states: Tensor = _Recurrence.apply(input, self.anchor, self)  # type: ignore[no-untyped-call]
        return states, states[:, -1][None]


class _Recurrence(torch.autograd.Function):
    """h' = (1 - z) n + z h, with the gates r and z, and n = tanh(W x + b + r (U h + c)).

    The gates come in the order of torch: r, z, n. Tensors of the loop are [C, B, …], and sums over clients and steps are
    taken after it.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, anchor: Tensor, layer: StackedGRU) -> Tensor:
        (weight, bias), (recurrent, offset) = layer.stack
        assert bias is not None and offset is not None
        layer.uses += 1
        clients, size, (count, steps, _) = len(weight), layer.hidden_size, input.shape
        rows = input.reshape(clients, count // clients * steps, -1)
        inputs = multiply(rows, weight, bias).view(clients, -1, steps, 3 * size).permute(2, 0, 1, 3).contiguous()
        transposed, offset = recurrent.transpose(1, 2), offset[:, None]
        states = inputs.new_zeros(steps + 1, *inputs.shape[1:3], size)
        saved: list[Tensor] = []
        for step in range(steps):
            product = torch.baddbmm(offset, states[step], transposed)
            gates = (inputs[step, ..., : 2 * size] + product[..., : 2 * size]).sigmoid_()
            last = product[..., 2 * size :].contiguous()
            candidate = torch.addcmul(inputs[step, ..., 2 * size :], gates[..., :size], last).tanh_()
            torch.lerp(candidate, states[step], gates[..., size:], out=states[step + 1])
            saved += [gates, candidate, last]
        ctx.layer = layer
        ctx.save_for_backward(rows, states, *saved)
        return states[1:].permute(1, 2, 0, 3).reshape(count, steps, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        layer, (rows, states, *saved) = ctx.layer, ctx.saved_tensors
        (weight, _), (recurrent, _) = layer.stack
        size, steps, clients = layer.hidden_size, len(states) - 1, len(weight)
        outer = gradients[0].view(clients, -1, steps, size).permute(2, 0, 1, 3)
        at_inputs = states.new_empty(steps, *states.shape[1:3], 3 * size)
        at_products = torch.empty_like(at_inputs)
        carried = torch.zeros_like(states[0])
        for step in reversed(range(steps)):
            gates, candidate, last = saved[3 * step : 3 * step + 3]
            reset, update = gates[..., :size], gates[..., size:]
            carried = carried + outer[step]
            of_candidate = torch.ops.aten.tanh_backward(carried * (1 - update), candidate)
            of_gates = torch.cat((of_candidate * last, carried * (states[step] - candidate)), -1)
            of_gates = torch.ops.aten.sigmoid_backward(of_gates, gates)
            torch.cat((of_gates, of_candidate), -1, out=at_inputs[step])
            torch.cat((of_gates, of_candidate * reset), -1, out=at_products[step])
            carried = torch.baddbmm(carried * update, at_products[step], recurrent)
        at_inputs, at_products, before = (
            part.transpose(0, 1).reshape(clients, -1, part.shape[-1]) for part in (at_inputs, at_products, states[:-1])
        )
        by_step = rows.view(clients, -1, steps, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)
        back = None
        if ctx.needs_input_grad[0]:  # before `keep` changes the weights
            back = torch.bmm(at_inputs, weight).view(clients, steps, -1, rows.shape[-1])
            back = back.transpose(1, 2).reshape(-1, steps, rows.shape[-1])
        layer.keep([(at_inputs, by_step), (at_products, before)])
        return back, None, None


def stacked_class(module: nn.Module) -> type[Stacked] | None:
    """The stacked form of a layer; None if it has none."""
    if not all(p.requires_grad for p in module.parameters(recurse=False)):
        return None
    if type(module) is nn.Linear:
        return StackedLinear
    if type(module) is nn.Embedding:
        options = (module.padding_idx, module.max_norm, module.scale_grad_by_freq, module.sparse)
        return StackedEmbedding if options == (None, None, False, False) else None
    if type(module) is nn.GRU:
        # Torch computes the last entries of a tensor, fewer than 32, one by one, and rounds them in another way. With a
        # multiple of 32, no client has such entries, so its bits do not depend on its place in the stack.
        form = (module.num_layers, module.bias, module.batch_first, module.bidirectional, module.hidden_size % 32)
        return StackedGRU if form == (1, True, True, False, 0) else None
    return None
