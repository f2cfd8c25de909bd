"""Clients that send what they should not, on purpose: to see what defenses are worth."""

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
    """Some clients, always the same ones, whose replies are spoilt on their way."""

    def __init__(
        self, not_finite: int, boosted: int, boost: float, clients: int, layout: Layout, randomness: Randomness
    ) -> None:
        if not_finite + boosted > clients:
            raise ConfigError(
                f"faults.boosted = {boosted}: with {not_finite} not_finite, there are only {clients} clients"
            )
        chosen = randomness.numpy(Draw.ATTACKERS).choice(clients, not_finite + boosted, replace=False).tolist()
        self.factors = dict.fromkeys(chosen[:not_finite], float("nan")) | dict.fromkeys(chosen[not_finite:], boost)
        """By attacker: what it multiplies its vectors with."""
        self._layout = layout

    def spoil(self, reply: Reply) -> Reply:
        """The reply as it is sent: of an attacker, other vectors under the same labels."""
        factor = self.factors.get(reply.client)
        if factor is None:
            return reply
        parsed = [Packet.parse(packet, self._layout) for packet in reply.packets]
        packets = [replace(p, body=self._spoilt(p, factor)).to_bytes() for p in parsed if p.body.codec != Codec.SKIP]
        return replace(reply, packets=tuple(packets) or reply.packets)

    def _spoilt(self, packet: Packet, factor: float) -> Body:
        if packet.stream == CoreStream.BUFFERS:
            vector = decode_dense(packet.body, self._layout.buffer_size, self._layout.dtype).dense()
        else:
            vector = decode_body(packet.body, self._layout).dense()
        return _dense(vector * factor)


def _dense(vector: Tensor) -> Body:
    """Every entry, also where no honest encoder would send it."""
    codec = encode_dense(torch.zeros_like(vector)).codec
    most = torch.finfo(vector.dtype).max
    return Body(codec, vector.clamp(-most, most).contiguous().numpy().tobytes())
