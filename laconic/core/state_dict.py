"""State dicts: objects that are saved have `state_dict()` and `load_state_dict(state)`, as in PyTorch.

A state dict is flat. Its values are tensors or JSON values. Entries of a component have keys of the form "component/key".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

StateDict = dict[str, Any]
V = TypeVar("V")


def prefixed(name: str, state: Mapping[str, V]) -> dict[str, V]:
    """Add the prefix `name/` to all keys; `laconic.core.part.section` is the inverse.

    >>> prefixed("server", {"round": 3})
    {'server/round': 3}
    """
    return {f"{name}/{key}": value for key, value in state.items()}


def split(state: StateDict) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a state dict into tensors and JSON values, which are stored separately."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in state.items() if key not in tensors}
