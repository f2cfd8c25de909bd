"""The costs of a run: bytes on the network, bits by the papers' formulas, and gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from laconic.compression.packet import HEADER_BYTES
from laconic.core.state_dict import StateDict

Direction = Literal["up", "down"]
_COUNTS = (
    *("gradients", "samples", "invited", "folded", "updates"),
    *("skipped", "skipped_down", "accelerated", "lost", "clipped"),
)


@dataclass
class Traffic:
    """The traffic of one stream in one direction."""

    packets: int = 0
    bytes: int = 0
    paper_bits: int = 0

    @property
    def header_bytes(self) -> int:
        """The part of `bytes` that is packet headers."""
        return self.packets * HEADER_BYTES

    def add(self, other: Traffic) -> None:
        """Add the traffic of `other`."""
        self.packets += other.packets
        self.bytes += other.bytes
        self.paper_bits += other.paper_bits


@dataclass
class RoundCosts:
    """The costs of one round, or the sum over several rounds."""

    streams: dict[str, Traffic] = field(default_factory=dict)
    """By "direction/stream", such as "up/model"."""
    gradients: int = 0
    """Per-example gradients, as the papers count them."""
    samples: int = 0
    """Per-example gradients that were computed."""
    invited: int = 0
    folded: int = 0
    """Clients with at least one reply that was used. Each client counts once per round."""
    updates: int = 0
    """Updates that were aggregated."""
    skipped: int = 0
    """Aggregated updates without a body: the server reused the last update of a lazy client."""
    skipped_down: int = 0
    """Models that were not sent because the client's copy is close enough."""
    accelerated: int = 0
    """Updates that were aggregated together with the client's previous update."""
    lost: int = 0
    """Clients that had lost their state."""
    clipped: int = 0
    """Updates that a defense has scaled down."""
    refused: dict[str, int] = field(default_factory=dict)
    """Refused replies by reason."""
    refused_clients: list[int] = field(default_factory=list)
    """The client of each refused reply."""

    def count(self, direction: Direction, stream: str, size: int, paper_bits: int) -> None:
        """Count one packet of `size` bytes, including its header."""
        traffic = self.streams.setdefault(f"{direction}/{stream}", Traffic())
        traffic.add(Traffic(1, size, paper_bits))

    def add(self, other: RoundCosts) -> None:
        """Add the costs of `other`."""
        for key, traffic in other.streams.items():
            self.streams.setdefault(key, Traffic()).add(traffic)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count

    def refuse(self, reason: str, client: int) -> None:
        """Count a refused reply."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self.refused_clients.append(client)

    def bytes(self, direction: Direction) -> int:
        """Bytes in one direction, including headers."""
        return sum(t.bytes for key, t in self.streams.items() if key.startswith(direction))

    def paper_bits(self, direction: Direction) -> int:
        """Bits in one direction by the papers' formulas."""
        return sum(t.paper_bits for key, t in self.streams.items() if key.startswith(direction))

    def totals(self) -> dict[str, int]:
        """The costs that every report shows."""
        return {
            "bytes_up": self.bytes("up"),
            "bytes_down": self.bytes("down"),
            "paper_bits_up": self.paper_bits("up"),
            "paper_bits_down": self.paper_bits("down"),
            "gradients": self.gradients,
            "samples": self.samples,
        }

    def __str__(self) -> str:
        """A table with one line per stream. The last column has the bits that papers' formulas count for the packets."""
        lines = [f"{'stream':16}{'packets':>10}{'bytes':>16}{'headers':>12}{'bits by paper formulas':>24}"]
        lines += [
            f"{key:16}{t.packets:>10,}{t.bytes:>16,}{t.header_bytes:>12,}{t.paper_bits:>24,}"
            for key, t in self.streams.items()
        ]
        return "\n".join(lines)

    def state_dict(self) -> StateDict:
        """All counts as plain numbers."""
        streams = {key: [t.packets, t.bytes, t.paper_bits] for key, t in self.streams.items()}
        return {"streams": streams, "refused": dict(self.refused)} | {name: getattr(self, name) for name in _COUNTS}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a `state_dict`."""
        self.streams = {key: Traffic(*numbers) for key, numbers in state["streams"].items()}
        self.refused = dict(state["refused"])
        for name in _COUNTS:
            setattr(self, name, state[name])


Ledger = RoundCosts
"""The costs of a run: the sum over its rounds."""
