"""The layout of a model as one flat vector.

`Layout` maps a module's trainable parameters to slices of a `[d]` vector and back, as views. Frozen parameters are left out,
so frozen backbones and adapters need no special case. Floating-point buffers (batch-norm statistics) form a second vector.
Integer buffers and non-persistent ones (such as tables of rotary angles) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import torch
from torch import Tensor, nn

from laconic.core.errors import ConfigError

UNSHAPED = "model has layers without shapes, such as LazyLinear: call it once on a batch of inputs first"


ALIGNMENT = 64
"""Bytes. The last bits of a matrix product can depend on the address of its output relative to this."""


def aligned_rows(like: torch.Tensor) -> torch.Tensor:
    """An uninitialized matrix of the same shape whose rows are aligned alike, so that no result depends on its row."""
    unit = ALIGNMENT // like.element_size()
    return like.new_empty(len(like), -(-like.shape[1] // unit) * unit)[:, : like.shape[1]]


def is_aligned(matrix: torch.Tensor) -> bool:
    """Whether all rows of a matrix have the same alignment, in chunks of any size."""
    return matrix.stride(0) * matrix.element_size() % ALIGNMENT == 0


@dataclass(frozen=True)
class Slot:
    """The slice of one tensor in a flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """The number of entries."""
        return torch.Size(self.shape).numel()

    def view(self, vector: Tensor) -> Tensor:
        """This tensor as a view of `vector`, or of every row of a matrix `[C, d]`."""
        entries = vector[..., self.offset : self.offset + self.size]
        return entries.view((*vector.shape[:-1], *self.shape))


def is_unshaped(module: nn.Module) -> bool:
    """Whether a lazy layer of the module has not seen an input yet, so that its parameters have no shapes."""
    return any(nn.parameter.is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers()))


@dataclass(frozen=True)
class Layout:
    """The slots of a module's trainable parameters and floating-point buffers.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> layout.size, [slot.name for slot in layout.parameters]
    (8, ['weight', 'bias'])
    """

    parameters: tuple[Slot, ...]
    buffers: tuple[Slot, ...]
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module, in the order of its `named_parameters` and `named_buffers`."""
        if is_unshaped(module):
            raise ConfigError(UNSHAPED)
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ConfigError("model has no trainable parameter: at least one must have requires_grad=True")
        kinds = {p.dtype for p in trainable.values()}
        if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
            raise ConfigError(f"model mixes parameter types {sorted(map(str, kinds))}: one floating type is allowed")
        dtype = next(iter(kinds))
        # A buffer with infinities, such as an attention mask, is a constant and not a statistic.
        persistent = module.state_dict()
        floating = {
            name: b
            for name, b in module.named_buffers()
            if name in persistent and b.is_floating_point() and bool(torch.isfinite(b).all())
        }
        return cls(tuple(_slots(trainable)), tuple(_slots(floating)), dtype)

    @property
    def full(self) -> Layout:
        """The layout of all trainable parameters: this one, unless training happens in a subspace."""
        return self

    @property
    def period(self) -> int:
        """The number of the current subspace; 0 unless subspaces are redrawn."""
        return 0

    def starts(self, round: int) -> bool:
        """Whether all states are reset in this round: in the first one, and where a subspace is drawn."""
        return round == 0

    def for_round(self, round: int) -> Layout:
        """The layout of the packets of a round."""
        return self

    def located(self, known: Mapping[str, Tensor], sent: Tensor | None) -> Layout | None:
        """The layout around the model at which the subspace was drawn; None if the client does not know that model.

        Args:
            known: What `location` returned before.
            sent: That model, or the last vectors of all periods that the client has missed, one after the other.
        """
        return self

    def location(self) -> dict[str, Tensor]:
        """What a client keeps of the current subspace."""
        return {}

    def start(self, initial: Tensor) -> Tensor:
        """The first vector of the current subspace: the initial one in the first subspace."""
        return initial

    def expand(self, vectors: Tensor) -> Tensor:
        """All trainable parameters, of a vector or of every row of a matrix."""
        return vectors

    @cached_property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return sum(slot.size for slot in self.parameters)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each parameter tensor."""
        return tuple(slot.size for slot in self.parameters)

    @cached_property
    def buffer_size(self) -> int:
        """The number of entries of all floating-point buffers."""
        return sum(slot.size for slot in self.buffers)

    @cached_property
    def fingerprint(self) -> int:
        """A 48-bit hash of the layout. Packets have it in their checksum, so a packet for another model is rejected."""
        text = repr([(s.name, s.shape) for s in (*self.parameters, *self.buffers)]) + str(self.dtype)
        return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "little")

    def flatten(self, module: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters as one vector."""
        return _gather(dict(module.named_parameters()), self.parameters, self.dtype)

    def flatten_buffers(self, module: nn.Module) -> Tensor:
        """A copy of the module's floating-point buffers as one vector."""
        return _gather(dict(module.named_buffers()), self.buffers, self.dtype)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of `vector`, or of every row of a matrix `[C, d]`."""
        return {slot.name: slot.view(vector) for slot in self.parameters}

    @torch.no_grad()
    def write(self, module: nn.Module, vector: Tensor, buffers: Tensor | None = None) -> None:
        """Copy a vector, and optionally buffers, into the module's tensors."""
        targets = dict(module.named_parameters())
        for slot in self.parameters:
            targets[slot.name].copy_(slot.view(vector))
        if buffers is not None:
            statistics = dict(module.named_buffers())
            for slot in self.buffers:
                statistics[slot.name].copy_(slot.view(buffers))

    def adopt(self, module: nn.Module, vector: Tensor, buffers: Tensor) -> list[nn.Parameter]:
        """Make the module's tensors views of `vector` and `buffers`; return the parameters in layout order.

        Writing to the vector then updates the module without a copy.
        """
        named = dict(module.named_parameters())
        adopted = []
        for slot in self.parameters:
            parameter = named[slot.name]
            parameter.data = slot.view(vector)
            adopted.append(parameter)
        statistics = dict(module.named_buffers())
        for slot in self.buffers:
            statistics[slot.name].data = slot.view(buffers)
        return adopted


def _slots(tensors: Mapping[str, Tensor]) -> Iterator[Slot]:
    offset = 0
    for name, tensor in tensors.items():
        yield Slot(name, tuple(tensor.shape), offset)
        offset += tensor.numel()


def _gather(tensors: Mapping[str, Tensor], slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
    if not slots:
        return torch.zeros(0, dtype=dtype)
    return torch.cat([tensors[slot.name].detach().reshape(-1).to(dtype) for slot in slots])
