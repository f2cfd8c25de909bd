"""The settings of a Flower deployment that a simulation does not have."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from laconic.flower.wire import MOST_EXAMPLES


class Deployment(BaseModel):
    """Settings that apply only to a Flower deployment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    out: str | None = None
    """The run directory. A server that is restarted with the same directory resumes the run."""
    from_round: int = Field(-1, ge=-1)
    """Go back to the checkpoint of this round, one of the last three, at this start of the server; -1: the last one."""
    deadline: float = Field(600.0, gt=0)
    """The longest time, in seconds, after which an exchange closes with the replies that have arrived."""
    adaptive_deadline: bool = True
    """Whether an exchange closes earlier if recent replies were much faster (`laconic.flower.reply_times`)."""
    quorum: float = Field(1.0, gt=0, le=1)
    """The fraction of participants whose replies close an exchange before the deadline."""
    first: int | None = Field(None, ge=1)
    """Number of nodes to wait for before the first round, up to the deadline. Default: all clients."""
    minimum: int = Field(1, ge=1)
    """Number of connected nodes that every round needs. The server waits for them."""
    replace_nodes: bool = False
    """Whether a new node may take over a client's number from another node."""
    most_examples: int = Field(MOST_EXAMPLES, ge=1, le=MOST_EXAMPLES)
    """The server rejects nodes that report more examples than this."""
    largest_weight: float = Field(5.0, ge=1)
    """The largest weight of a client by its size, as a multiple of the median client's."""
    client_eval_every: int = Field(0, ge=0)
    """Rounds between evaluations on the clients' own examples, which send the full model to every client; 0: never."""
