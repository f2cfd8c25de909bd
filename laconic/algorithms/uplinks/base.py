"""The interface of uplinks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.compression import DENSE, GroupedCompressor, Payload
from laconic.compression.packet import Body, Flag
from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout
from laconic.core.part import Part, State


@dataclass(frozen=True)
class Encoded:
    """An encoded update, and the client's state once the server has used it."""

    body: Body
    """The bytes that are sent."""
    state: State
    """The client's new state."""
    used: Payload
    """The update that the server will aggregate."""
    flags: Flag = Flag(0)
    """Flags of the packet, for `receive`."""
    remembered: Payload | None = None
    """The update that the error memory counts as sent, if it differs from `used`."""
    similar: tuple[Payload, Payload] | None = None
    """y and r of an update that is skipped or accelerated: the update, and the last one sent."""


class Uplink(Part):
    """Encodes updates on the client, with the client's state, and decodes them on the server.

    `peer` is the server's state for one client: empty for most uplinks, the last packet of a lazy client, or its shift.
    """

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        """On the client: encode the update."""
        raise NotImplementedError

    def receive(self, body: Body, flags: Flag, peer: State, context: RoundContext) -> tuple[tuple[Body, ...], State]:
        """On the server: the bodies whose sum is the update, and the new peer state.

        `PacketError` if the server can tell that the client did not follow the rules of this uplink.
        """
        if Flag.ACCELERATED in flags:
            raise PacketError("flags", "an acceleration, which this uplink does not have")
        return (body,), peer

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The bits that the papers' formulas count for this body."""
        return (self.compression or DENSE).paper_bits(layout, body)

    @property
    def compression(self) -> GroupedCompressor | None:
        """C and its granularity; None if updates are not compressed."""
        return None

    def unbiased_compression(self, method: str) -> GroupedCompressor | None:
        """C and its granularity for a method that does not correct a bias; `ConfigError` if C is biased."""
        if self.compression is not None and self.compression.compressor.biased:
            raise ConfigError(
                f"uplink.compressor = {self.compression.compressor}: {method} needs an unbiased compressor, such as qsgd:4, "
                "uniform:8 or random_k:1/16, since it does not correct a bias; ef21 does"
            )
        return self.compression

    @property
    def has_memory(self) -> bool:
        """Whether the client adds compression errors to later updates (error feedback)."""
        return False

    @property
    def has_reference(self) -> bool:
        """Whether encoding or decoding depends on earlier updates that the client sent."""
        return False

    @property
    def effective(self) -> GroupedCompressor | None:
        """C as it is applied: with memory in its contractive form."""
        return self.compression.scaled_for_feedback() if self.compression and self.has_memory else self.compression

    @property
    def sends_signs(self) -> bool:
        """Whether the updates that the server decodes are signs, times one magnitude per group."""
        return not self.has_reference and self.compression is not None and self.compression.compressor.sends_signs

    @property
    def lossless(self) -> bool:
        """Whether the server decodes every update exactly."""
        return not self.has_reference and (self.compression is None or self.compression.compressor.lossless)
