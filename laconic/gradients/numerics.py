"""Settings of the numerics. They are part of the config, since they decide about bit-equality."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Numerics(BaseModel):
    """How gradients are computed. Runs with equal numerics are equal bit for bit."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    strategy: Literal["auto", "compiled", "stacked", "vmap", "loop"] = "auto"
    """How gradients are computed: compiled kernels for plain networks, autograd client by client (loop), or many clients in
    one call (stacked, vmap)."""
    vmap_width: int = Field(default=25, ge=1)
    """Clients per call of vmap; smaller calls are padded, so that results do not depend on the number of clients."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Floating-point type of the model; bfloat16: gradients in mixed precision, state in float32."""

    @property
    def state_dtype(self) -> str:
        """The type of the model's parameters and of all state."""
        return "float32" if self.dtype == "bfloat16" else self.dtype
