"""A second device that exists in Python only, to find mistakes that a CPU hides.

`FakeDevice` is a mode of torch functions. It pretends that some tensors are on the device "cuda": their memory is marked,
and stays on the host. As on a GPU, an operator whose tensors are on both devices fails, and so does `numpy()` on the device.
Values that Python reads from the device and blocking copies are counted: on a GPU they wait for all work before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from laconic.engine import inline

DEVICE, HOST = torch.device("cuda"), torch.device("cpu")
MIXED = {"copy_", "to", "type_as", "__getitem__", "__setitem__", "__set__"}
"""Functions that take tensors from both devices, on a GPU too."""
READS = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "equal", "allclose", "nonzero"}
"""Functions whose result is a value in Python, or whose result's shape depends on values."""
UNCHANGED = {"device", "_parse_to", "_has_compatible_shallow_copy_type"}
"""Functions of the names of devices, which `nn.Module.to` calls."""
MOVES = {"to", "cpu", "cuda"}
CREATES = {"tensor", "new_tensor", "as_tensor"}
"""Functions that copy a list of Python."""


class FakeDevice(TorchFunctionMode):
    """Marks memory as being on `DEVICE`, and refuses what a GPU refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: dict[int, Any] = {}
        """Storages by address; the reference keeps an address from being used again."""
        self.waits: Counter[str] = Counter()

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        try:
            return tensor.untyped_storage()._cdata in self.marked
        except (NotImplementedError, RuntimeError):  # inside of vmap
            return False

    def mark(self, value: Any) -> None:
        """Put the tensors in a value on the device."""
        for tensor in tree_flatten(value)[0]:
            if isinstance(tensor, Tensor):
                try:
                    storage = tensor.untyped_storage()
                except (NotImplementedError, RuntimeError):
                    continue
                self.marked[storage._cdata] = storage

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in UNCHANGED:
            return func(*args, **kwargs)
        leaves = tree_flatten((args, kwargs))[0]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        inside = [self.holds(tensor) for tensor in tensors]
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return DEVICE if inside[0] else HOST
        if name == "numpy" and any(inside):
            raise TypeError("can't convert a tensor on the device to numpy: use .cpu() first")
        if (
            name not in MIXED
            and any(inside)
            and not all(held or tensor.ndim == 0 for held, tensor in zip(inside, tensors, strict=True))
        ):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")
        target = self._target(name, leaves, tensors, inside)
        if name == "pin_memory":
            return args[0]
        blocking = not kwargs.get("non_blocking")
        crosses = (name in MOVES and target is not inside[0]) or (name == "copy_" and inside[0] is not inside[1])
        if (name in READS and any(inside)) or (crosses and blocking) or (name in CREATES and target):
            self.waits[name] += 1
        args, kwargs = tree_map(lambda leaf: HOST if _is_device(leaf) else leaf, (args, kwargs))
        result = func(*args, **kwargs)
        if name in MOVES and crosses:
            result = result.clone()
        if target and name not in ("copy_", "__setitem__"):
            self.mark(result)
            if name == "__set__" and inside[-1]:
                self.mark(args[0])
        return result

    def _target(self, name: str, leaves: list[Any], tensors: list[Tensor], inside: list[bool]) -> bool:
        """Whether the result is on the device."""
        devices = [leaf for leaf in leaves if isinstance(leaf, torch.device | str) and str(leaf) in ("cpu", "cuda")]
        if name == "cpu":
            return False
        if name == "to" and len(tensors) == 2:
            return inside[1]
        if devices:
            return _is_device(devices[0])
        return any(inside)


def _is_device(leaf: Any) -> bool:
    return (isinstance(leaf, torch.device) and leaf.type == DEVICE.type) or (isinstance(leaf, str) and leaf == "cuda")


class FakeGenerator(torch.Generator):
    """A generator that says that it is on the device it was made for."""

    def __new__(cls, device: Any = HOST) -> FakeGenerator:
        made: FakeGenerator = super().__new__(cls)
        made.place = torch.device(device)  # type: ignore[attr-defined]
        return made

    def __init__(self, device: Any = HOST) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return self.place  # type: ignore[attr-defined, no-any-return]


@contextmanager
def fake_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """The device, in this thread and in those of engines."""
    mode, start = FakeDevice(), inline._start_thread

    def start_thread(*arguments: Any) -> None:
        mode.__enter__()
        start(*arguments)

    monkeypatch.setattr(inline, "_start_thread", start_thread)
    monkeypatch.setattr(torch, "Generator", FakeGenerator)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    with mode:
        yield mode
