"""The messages between the server and one client: packets, and a few numbers that travel with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

from torch import Tensor

from laconic.compression.packet import Wire
from laconic.core.errors import PacketError


class FaultInjection(Flag):
    """Faults that a simulation injects into a client. They never travel."""

    LOSE_STATE = auto()
    """The client has lost the state in its store."""
    CRASH = auto()
    """The client crashes after it has settled the last round, and does not answer."""
    ASKED_AGAIN = auto()
    """The client's answer to the same question was lost on its own side, and will never arrive."""


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
class MalformedReply:
    """An answer that is no `Reply`: what a client sent instead of one is refused."""

    client: int
    error: PacketError
    packets: tuple[Wire, ...] = ()


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
