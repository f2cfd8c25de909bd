"""The server's side of a round: invite, fold, close. Engines move the messages; nothing here knows how."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from laconic.algorithm import Algorithm
from laconic.client.messages import Instruction, Reply
from laconic.data.federated import ClientData
from laconic.errors import PacketError
from laconic.layout import Layout
from laconic.link.compressors import decode_dense, encode_dense
from laconic.link.packet import Body, Packet, Stream
from laconic.parts import State
from laconic.randomness import Randomness
from laconic.run.ledger import RoundCosts
from laconic.server.aggregate import RunningMean, Weighting
from laconic.server.sampling import Sampling, participants


class Server:
    """The model, the optimiser's and the downlink's states, and 8 bytes per client: the number of its last folded update."""

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
    ) -> None:
        self.algorithm, self.layout, self.data, self.randomness = algorithm, layout, data, randomness
        self.count, self.sampling, self.weighting = participants, sampling, weighting
        self.send_buffers = send_buffers and layout.buffer_size > 0
        self.round = 0
        self.model = model.clone()
        self.buffers = buffers.clone()
        self.optimizer_state = algorithm.optimizer.init(model)
        self.downlink_state = algorithm.downlink.init(model)
        self.folded = np.zeros(len(data), dtype=np.int64)
        self.costs = RoundCosts()
        self.losses: list[tuple[float, int]] = []

    def invite(self) -> list[Instruction]:
        """Choose who takes part, and address the model to each of them."""
        chosen = participants(
            self.sampling,
            len(self.data),
            self.count,
            self.round,
            self.randomness,
            self._sizes,
        )
        self.costs = RoundCosts(invited=len(chosen))
        self.losses = []
        self._mean = RunningMean(self.layout.size, self.layout.dtype, self.model.device)
        self._buffer_mean = RunningMean(self.layout.buffer_size, self.layout.dtype, self.model.device)
        self._waiting = set(chosen)
        model_for = self.algorithm.downlink.publish(self.model, self.downlink_state)
        buffers = encode_dense(self.buffers) if self.send_buffers else None
        return [self._instruction(client, len(chosen), model_for(client), buffers) for client in chosen]

    def _sizes(self) -> np.ndarray:
        return np.array([self.data.size(client) for client in range(len(self.data))])

    def _instruction(self, client: int, invited: int, model: Body, buffers: Body | None) -> Instruction:
        bodies = {Stream.MODEL: model} | ({Stream.BUFFERS: buffers} if buffers else {})
        packets = []
        for stream, body in bodies.items():
            number = int(self.folded[client])
            packets.append(Packet(body, stream, self.layout.fingerprint, number, self.round).to_bytes())
            bits = self.algorithm.downlink.paper_bits(body, self.layout) if stream == Stream.MODEL else 0
            self.costs.count("down", stream.name.lower(), len(packets[-1]), bits)
        return Instruction(self.round, client, invited, tuple(packets))

    def fold(self, reply: Reply) -> None:
        """Check a reply and add it to the mean; a reply that is refused changes nothing."""
        packets = {packet.stream: packet for packet in (Packet.parse(p, self.layout) for p in reply.packets)}
        if reply.client not in self._waiting or any(p.round != self.round for p in packets.values()):
            raise PacketError("stale", f"client {reply.client} is not expected in round {self.round}")
        expected = {Stream.MODEL} | ({Stream.BUFFERS} if self.send_buffers else set())
        if set(packets) != expected or len(packets) != len(reply.packets):
            raise PacketError("stream", f"client {reply.client} sent streams {sorted(packets)}")
        number = packets[Stream.MODEL].sequence
        if number <= self.folded[reply.client]:
            raise PacketError("stale", f"update {number} of client {reply.client} was folded already")
        update = self.algorithm.uplink.decode(packets[Stream.MODEL].body, self.layout)
        weight = 1.0 if self.weighting == "uniform" else float(reply.examples)
        if self.send_buffers:
            body = packets[Stream.BUFFERS].body
            self._buffer_mean.add(decode_dense(body, self.layout.buffer_size, self.layout.dtype), weight)
        self._mean.add(update, weight)
        self._waiting.discard(reply.client)
        self.folded[reply.client] = number
        self._enter(reply, packets)

    def _enter(self, reply: Reply, packets: dict[int, Packet]) -> None:
        for raw, (stream, packet) in zip(reply.packets, packets.items(), strict=True):
            bits = self.algorithm.uplink.paper_bits(packet.body, self.layout) if stream == Stream.MODEL else 0
            self.costs.count("up", Stream(stream).name.lower(), len(raw), bits)
        self.costs.gradients += reply.gradients
        self.costs.samples += reply.samples
        self.costs.folded += 1
        self.losses.append((reply.loss, reply.samples))

    def close(self) -> RoundCosts:
        """Move the model by the mean of what was folded; with nothing folded, nothing moves."""
        mean = self._mean.mean()
        if mean is not None:
            step, self.optimizer_state = self.algorithm.optimizer.step(mean, self.optimizer_state)
            step, self.downlink_state = self.algorithm.downlink.advance(step, self.downlink_state)
            self.model = self.model + step
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
        }
        own |= {f"optimizer/{name}": value for name, value in self.optimizer_state.items()}
        return own | {f"downlink/{name}": value for name, value in self.downlink_state.items()}

    def restore(self, state: State) -> None:
        """Continue from `state()` of another time."""
        device = self.model.device
        self.round = int(state["round"])
        self.model, self.buffers = state["model"].to(device), state["buffers"].to(device)
        self.folded = state["folded"].cpu().numpy().copy()
        self.optimizer_state = _section(state, "optimizer/", self.optimizer_state)
        self.downlink_state = _section(state, "downlink/", self.downlink_state)


def _section(state: State, prefix: str, like: State) -> State:
    return {name: state[prefix + name].to(example.device) for name, example in like.items()}
