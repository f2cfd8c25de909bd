"""The server's side of a round: invite, fold, close. Engines move the messages; nothing here knows how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST, BroadcastModel, ClientModelVersion
from laconic.algorithms.methods.exchange import Exchange
from laconic.algorithms.methods.received import Aggregate, Received
from laconic.compression import DENSE, Codec, Payload, decode_body, decode_dense, encode_dense, encode_exactly
from laconic.compression.packet import Body, Flag, Packet, Stream
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import State, section
from laconic.core.randomness import GLOBAL, Draw, Randomness
from laconic.data.federated import ClientData, sizes_of
from laconic.federation.aggregation import RunningMean, Weighting
from laconic.federation.client_links import ClientLinkState, DiskClientLinkState
from laconic.federation.defenses import DefendedMean, Defenses, length
from laconic.federation.exchanged import Checked, Offer
from laconic.federation.ledger import RoundCosts
from laconic.federation.messages import Instruction, Reply
from laconic.federation.pending_broadcasts import PendingBroadcasts
from laconic.federation.sampling import Sampling, participants
from laconic.federation.update_norms import UpdateNormFilter


class Server:
    """The model, the states of method, optimizer and downlink, and what is kept of clients.

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
        defenses: Defenses | None = None,
        send_buffers: bool = True,
        incarnation: int = 0,
        peers: ClientLinkState | DiskClientLinkState | None = None,
    ) -> None:
        self.algorithm, self.layout, self.data, self.randomness = algorithm, layout, data, randomness
        self.count, self.sampling, self.weighting = participants, sampling, weighting
        self.send_buffers = send_buffers and layout.buffer_size > 0
        self.defenses = defenses or Defenses()
        self.defenses.check(
            algorithm,
            layout,
            participants=participants,
            weighting=weighting,
            sampling=sampling,
            send_buffers=self.send_buffers,
        )
        self.secret = randomness
        """Draws what clients must not know, where noise hides them: who takes part, and the noise."""
        self.incarnation = incarnation % 2**16
        """Differs from one start of a real server to the next, so that what a crash undid cannot be answered later."""
        self.round = 0
        self.model = model.clone()
        self.buffers = buffers.clone()
        self.method = algorithm.method
        self.method_state = self.method.init(model)
        self.optimizer_state = algorithm.optimizer.init(model)
        self.downlink_state = algorithm.downlink.init(model)
        self._all_sizes: np.ndarray | None = None
        self.folded = np.zeros(len(data), dtype=np.int64)
        self.versions = np.zeros(len(data), dtype=np.int64)
        self.peers = ClientLinkState(layout) if peers is None else peers
        self.debts = PendingBroadcasts()
        self.lengths = UpdateNormFilter()
        self.acknowledges_rounds = True
        """Whether a round that is over counts as durable; if not, `acknowledge` says when."""
        self._durable: dict[int, int] = {}
        """Of those folded since then: the number that was theirs before, which is all that may be acknowledged."""
        self.costs = RoundCosts()
        self.losses: list[tuple[float, int]] = []
        self.observer: Callable[[Reply], None] | None = None
        """Is shown every reply that is folded in, for diagnostics."""
        self.refusal: Callable[[int, PacketError], None] | None = None
        """Is told of every reply that is refused: whose it was, and why."""
        self.reachable: Callable[[int], bool] = lambda client: True
        """Whether a client can be asked at all; one that cannot costs nothing."""
        self.choose: Callable[[list[int]], list[int]] = lambda drawn: drawn
        """Who takes part in the place of those that were drawn."""
        self.heard: Callable[[int, int], None] | None = None
        """Is told at the end of every exchange which one it was, and how many answers count."""

    def exchanges(self) -> Iterator[Exchange]:
        """Open a round: choose who takes part, and go through its exchanges one by one."""
        drawn = participants(self.sampling, len(self.data), self.count, self.round, self.secret, self._sizes)
        chosen = self.choose(drawn)
        self.costs = RoundCosts(invited=len(chosen))
        self.losses = []
        self._participants: Sequence[int] = chosen
        self._answered: list[int] = []
        self._heard: set[int] = set()
        self._exchange = -1
        if self.acknowledges_rounds:
            self.acknowledge()
        self._received = Received(self.layout, self.model.device, self._aggregate)
        if self.defenses.noise:
            # That nobody was heard must not show either.
            self._received.open(Stream.MODEL)
        self._publication = BroadcastModel(self.model, self.downlink_state, self.layout)
        return iter(self.method.exchanges(self._context(), self.method_state))

    def acknowledge(self) -> None:
        """All that was folded up to now is durable: clients may be told so."""
        self._durable = {}

    def invite(self, exchange: Exchange) -> Iterator[Instruction]:
        """Address to each client what it needs, one by one, as the engine can take them."""
        asked: Sequence[int] = range(len(self.data)) if exchange.who == "everyone" else self._participants
        if exchange.who == "answered":
            answered = set(self._answered)
            asked = [client for client in self._participants if client in answered]
        self._exchange += 1
        self._answered = []
        self._offered: dict[int, Offer] = {}
        buffers = encode_dense(self.buffers) if self.send_buffers and exchange.model else None
        self._encoded: dict[str, dict[Stream, Body]] = {}
        return (self._instruction(exchange, client, buffers) for client in asked if self.reachable(client))

    def _aggregate(self, stream: Stream) -> Aggregate:
        size = self.layout.buffer_size if stream == Stream.BUFFERS else self.layout.size
        like = (size, self.layout.dtype, self.model.device)
        defenses = self.defenses
        if stream == Stream.BUFFERS:
            # Statistics are not differences: there is no length to bring them to.
            defenses = defenses.model_copy(update={"clip": None})
        if not defenses.any() or stream not in (Stream.MODEL, Stream.BUFFERS):
            return RunningMean(*like)
        noise = self.secret.numpy(Draw.PRIVACY_NOISE, self.round) if defenses.noise else None
        return DefendedMean(defenses, *like, self.count, noise)

    def _sizes(self) -> np.ndarray:
        """Looked up once: in a large population that takes longer than drawing from it; see `resized`."""
        if self._all_sizes is None:
            self._all_sizes = sizes_of(self.data)
        return self._all_sizes

    def resized(self) -> None:
        """Clients' sizes are not what they were."""
        self._all_sizes = None

    def _context(self, client: int = GLOBAL) -> RoundContext:
        invited = len(self._participants)
        return RoundContext(self.layout, self.randomness, self.round, client, invited, len(self.data))

    def _held(self, client: int) -> ClientModelVersion:
        return ClientModelVersion(int(self.versions[client]), section(self.peers.get(client), "downlink"))

    def _instruction(self, exchange: Exchange, client: int, buffers: Body | None) -> Instruction:
        context = self._context(client)
        phase = self.method.assign(exchange, context)
        if phase not in self._encoded:
            vectors = self.method.send(phase, self.method_state)
            self._encoded[phase] = {stream: self._beside(stream, vector) for stream, vector in vectors.items()}
        bodies: dict[Stream, Body] = {}
        if exchange.model:
            bodies[Stream.MODEL] = self.algorithm.downlink.send(self._publication, self._held(client), context)
        bodies |= ({Stream.BUFFERS: buffers} if buffers else {}) | self._encoded[phase] | self.debts.of(client)
        self._offered[client] = Offer(phase, exchange, bodies.get(Stream.MODEL))
        acknowledged = self._durable.get(client, int(self.folded[client]))
        continues = int(self.folded[client]) if client in self._durable else None
        packets = []
        for stream, body in bodies.items():
            label = (self.layout.fingerprint, acknowledged, self.round, Flag(0), self.incarnation, self._exchange)
            packets.append(Packet(body, stream, *label).to_frame())
            self.costs.skipped_down += body.codec == Codec.SKIP
            bits = self._paper_bits_down(stream, body) if exchange.counted else 0
            self.costs.count("down", stream.name.lower(), len(packets[-1]), bits)
        return Instruction(self.round, client, context.invited, self._exchange, phase, continues, tuple(packets))

    def _beside(self, stream: Stream, vector: Tensor) -> Body:
        """What goes down beside the model, the same for all who get it."""
        compressor = self.method.send_compressor(stream) or DENSE
        return compressor.encode(
            vector, self.layout, self._context().generator(Draw.DOWNLINK_STREAM.format(stream.name))
        )

    def _paper_bits_down(self, stream: Stream, body: Body) -> int:
        if stream == Stream.MODEL:
            return self.algorithm.downlink.paper_bits(body, self.layout)
        return 0 if stream == Stream.BUFFERS else (self.method.send_compressor(stream) or DENSE).paper_bits(self.layout)

    def receive(self, reply: Reply) -> bool:
        """Fold a reply, or count its refusal."""
        try:
            self.fold(reply)
        except PacketError as error:
            self.costs.refuse(error.reason, reply.client)
            self.costs.count("up", "refused", sum(map(len, reply.packets)), 0)
            if self.refusal is not None:
                self.refusal(reply.client, error)
            return False
        return True

    def fold(self, reply: Reply) -> None:
        """Check a reply and add it to the mean; one that is refused has changed nothing."""
        checked = self.examine(reply)
        if checked is None:
            self._forget(reply)
            return
        # From here on nothing can be refused.
        weight = 1.0 if self.weighting == "uniform" else float(reply.examples)
        for stream, payload in checked.payloads.items():
            self._received.add(Stream(stream), payload, weight)
        self.lengths.enter(checked.lengths)
        self._enter(reply, checked.packets, self._offered[reply.client])
        self._confirm(reply.client, next(iter(checked.packets.values())).sequence, checked.peer)

    def examine(self, reply: Reply) -> Checked | None:
        """Look at a reply, and change nothing: what it brings, or None from a client that cannot read what it was sent."""
        packets = {packet.stream: packet for packet in (Packet.parse(p, self.layout) for p in reply.packets)}
        if not packets or len(packets) != len(reply.packets):
            raise PacketError("stream", f"client {reply.client} sent streams {sorted(packets)}")
        label = next(iter(packets.values()))
        number, flags = label.sequence, label.flags
        now = (self.round, self.incarnation, self._exchange)
        when = {(packet.round, packet.incarnation, packet.exchange) for packet in packets.values()}
        if reply.client not in self._offered or when != {now}:
            raise PacketError("stale", f"client {reply.client} is not expected in round {self.round}")
        if number <= self.folded[reply.client] or any(p.sequence != number for p in packets.values()):
            raise PacketError("stale", f"update {number} of client {reply.client} is not the next")
        if Flag.LOST in flags:
            return None
        offer = self._offered[reply.client]
        expected = set(self.method.streams(offer.phase))
        if self.send_buffers and Stream.MODEL in expected:
            expected.add(Stream.BUFFERS)
        if set(packets) != expected:
            raise PacketError("stream", f"client {reply.client} sent streams {sorted(packets)}")
        peer = {} if Flag.RESET in flags else section(self.peers.get(reply.client), "uplink")
        payloads: dict[int, Payload] = {}
        for stream, packet in packets.items():
            if stream == Stream.MODEL:
                payloads[stream], peer = self.algorithm.uplink.fold(packet.body, flags, peer, self.layout)
            elif stream == Stream.BUFFERS:
                payloads[stream] = decode_dense(packet.body, self.layout.buffer_size, self.layout.dtype)
            elif stream != Stream.CONFIRM:
                payloads[stream] = decode_body(packet.body, self.layout)
        lengths: dict[str, float] = {}
        if self.defenses.refuse == "auto":
            lengths = {f"{offer.phase}/{Stream(s).name.lower()}": length(each) for s, each in payloads.items()}
            self.lengths.check(lengths, reply.client)
        elif Stream.MODEL in payloads:
            self.defenses.admit(payloads[Stream.MODEL], reply.client)
        size = self.data.size(reply.client)
        if self.weighting == "size" and reply.examples != size:
            raise PacketError("examples", f"client {reply.client} has {size} examples, and says {reply.examples}")
        return Checked(packets, payloads, peer, lengths)

    def _confirm(self, client: int, number: int, uplink_peer: State) -> None:
        """The client's exchange counts: its links move on."""
        downlink = self.algorithm.downlink
        held = self._held(client)
        kept = {f"uplink/{name}": value for name, value in uplink_peer.items()}
        model = self._offered.pop(client).model
        moved = held.peer if model is None else downlink.confirmed(self._publication, held, model)
        kept |= {f"downlink/{name}": value for name, value in moved.items()}
        if kept:
            self.peers[client] = kept
        if model is not None:
            self.versions[client] = downlink.version(self.downlink_state)
        elif Stream.MEAN in self.debts.of(client):
            self.versions[client] = downlink.repeated_version(int(self.versions[client]))
        self._durable.setdefault(client, int(self.folded[client]))
        self.folded[client] = number
        self.debts.settle(client)
        self._answered.append(client)

    def _forget(self, reply: Reply) -> None:
        """A client cannot read what it was sent: next time it gets the whole model."""
        self.costs.lost += int(self.versions[reply.client] != LOST)
        self.versions[reply.client] = LOST
        self.peers.forget(reply.client)
        self.debts.settle(reply.client)
        self._offered.pop(reply.client)
        self.costs.count("up", Stream.MODEL.name.lower(), sum(map(len, reply.packets)), 0)

    def _enter(self, reply: Reply, packets: dict[int, Packet], offer: Offer) -> None:
        for raw, (stream, packet) in zip(reply.packets, packets.items(), strict=True):
            bits = self._paper_bits_up(Stream(stream), packet.body, offer.phase) if offer.exchange.counted else 0
            self.costs.count("up", Stream(stream).name.lower(), len(raw), bits)
        self.costs.gradients += reply.gradients if offer.exchange.counted else 0
        self.costs.samples += reply.samples
        if offer.exchange.counted and reply.client not in self._heard:
            self._heard.add(reply.client)
            self.costs.folded += 1
        anew = any(Flag.RESET in packet.flags for packet in packets.values())
        # One that had to ask for the whole model first was entered then.
        self.costs.lost += int(anew and self.versions[reply.client] != LOST)
        self.losses.append((reply.loss, reply.samples))
        if Stream.MODEL in packets:
            self.costs.updates += 1
            self.costs.skipped += packets[Stream.MODEL].body.codec == Codec.SKIP
            self.costs.accelerated += Flag.ACCELERATED in packets[Stream.MODEL].flags
        if self.observer is not None:
            self.observer(reply)

    def _paper_bits_up(self, stream: Stream, body: Body, phase: str) -> int:
        if stream == Stream.MODEL:
            return self.algorithm.uplink.paper_bits(body, self.layout)
        if stream in (Stream.BUFFERS, Stream.CONFIRM):
            return 0
        return (self.method.compressor(phase, self.algorithm.uplink) or DENSE).paper_bits(self.layout)

    def gather(self, exchange: Exchange) -> None:
        """End an exchange: the method makes of the answers what it needs."""
        if self.heard is not None:
            self.heard(self._exchange, len(self._answered))
        self.method_state = self.method.gather(exchange, self.method_state, self._received, self._context())
        owed = self.method.owes(exchange, self._received)
        if owed:
            bodies = {stream: encode_exactly(vector, self.layout) for stream, vector in owed.items()}
            self.debts.owe(self.round, bodies, self._answered)

    def close(self) -> RoundCosts:
        """Move the model by the mean of what was folded; with nothing folded, nothing moves."""
        before = self.model
        update = self.method.update(self._received, self.method_state)
        if update is not None:
            step, self.optimizer_state = self.algorithm.optimizer.step(update, self.optimizer_state)
            step = self.algorithm.optimizer.scheduled(step, self.round)
            context = RoundContext(self.layout, self.randomness, self.round, population=len(self.data))
            self.model, self.downlink_state = self.algorithm.downlink.advance(
                self.model, step, self.downlink_state, context
            )
            statistics = self._received.mean(Stream.BUFFERS)
            if statistics is not None:
                self.buffers = statistics
        self.method_state = self.method.close(self.method_state, before)
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
        own |= {f"method/{name}": value for name, value in self.method_state.items()}
        own |= {f"lengths/{name}": value for name, value in self.lengths.state().items()}
        own |= {f"debts/{name}": value for name, value in self.debts.state().items()}
        return own | {f"peers/{name}": value for name, value in self.peers.state().items()}

    def restore(self, state: State) -> None:
        """Continue from `state()` of another time."""
        device = self.model.device
        self.round = int(state["round"])
        self.model, self.buffers = state["model"].to(device), state["buffers"].to(device)
        self.folded = state["folded"].cpu().numpy().copy()
        self.versions = state["versions"].cpu().numpy().copy()
        self.optimizer_state = {name: value.to(device) for name, value in section(state, "optimizer").items()}
        self.downlink_state = {name: value.to(device) for name, value in section(state, "downlink").items()}
        self.method_state = {name: value.to(device) for name, value in section(state, "method").items()}
        self.lengths.restore(section(state, "lengths"))
        self.debts = PendingBroadcasts.restored(section(state, "debts"))
        self.peers.restore(section(state, "peers"))
