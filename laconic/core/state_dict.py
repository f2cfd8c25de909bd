"""State dicts: objects that are saved have `state_dict()` and `load_state_dict(state)`, as in PyTorch.

A state dict is flat. Its values are tensors or JSON values. Entries of a component have keys of the form "component/key".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import xxhash
from torch import Tensor

StateDict = dict[str, Any]
V = TypeVar("V")


def joined(parts: Mapping[str, Mapping[str, V]]) -> dict[str, V]:
    """The states of several components as one. `section` returns that of one component.

    >>> joined({"server": {"round": 3}, "ledger": {"updates": 8}})
    {'server/round': 3, 'ledger/updates': 8}
    """
    return {f"{part}/{key}": value for part, state in parts.items() for key, value in state.items()}


def section(state: Mapping[str, V], name: str) -> dict[str, V]:
    """The entries of a state with the prefix `name/`, without the prefix."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def split(state: StateDict) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a state dict into tensors and JSON values, which are stored separately."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in state.items() if key not in tensors}


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def tensor_of(kind: str, shape: str, content: bytes | bytearray) -> Tensor:
    """The tensor of a dtype and a JSON shape with these bytes. Only a bytearray shares its memory with the tensor."""
    dtype: torch.dtype = getattr(torch, kind)
    writable = content if isinstance(content, bytearray) else bytearray(content)
    # torch.frombuffer does not accept an empty buffer.
    flat = torch.frombuffer(writable, dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(json.loads(shape))


def own_copy(tensor: Tensor) -> Tensor:
    """The tensor on the CPU. A view is cloned, since it would keep its whole base tensor alive."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def checksum(content: bytes | bytearray | memoryview) -> int:
    """A checksum against damage on disk. It has 63 bits, because SQLite's integers have a sign."""
    return xxhash.xxh3_64_intdigest(content) & (2**63 - 1)
