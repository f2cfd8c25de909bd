"""What passes between the server and one client in a round. Both are packets and a few numbers that travel beside them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

from torch import Tensor

from laconic.compression.packet import Wire


class FaultInjection(Flag):
    """What has befallen a client, or will. It never travels: a simulation says it to the clients it plays."""

    LOSE_STATE = auto()
    """It comes back with nothing: what its store holds is as good as lost."""
    CRASH = auto()
    """It dies once it has settled the last round, and does not answer."""
    ASKED_AGAIN = auto()
    """Its answer to the same question is known to have been lost on its own side, and will never arrive."""


@dataclass(frozen=True)
class Instruction:
    """The server's invitation to one client."""

    round: int
    client: int
    invited: int
    """How many clients take part in this round."""
    exchange: int
    """Which exchange of the round this is."""
    phase: str
    """What the client is to do."""
    continues: int | None
    """In a later exchange of a round: the number of this client's answer to the one before."""
    packets: tuple[Wire, ...]
    injected: FaultInjection = FaultInjection(0)


@dataclass(frozen=True)
class Probe:
    """One client's upload as its own side sees it."""

    update: Tensor
    """u_i."""
    target: Tensor
    """x_i."""
    arrived: Tensor
    """y_i."""
    memory: Tensor | None
    """What was not sent."""


@dataclass(frozen=True)
class Reply:
    """A client's answer."""

    round: int
    client: int
    packets: tuple[Wire, ...]
    examples: int
    """How many examples the client has: its weight, where weights count."""
    gradients: int
    """Gradients of single examples as the papers count them."""
    samples: int
    """Gradients of single examples really computed."""
    loss: float
    """The mean training loss on the way."""
    probe: Probe | None = None
    """For diagnostics in a simulation; it never travels."""
