"""The settings of the Ray engine."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class RaySettings(BaseModel):
    """How many workers, and where. Nothing here changes the result, unless a worker dies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes over clients, each with a shard of them; one per core when not given."""
    address: str | None = None
    """Of a cluster that runs already, as `ray start` prints it, or "auto"; without one, Ray is started on this machine."""
    repeat: bool = False
    """Whether clients whose worker died are asked again; if not, the round goes on without them."""
    folder: str | None = None
    """Where each worker's machine keeps the states of its clients; below the run's directory when not given."""
