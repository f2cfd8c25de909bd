"""The choice of numerics: a part of the config, so that a model's hash means something (design rule 2)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Numerics(BaseModel):
    """How a gradient is computed: bit-equality is promised between runs whose numerics are equal."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    strategy: Literal["auto", "stacked", "vmap", "loop"] = "auto"
    """How gradients are computed: a chunk of clients in one call (stacked), a few (vmap), or one by one (loop)."""
    vmap_width: int = Field(default=25, ge=1)
    """Clients per call of vmap; calls are padded to it, so that a client's bits do not depend on the others."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of the model."""
