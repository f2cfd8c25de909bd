"""State dicts: everything that is saved has `state_dict()` and `load_state_dict(state)`, as in PyTorch.

A state dict is flat. Its values are tensors, or plain values that JSON has. A part's entries stand in the dict of the whole
under "part/name".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

StateDict = dict[str, Any]
V = TypeVar("V")


def prefixed(name: str, state: Mapping[str, V]) -> dict[str, V]:
    """The entries of a part, as they stand in the dict of the whole; `laconic.core.part.section` is the inverse.

    >>> prefixed("server", {"round": 3})
    {'server/round': 3}
    """
    return {f"{name}/{key}": value for key, value in state.items()}


def split(state: StateDict) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state dict and its plain values, which file formats keep apart."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in state.items() if key not in tensors}
