"""The messages between the server and one client: packets and a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

from torch import Tensor

from laconic.compression.packet import Wire, sequence_of
from laconic.core.errors import PacketError


class FaultInjection(Flag):
    """Faults that a simulation injects into a client. They are not part of the message on the network."""

    LOSE_STATE = auto()
    """The client loses the state in its store."""
    CRASH = auto()
    """The client commits or drops its pending state, then crashes before it replies."""
    ASKED_AGAIN = auto()
    """The instruction is a repeat: the worker died before the client's first reply left."""


@dataclass(frozen=True)
class Instruction:
    """What the server asks one client to do in one exchange."""

    round: int
    client: int
    invited: int
    """The number of participants in this round; with privacy noise the expected number."""
    exchange: int
    """The index of this exchange in the round."""
    phase: str
    """The name of the method's phase that the client runs."""
    continues: int | None
    """The sequence number of the client's last update, if the server has used it but not made it durable yet."""
    packets: tuple[Wire, ...]
    injected: FaultInjection = FaultInjection(0)

    @property
    def last_update(self) -> int:
        """The sequence number of the client's last update that the server has used; the client starts from its state."""
        return sequence_of(self.packets[0]) if self.continues is None else self.continues

    @property
    def size(self) -> int:
        """The bytes of all packets."""
        return sum(map(len, self.packets))


@dataclass(frozen=True)
class Probe:
    """One client's upload, as computed by the client."""

    update: Tensor
    """u_i: what the method computed."""
    target: Tensor
    """x_i: what the compressor was given, the update plus the uplink's memory."""
    arrived: Tensor
    """y_i: what the server decodes."""
    memory: Tensor | None
    """x_i - y_i: what the uplink keeps for later rounds, if it has a memory."""
    change: Tensor | None = None
    """The update minus the last one sent, if it was skipped or accelerated."""


@dataclass(frozen=True)
class MalformedReply:
    """A message from a client that could not be read as a `Reply`. The server refuses it."""

    client: int
    error: PacketError
    packets: tuple[Wire, ...] = ()


@dataclass(frozen=True)
class Reply:
    """A client's answer to an `Instruction`."""

    round: int
    client: int
    packets: tuple[Wire, ...]
    examples: int
    """The number of the client's examples: its weight with `weighting = "size"`."""
    gradients: int
    """Per-example gradients, as the papers count them."""
    samples: int
    """Per-example gradients that were computed."""
    loss: float
    """The mean training loss over the client's local steps."""
    counted: float = 1.0
    """The share of the samples' targets that count, as padding does not: `loss` weighs `samples * counted`."""
    probe: Probe | None = None
    """For diagnostics in a simulation. It is not part of the message on the network."""
