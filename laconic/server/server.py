"""The server's side of a round: invite, fold, close. Engines move the messages; nothing here knows how."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from laconic.algorithm import Algorithm
from laconic.client.messages import Instruction, Reply
from laconic.data.federated import ClientData
from laconic.errors import PacketError
from laconic.layout import Layout
from laconic.link.compressors import Codec, decode_dense, encode_dense
from laconic.link.downlink import LOST, Held, Publication
from laconic.link.occasion import Occasion
from laconic.link.packet import Body, Flag, Packet, Stream
from laconic.parts import State, section
from laconic.randomness import Randomness
from laconic.run.ledger import RoundCosts
from laconic.server.aggregate import RunningMean, Weighting
from laconic.server.sampling import Sampling, participants


class Server:
    """The model, the states of optimiser and downlink, and what is kept of clients.

    Per client that is 16 bytes, the number of its last folded update and the version of the model it has, and what its
    links need (`peers`): the last packet of a lazy client, the mirror of a mirrored one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        model: Tensor,
        buffers: Tensor,
        data: ClientData,
        randomness: Randomness,
        *,
        participants: int,
        sampling: Sampling = "uniform",
        weighting: Weighting = "uniform",
        send_buffers: bool = True,
        incarnation: int = 0,
    ) -> None:
        self.algorithm, self.layout, self.data, self.randomness = algorithm, layout, data, randomness
        self.count, self.sampling, self.weighting = participants, sampling, weighting
        self.send_buffers = send_buffers and layout.buffer_size > 0
        self.incarnation = incarnation % 2**16
        """Differs from one start of a real server to the next, so that what a crash undid cannot be answered later."""
        self.round = 0
        self.model = model.clone()
        self.buffers = buffers.clone()
        self.optimizer_state = algorithm.optimizer.init(model)
        self.downlink_state = algorithm.downlink.init(model)
        self.folded = np.zeros(len(data), dtype=np.int64)
        self.versions = np.zeros(len(data), dtype=np.int64)
        self.peers: dict[int, State] = {}
        self.costs = RoundCosts()
        self.losses: list[tuple[float, int]] = []

    def invite(self) -> Iterator[Instruction]:
        """Choose who takes part; then address to each of them what it needs, one by one, as the engine can take them."""
        chosen = participants(self.sampling, len(self.data), self.count, self.round, self.randomness, self._sizes)
        self.costs = RoundCosts(invited=len(chosen))
        self.losses = []
        self._mean = RunningMean(self.layout.size, self.layout.dtype, self.model.device)
        self._buffer_mean = RunningMean(self.layout.buffer_size, self.layout.dtype, self.model.device)
        self._publication = Publication(self.model, self.downlink_state, self.layout)
        self._offered: dict[int, Body] = {}
        buffers = encode_dense(self.buffers) if self.send_buffers else None
        return (self._instruction(client, len(chosen), buffers) for client in chosen)

    def _sizes(self) -> np.ndarray:
        return np.array([self.data.size(client) for client in range(len(self.data))])

    def _held(self, client: int) -> Held:
        return Held(int(self.versions[client]), section(self.peers.get(client, {}), "downlink"))

    def _instruction(self, client: int, invited: int, buffers: Body | None) -> Instruction:
        occasion = Occasion(self.layout, self.randomness, self.round, client, invited, len(self.data))
        model = self.algorithm.downlink.send(self._publication, self._held(client), occasion)
        self._offered[client] = model
        bodies = {Stream.MODEL: model} | ({Stream.BUFFERS: buffers} if buffers else {})
        packets = []
        for stream, body in bodies.items():
            number = int(self.folded[client])
            label = (stream, self.layout.fingerprint, number, self.round, Flag(0), self.incarnation)
            packets.append(Packet(body, *label).to_bytes())
            bits = self.algorithm.downlink.paper_bits(body, self.layout) if stream == Stream.MODEL else 0
            self.costs.count("down", stream.name.lower(), len(packets[-1]), bits)
        return Instruction(self.round, client, invited, tuple(packets))

    def receive(self, reply: Reply) -> bool:
        """Fold a reply, or count its refusal."""
        try:
            self.fold(reply)
        except PacketError as error:
            self.costs.refuse(error.reason, reply.client)
            return False
        return True

    def fold(self, reply: Reply) -> None:
        """Check a reply and add it to the mean; one that is refused has changed nothing."""
        packets = {packet.stream: packet for packet in (Packet.parse(p, self.layout) for p in reply.packets)}
        if Stream.MODEL not in packets or len(packets) != len(reply.packets):
            raise PacketError("stream", f"client {reply.client} sent streams {sorted(packets)}")
        number, flags = packets[Stream.MODEL].sequence, packets[Stream.MODEL].flags
        now = (self.round, self.incarnation)
        if reply.client not in self._offered or any((p.round, p.incarnation) != now for p in packets.values()):
            raise PacketError("stale", f"client {reply.client} is not expected in round {self.round}")
        if number <= self.folded[reply.client] or any(p.sequence != number for p in packets.values()):
            raise PacketError("stale", f"update {number} of client {reply.client} is not the next")
        if Flag.LOST in flags:
            self._forget(reply)
            return
        if set(packets) != {Stream.MODEL} | ({Stream.BUFFERS} if self.send_buffers else set()):
            raise PacketError("stream", f"client {reply.client} sent streams {sorted(packets)}")
        peer = {} if Flag.RESET in flags else section(self.peers.get(reply.client, {}), "uplink")
        update, peer = self.algorithm.uplink.fold(packets[Stream.MODEL].body, flags, peer, self.layout)
        statistics = None
        if self.send_buffers:
            body = packets[Stream.BUFFERS].body
            statistics = decode_dense(body, self.layout.buffer_size, self.layout.dtype)
        # Nothing has changed so far; from here on nothing can be refused.
        weight = 1.0 if self.weighting == "uniform" else float(reply.examples)
        self._mean.add(update, weight)
        if statistics is not None:
            self._buffer_mean.add(statistics, weight)
        self._confirm(reply.client, number, peer)
        self._enter(reply, packets)

    def _confirm(self, client: int, number: int, uplink_peer: State) -> None:
        """The client's round counts: its links move on."""
        downlink = self.algorithm.downlink
        held = self._held(client)
        kept = {f"uplink/{name}": value for name, value in uplink_peer.items()}
        moved = downlink.confirmed(self._publication, held, self._offered.pop(client))
        kept |= {f"downlink/{name}": value for name, value in moved.items()}
        if kept:
            self.peers[client] = kept
        self.versions[client] = downlink.version(self.downlink_state)
        self.folded[client] = number

    def _forget(self, reply: Reply) -> None:
        """A client cannot read what it was sent: next time it gets the whole model."""
        self.versions[reply.client] = LOST
        self.peers.pop(reply.client, None)
        self._offered.pop(reply.client)
        self.costs.count("up", Stream.MODEL.name.lower(), sum(map(len, reply.packets)), 0)
        self.costs.lost += 1

    def _enter(self, reply: Reply, packets: dict[int, Packet]) -> None:
        for raw, (stream, packet) in zip(reply.packets, packets.items(), strict=True):
            bits = self.algorithm.uplink.paper_bits(packet.body, self.layout) if stream == Stream.MODEL else 0
            self.costs.count("up", Stream(stream).name.lower(), len(raw), bits)
        update = packets[Stream.MODEL]
        self.costs.skipped += update.body.codec == Codec.SKIP
        self.costs.lost += Flag.RESET in update.flags
        self.costs.gradients += reply.gradients
        self.costs.samples += reply.samples
        self.costs.folded += 1
        self.losses.append((reply.loss, reply.samples))

    def close(self) -> RoundCosts:
        """Move the model by the mean of what was folded; with nothing folded, nothing moves."""
        mean = self._mean.mean()
        if mean is not None:
            step, self.optimizer_state = self.algorithm.optimizer.step(mean, self.optimizer_state)
            occasion = Occasion(self.layout, self.randomness, self.round, population=len(self.data))
            self.model, self.downlink_state = self.algorithm.downlink.advance(
                self.model, step, self.downlink_state, occasion
            )
            statistics = self._buffer_mean.mean()
            if statistics is not None:
                self.buffers = statistics
        self.round += 1
        return self.costs

    def training_loss(self) -> float:
        """The clients' mean loss on the way through the last round, of those that know theirs."""
        known = [(loss, count) for loss, count in self.losses if not math.isnan(loss)]
        samples = sum(count for _, count in known)
        return sum(loss * count for loss, count in known) / samples if samples else math.nan

    def state(self) -> State:
        """Everything that the next round depends on, as a flat dict of tensors."""
        own: State = {
            "round": torch.tensor(self.round),
            "model": self.model,
            "buffers": self.buffers,
            "folded": torch.from_numpy(self.folded),
            "versions": torch.from_numpy(self.versions),
        }
        own |= {f"optimizer/{name}": value for name, value in self.optimizer_state.items()}
        own |= {f"downlink/{name}": value for name, value in self.downlink_state.items()}
        return own | {
            f"peers/{client}/{name}": value for client, peer in self.peers.items() for name, value in peer.items()
        }

    def restore(self, state: State) -> None:
        """Continue from `state()` of another time."""
        device = self.model.device
        self.round = int(state["round"])
        self.model, self.buffers = state["model"].to(device), state["buffers"].to(device)
        self.folded = state["folded"].cpu().numpy().copy()
        self.versions = state["versions"].cpu().numpy().copy()
        self.optimizer_state = {name: value.to(device) for name, value in section(state, "optimizer").items()}
        self.downlink_state = {name: value.to(device) for name, value in section(state, "downlink").items()}
        self.peers = {}
        for key, value in section(state, "peers").items():
            client, name = key.split("/", 1)
            self.peers.setdefault(int(client), {})[name] = value
