"""The choice of numerics: a part of the config, so that a model's hash means something (design rule 2)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Numerics(BaseModel):
    """How a gradient is computed: bit-equality is promised between runs whose numerics are equal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: Literal["auto", "stacked", "vmap", "loop"] = "auto"
    """stacked: the clients of a chunk in one call; vmap: `vmap_width` of them; loop: one, with channels-last images."""
    vmap_width: int = Field(default=25, ge=1)
    """Calls are padded to this width even for one client, so that a row's bits do not depend on its company."""
    dtype: Literal["float32", "float64"] = "float32"
