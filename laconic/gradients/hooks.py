"""Hooks on modules: what a faster form of a layer would not call."""

from __future__ import annotations

from torch import nn

_KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether the module, or one in it, has hooks; then it must be called as it is."""
    return any(getattr(each, kind) for each in module.modules() for kind in _KINDS)
