"""The settings that only a real federation has."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Deployment(BaseModel):
    """What only a real federation has to decide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    out: str | None = None
    """The run's directory: a server that is started again with the same one goes on there."""
    deadline: float = Field(600.0, gt=0)
    """Seconds after which an exchange closes with the replies that are there."""
    quorum: float = Field(1.0, gt=0, le=1)
    """The share of the clients asked whose replies close an exchange at once."""
    first: int | None = Field(None, ge=1)
    """Nodes to wait for when the server starts, at most for a deadline; all clients when not given."""
    minimum: int = Field(1, ge=1)
    """Nodes without which no round begins; the server waits for them."""
    replace_nodes: bool = False
    """Whether a client's number may pass to a node that is not the one that had it."""
    most_examples: int | None = Field(None, ge=1)
    """A node that says that it has more is turned away."""
    client_eval_every: int = Field(0, ge=0)
    """Rounds between two evaluations on the clients' own examples; 0 is never: the whole model travels for it."""
