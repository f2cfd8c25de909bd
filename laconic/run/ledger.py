"""What a run has cost: bytes that really crossed, the papers' formula bits beside them, and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from laconic.link.packet import HEADER_BYTES

Direction = Literal["up", "down"]


@dataclass
class Traffic:
    """One stream in one direction."""

    packets: int = 0
    bytes: int = 0
    paper_bits: int = 0

    @property
    def header_bytes(self) -> int:
        """The share of the headers."""
        return self.packets * HEADER_BYTES

    def add(self, other: Traffic) -> None:
        """Sum up."""
        self.packets += other.packets
        self.bytes += other.bytes
        self.paper_bits += other.paper_bits


@dataclass
class RoundCosts:
    """The costs of one round, or of many put together."""

    streams: dict[str, Traffic] = field(default_factory=dict)
    """By "direction/stream", such as "up/model"."""
    gradients: int = 0
    """Gradients of single examples as the papers count them."""
    samples: int = 0
    """Gradients of single examples really computed."""
    invited: int = 0
    folded: int = 0

    def count(self, direction: Direction, stream: str, size: int, paper_bits: int) -> None:
        """Enter one packet of `size` bytes, header included."""
        traffic = self.streams.setdefault(f"{direction}/{stream}", Traffic())
        traffic.add(Traffic(1, size, paper_bits))

    def add(self, other: RoundCosts) -> None:
        """Sum up."""
        for key, traffic in other.streams.items():
            self.streams.setdefault(key, Traffic()).add(traffic)
        self.gradients += other.gradients
        self.samples += other.samples
        self.invited += other.invited
        self.folded += other.folded

    def bytes(self, direction: Direction) -> int:
        """Bytes in one direction, headers included."""
        return sum(t.bytes for key, t in self.streams.items() if key.startswith(direction))

    def paper_bits(self, direction: Direction) -> int:
        """The papers' bits in one direction."""
        return sum(t.paper_bits for key, t in self.streams.items() if key.startswith(direction))

    def totals(self) -> dict[str, int]:
        """The numbers that every report shows."""
        return {
            "bytes_up": self.bytes("up"),
            "bytes_down": self.bytes("down"),
            "paper_bits_up": self.paper_bits("up"),
            "paper_bits_down": self.paper_bits("down"),
            "gradients": self.gradients,
            "samples": self.samples,
        }

    def table(self) -> dict[str, Any]:
        """As plain numbers, for a checkpoint."""
        streams = {key: [t.packets, t.bytes, t.paper_bits] for key, t in self.streams.items()}
        counts = {name: getattr(self, name) for name in ("gradients", "samples", "invited", "folded")}
        return {"streams": streams, **counts}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> RoundCosts:
        """The inverse of `table`."""
        streams = {key: Traffic(*numbers) for key, numbers in table["streams"].items()}
        return cls(**(dict(table) | {"streams": streams}))


Ledger = RoundCosts
"""The ledger of a run is the sum of its rounds."""
