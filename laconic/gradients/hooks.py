"""Detection of module hooks, which fused layers would not call."""

from __future__ import annotations

from torch import nn

_KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether the module or one of its submodules has hooks."""
    return any(getattr(child, kind) for child in module.modules() for kind in _KINDS)
