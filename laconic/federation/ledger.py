"""What a run has cost: bytes that really crossed, the papers' formula bits beside them, and gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from laconic.compression.packet import HEADER_BYTES
from laconic.core.state_dict import StateDict

Direction = Literal["up", "down"]
_COUNTS = ("gradients", "samples", "invited", "folded", "updates", "skipped", "skipped_down", "accelerated", "lost")


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
    """Clients of whom anything was folded in, each once a round, however many exchanges it has."""
    updates: int = 0
    """Updates that were folded in."""
    skipped: int = 0
    """Folded without a body: lazy clients that had nothing new to say."""
    skipped_down: int = 0
    """Models that were not sent, since the client has one near enough."""
    accelerated: int = 0
    """Folded together with the client's last update."""
    lost: int = 0
    """Clients that had lost their state."""
    refused: dict[str, int] = field(default_factory=dict)
    """Replies that were refused, by reason."""
    refused_clients: list[int] = field(default_factory=list)
    """Whose replies they were."""

    def count(self, direction: Direction, stream: str, size: int, paper_bits: int) -> None:
        """Enter one packet of `size` bytes, header included."""
        traffic = self.streams.setdefault(f"{direction}/{stream}", Traffic())
        traffic.add(Traffic(1, size, paper_bits))

    def add(self, other: RoundCosts) -> None:
        """Sum up."""
        for key, traffic in other.streams.items():
            self.streams.setdefault(key, Traffic()).add(traffic)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count

    def refuse(self, reason: str, client: int) -> None:
        """Enter a reply that was refused."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self.refused_clients.append(client)

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

    def __str__(self) -> str:
        """Where the bytes went."""
        lines = [f"{'stream':16}{'packets':>10}{'bytes':>16}{'headers':>12}{'papers, bits':>18}"]
        lines += [
            f"{key:16}{t.packets:>10,}{t.bytes:>16,}{t.header_bytes:>12,}{t.paper_bits:>18,}"
            for key, t in self.streams.items()
        ]
        return "\n".join(lines)

    def state_dict(self) -> StateDict:
        """All counts, as plain numbers."""
        streams = {key: [t.packets, t.bytes, t.paper_bits] for key, t in self.streams.items()}
        return {"streams": streams, "refused": dict(self.refused)} | {name: getattr(self, name) for name in _COUNTS}

    def load_state_dict(self, state: StateDict) -> None:
        """Replace all counts by what `state_dict` returned."""
        self.streams = {key: Traffic(*numbers) for key, numbers in state["streams"].items()}
        self.refused = dict(state["refused"])
        for name in _COUNTS:
            setattr(self, name, state[name])


Ledger = RoundCosts
"""The ledger of a run is the sum of its rounds."""
