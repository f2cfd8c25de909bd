"""Simulated attackers, for tests of defenses."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from laconic.compression import Codec, decode_body, decode_dense, encode_dense
from laconic.compression.packet import Body, CoreStream, Packet
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.randomness import Draw, Randomness
from laconic.federation.messages import Reply


class Attacks:
    """A fixed set of attackers, whose vectors are multiplied by NaN or by a factor."""

    def __init__(
        self, not_finite: int, boosted: int, boost: float, clients: int, layout: Layout, randomness: Randomness
    ) -> None:
        if not_finite + boosted > clients:
            raise ConfigError(
                f"faults.boosted = {boosted}: with {not_finite} not_finite, attackers outnumber the {clients} clients"
            )
        chosen = randomness.numpy(Draw.ATTACKERS).choice(clients, not_finite + boosted, replace=False).tolist()
        self.factors = dict.fromkeys(chosen[:not_finite], float("nan")) | dict.fromkeys(chosen[not_finite:], boost)
        """The factor of each attacker, by client."""
        self._layout = layout

    def apply(self, reply: Reply) -> Reply:
        """Replace the vectors of an attacker's reply. Other replies are returned unchanged."""
        factor = self.factors.get(reply.client)
        if factor is None:
            return reply
        parsed = [Packet.parse(packet, self._layout) for packet in reply.packets]
        packets = [replace(p, body=self._scaled(p, factor)).to_bytes() for p in parsed if p.body.codec != Codec.SKIP]
        return replace(reply, packets=tuple(packets) or reply.packets)

    def _scaled(self, packet: Packet, factor: float) -> Body:
        if packet.stream == CoreStream.BUFFERS:
            vector = decode_dense(packet.body, self._layout.buffer_size, self._layout.dtype).dense()
        else:
            vector = decode_body(packet.body, self._layout).dense()
        return _dense(vector * factor)


def _dense(vector: Tensor) -> Body:
    """Encode all entries, including NaN, which the honest encoder refuses."""
    codec = encode_dense(torch.zeros_like(vector)).codec
    most = torch.finfo(vector.dtype).max
    return Body(codec, vector.clamp(-most, most).contiguous().numpy().tobytes())
