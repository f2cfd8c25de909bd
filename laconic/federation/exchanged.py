"""What passes between the server and one client within an exchange, as the server keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.algorithms.methods.exchange import Exchange
from laconic.compression import Payload
from laconic.compression.packet import Body, Packet
from laconic.core.part import State


@dataclass(frozen=True)
class Checked:
    """A reply that may be folded."""

    packets: dict[int, Packet]
    payloads: dict[int, Payload]
    peer: State
    """What is then kept of the client's uplink."""
    lengths: dict[str, float]
    """Of its vectors, by kind, where clients are judged by them."""


@dataclass(frozen=True)
class Offer:
    """What one client was asked in the present exchange."""

    phase: str
    exchange: Exchange
    model: Body | None
    """The model as it went out, if it did."""
