"""The choice of numerics: a part of the config, so that a model's hash means something (design rule 2)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import nn


class Numerics(BaseModel):
    """How a gradient is computed: bit-equality is promised between runs whose numerics are equal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: Literal["auto", "vmap", "loop"] = "auto"
    """vmap: `vmap_width` clients in one call; loop: one client a call, with channels-last images."""
    vmap_width: int = Field(default=25, ge=1)
    """Calls are padded to this width even for one client, so that a row's bits do not depend on its company."""
    dtype: Literal["float32", "float64"] = "float32"

    def resolve(self, module: nn.Module) -> Numerics:
        """Settle `auto` by a fixed rule from the module: linear layers only are batched over clients, all else loops."""
        if self.strategy != "auto":
            return self
        return self.model_copy(update={"strategy": "vmap" if _linear_only(module) else "loop"})


def _linear_only(module: nn.Module) -> bool:
    """Every module with parameters is linear, and none keeps or uses statistics of a batch."""
    holders = [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))]
    return (
        all(isinstance(m, nn.Linear) for m in holders)
        and not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in module.modules())
        and not any(True for _ in module.buffers())
    )
