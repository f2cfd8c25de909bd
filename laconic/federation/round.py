"""One round, the same for every engine.

`run_round` shows all steps. A `Round` owns the state of one round, the `Server` the state that persists between rounds. The
engine delivers the messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from statistics import median

import numpy as np
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import BroadcastModel
from laconic.algorithms.methods.exchange import BASE, BUFFERS, CONFIRM, MEAN, MODEL, UPDATE, Exchange, Phase, Stream
from laconic.algorithms.methods.received import Received
from laconic.compression import DENSE, Codec, decode_body, encode_dense, encode_exactly
from laconic.compression.packet import Body, Flag, Packet
from laconic.core.errors import ConfigError, PacketError
from laconic.core.randomness import GLOBAL, Draw
from laconic.federation.aggregation import mean_loss
from laconic.federation.engine import Engine
from laconic.federation.ledger import RoundCosts
from laconic.federation.messages import Instruction, MalformedReply, Probe, Reply
from laconic.federation.policy import ExchangeReport, Outcome, Refusal
from laconic.federation.replies import (
    SentInstruction,
    ValidReply,
    believed_counts,
    check_counts,
    check_labels,
    coded_vectors,
    parse_packets,
)
from laconic.federation.sampling import limited
from laconic.federation.server import Server
from laconic.federation.update_norms import kind_of


def run_round(server: Server, engine: Engine) -> Round:
    """One round: choose participants, send the model, train locally, collect updates, move the model.

    Most methods have one exchange of messages per round, some have two. If the outcome is `Outcome.RETRY`, the model has not
    changed and the round must be repeated.
    """
    round = Round(server, engine)
    for exchange in round.exchanges():
        for reply in engine.run(round.instructions(exchange)):
            round.receive(reply)
            if round.has_quorum():
                engine.stop_waiting()
        if round.finish(exchange) is not Outcome.PROCEED:
            return round
    return round.close()


class Round:
    """The participants of one round, its messages, and its costs."""

    def __init__(self, server: Server, engine: Engine) -> None:
        self.server = server
        self.method, self.phases = server.algorithm.method, server.algorithm.phases
        self.layout = server.layout
        self.engine = engine
        self.participants: Sequence[int] = engine.participants(server.draw_participants())
        self.costs = RoundCosts(invited=len(self.participants))
        self.outcome = Outcome.PROCEED
        self.probes: list[Probe] = []
        """The probes of the updates that were used, for diagnostics in simulations."""
        self.clients_by_phase: dict[str, list[int]] = {}
        """The clients whose replies were used, by the phase that they ran, such as `anchor` and `miner` of FedAMD."""
        self._number = -1
        """The index of the current exchange."""
        self._sent: dict[int, SentInstruction] = {}
        """The instructions of the current exchange without a valid reply, by client."""
        self._sent_count = 0
        self._waiting: dict[int, tuple[Reply, SentInstruction, ValidReply]] = {}
        """Valid replies of the current exchange that wait, coded, until the exchange is over."""
        self._waits = not engine.in_order or server.defenses.compares_norms()
        """Whether replies wait: to be sorted by client, or because a defense compares their norms."""
        self.answered: list[int] = []
        """Clients whose reply to the current exchange was used."""
        self._counted: set[int] = set()
        """Clients that `costs.folded` includes."""
        self._refusals: list[Refusal] = []
        self._losses: list[tuple[float, float]] = []
        self.received = Received(self.layout, server.model.device, server.new_aggregate)
        """The aggregated vectors by stream."""
        if server.defenses.noise:
            # Create the aggregate even if no update arrives: the noise must be added in every round.
            self.received.open(MODEL)
        self._broadcast = BroadcastModel(server.model, server.downlink_state, self.layout)
        server.begin_round()

    # Sending.

    def exchanges(self) -> Iterator[Exchange]:
        """The exchanges of this round."""
        return iter(self.method.exchanges(self._context(), self.server.method_state))

    def instructions(self, exchange: Exchange) -> list[Instruction]:
        """Open an exchange: one instruction for each available client that takes part in it."""
        clients = self._clients(exchange)
        self._number += 1
        self.answered, self._sent, self._waiting, self._refusals = [], {}, {}, []
        phase_bodies: dict[str, dict[str, Body]] = {}
        send_buffers = self.server.send_buffers and exchange.model
        buffers = {BUFFERS: encode_dense(self.server.buffers)} if send_buffers else {}
        is_blocked, is_available = self.server.blocklist.is_blocked, self.engine.is_available
        clients = [client for client in clients if not is_blocked(client) and is_available(client)]
        self._sent_count = len(clients)
        models: Iterable[Body | None] = repeat(None)
        if exchange.model:
            share_work = self.engine.map if self.server.algorithm.downlink.encodes_per_client else map
            models = share_work(self._encode_model, clients)
        return [
            self._instruction(exchange, client, model, buffers, phase_bodies)
            for client, model in zip(clients, models, strict=False)
        ]

    def _encode_model(self, client: int) -> Body:
        version = self.server.clients.model_version(client)
        return self.server.algorithm.downlink.send(self._broadcast, version, self._context(client))

    def _clients(self, exchange: Exchange) -> Sequence[int]:
        if exchange.who == "everyone":
            return range(len(self.server.data))
        if exchange.who in ("answered", "one"):
            answered = [client for client in self.participants if client in set(self.answered)]
            if exchange.who == "answered" or not answered:
                return answered
            return [answered[self._context().generator(Draw.ONE_OF_ANSWERED).integers(len(answered))]]
        return self.participants

    def _instruction(
        self,
        exchange: Exchange,
        client: int,
        model: Body | None,
        buffers: dict[str, Body],
        phase_bodies: dict[str, dict[str, Body]],
    ) -> Instruction:
        """`phase_bodies` caches the bodies of each phase: all clients of a phase receive the same."""
        server, table, context = self.server, self.server.clients, self._context(client)
        phase = self.phases[self.method.assign(exchange, context)]
        if phase.name not in phase_bodies:
            phase_bodies[phase.name] = {stream.name: self._encode_stream(stream) for stream in phase.down}
        bodies = {} if model is None else {MODEL: model}
        bodies |= buffers | phase_bodies[phase.name] | table.pending.bodies(client) | server.base_for(client)
        self._sent[client] = SentInstruction(phase, exchange, model)
        label = (self.layout.fingerprint, table.acknowledged(client), server.round, Flag(0))
        packets = []
        for name, body in bodies.items():
            packets.append(Packet(body, self.phases.number(name), *label, server.incarnation, self._number))
            self.costs.skipped_down += body.codec == Codec.SKIP
            bits = self._paper_bits_down(name, body, phase) if exchange.counted else 0
            self.costs.count("down", name, len(packets[-1]), bits)
        continues = table.continues(client)
        return Instruction(server.round, client, context.invited, self._number, phase.name, continues, tuple(packets))

    def _encode_stream(self, stream: Stream) -> Body:
        context, vector = self._context(), self.server.method_state.get(stream.name)
        if vector is None:
            raise ConfigError(f"method '{self.method.name}': it sends '{stream.name}', so `init` must return it")
        generator = context.generator(Draw.DOWNLINK_STREAM.format(stream.draw))
        return (stream.compressor or DENSE).encode(vector, self.layout, generator, context.invited)

    def _paper_bits_down(self, name: str, body: Body, phase: Phase) -> int:
        if name == MODEL:
            return self.server.algorithm.downlink.paper_bits(body, self.layout)
        if name in (BUFFERS, BASE):
            return 0
        compressors = {stream.name: stream.compressor for stream in phase.down} | {MEAN: self.method.mean_compression}
        return (compressors.get(name) or DENSE).paper_bits(self.layout, body)

    # Receiving.

    def receive(self, reply: Reply | MalformedReply) -> bool:
        """Use a reply if it is valid; otherwise only record the refusal. Returns whether it is valid."""
        try:
            if isinstance(reply, MalformedReply):
                raise reply.error
            valid, factor = self.validate(reply), 1.0
            if valid is not None and not self._waits:
                factor = self.server.norms.limits([valid.norms]).factor(valid.norms, reply.client)
        except PacketError as error:
            self._refuse(reply, error)
            return False
        sent = self._sent.pop(reply.client)
        if valid is None:
            self._forget_state(reply, sent)
        elif self._waits:
            self._waiting[reply.client] = reply, sent, valid
        else:
            self._use(reply, sent, valid, factor)
        return True

    def validate(self, reply: Reply) -> ValidReply | None:
        """Check a reply without changing anything; None if the client has lost its state and could not decode the model."""
        packets = parse_packets(reply, self.layout, self.phases)
        if reply.client not in self._sent:
            raise PacketError("stale", f"no reply of client {reply.client} is expected in round {self.server.round}")
        now = (self.server.round, self.server.incarnation, self._number)
        check_labels(reply, packets, now, int(self.server.clients.sequences[reply.client]))
        flags = next(iter(packets.values())).flags
        if Flag.LOST in flags:
            return None
        phase = self._sent[reply.client].phase
        uplink_state = {} if Flag.RESET in flags else self.server.clients.uplink_state(reply.client)
        uplink, context = self.server.algorithm.uplink, self._context(reply.client)
        coded, uplink_state = coded_vectors(packets, self._expected(phase), uplink, uplink_state, context)
        size = self.server.data.size(reply.client)
        if self.server.weighting == "size" and reply.examples != size:
            raise PacketError("examples", f"client {reply.client} has {size} examples, but reports {reply.examples}")
        check_counts(reply, phase, size)
        # Decoding, or else the norm, reads the vectors to the end, so invalid ones are refused here.
        if not self._waits:
            for vector in coded.values():
                _ = vector.payload
        norms: dict[str, float] = {}
        if self._waits or self.server.defenses.needs_norms():
            first = not self.server.clients.sequences[reply.client] or Flag.RESET in flags
            norms = {kind_of(phase.name, name, first=first): vector.norm() for name, vector in coded.items()}
        return ValidReply(packets, coded, uplink_state, norms)

    def _expected(self, phase: Phase) -> set[str]:
        """The streams of a reply."""
        expected = {stream.name for stream in phase.up} or {CONFIRM}
        return expected | {BUFFERS} if self.server.send_buffers and MODEL in expected else expected

    def _refuse(self, reply: Reply | MalformedReply, error: PacketError) -> None:
        self.costs.refuse(error.reason, reply.client)
        if reply.packets:
            self.costs.count("up", "refused", sum(map(len, reply.packets)), 0)
        self._refusals.append(Refusal(reply.client, error))

    def _use(self, reply: Reply, sent: SentInstruction, valid: ValidReply, factor: float) -> None:
        """Aggregate a valid reply, with its update scaled by `factor`."""
        weight, shared = self.server.weight(reply.client), {state.name for state in self.method.shared_states()}
        for stream, vector in valid.vectors.items():
            # A shared state c is the plain mean of all c_i, however updates are weighted.
            factors = (1.0 if stream in shared else weight, factor if stream == MODEL else 1.0)
            self.received.add(stream, vector.payload, *factors)
        self.costs.clipped += factor < 1
        # A client that claims again and again to have lost its state must not raise the limit for first vectors.
        self.server.norms.add({} if valid.started_over else valid.norms)
        self._count(reply, sent, valid)
        self._advance(reply.client, sent, valid)

    def _advance(self, client: int, sent: SentInstruction, valid: ValidReply) -> None:
        """Update the server's copy of the client's link states."""
        downlink, table = self.server.algorithm.downlink, self.server.clients
        before = table.model_version(client)
        state, version = before.peer, None
        if sent.model is not None:
            state = downlink.confirmed(self._broadcast, before, sent.model)
            version = downlink.version(self.server.downlink_state)
        elif MEAN in table.pending.bodies(client):
            version = downlink.repeated_version(before.version)
        table.advance(client, valid.sequence, valid.uplink_state, state, version, self.layout.period)
        self.answered.append(client)

    def _forget_state(self, reply: Reply, sent: SentInstruction) -> None:
        """Note that a client has lost its state, so that it receives the whole model next."""
        if self.server.clients.has_lost_state(reply.client):
            self._sent[reply.client] = sent  # no answer: if it says so again and again, it counts as absent
        else:
            self.costs.lost += 1
        self.server.clients.forget(reply.client)
        self.costs.count("up", MODEL, sum(map(len, reply.packets)), 0)

    def _count(self, reply: Reply, sent: SentInstruction, valid: ValidReply) -> None:
        for raw, (name, packet) in zip(reply.packets, valid.packets.items(), strict=True):
            bits = self._paper_bits_up(name, packet.body, sent.phase) if sent.exchange.counted else 0
            self.costs.count("up", name, len(raw), bits)
        gradients, samples = believed_counts(reply, sent.phase, self.server.limited_size(reply.client))
        self.costs.samples += samples
        self.clients_by_phase.setdefault(sent.phase.name, []).append(reply.client)
        if sent.exchange.counted:
            self.costs.gradients += gradients
            self.costs.folded += reply.client not in self._counted
            self._counted.add(reply.client)
        # `_forget_state` has counted the clients that asked for the whole model.
        self.costs.lost += int(valid.started_over and not self.server.clients.has_lost_state(reply.client))
        if MODEL in valid.packets or not self.phases.has_update:
            self._losses.append((reply.loss, samples * reply.counted))
        if MODEL in valid.packets:
            self.costs.updates += 1
            self.costs.skipped += valid.packets[MODEL].body.codec == Codec.SKIP
            self.costs.accelerated += Flag.ACCELERATED in valid.packets[MODEL].flags
        if reply.probe is not None:
            self.probes.append(reply.probe)

    def _paper_bits_up(self, name: str, body: Body, phase: Phase) -> int:
        if name == MODEL:
            return self.server.algorithm.uplink.paper_bits(body, self.layout)
        if name in (BUFFERS, CONFIRM):
            return 0
        return (phase.stream(name).compressor or DENSE).paper_bits(self.layout, body)

    def unanswered(self) -> set[int]:
        """Clients that have not answered the current exchange."""
        return set(self._sent)

    def has_quorum(self) -> bool:
        """Whether enough valid replies have arrived to end the exchange."""
        quorum = self.server.quorum
        return quorum is not None and len(self._waiting) + len(self.answered) >= math.ceil(quorum * self._sent_count)

    # Ending.

    def finish(self, exchange: Exchange) -> Outcome:
        """End an exchange: the method processes the replies if the reply policy lets the round proceed."""
        limits = self.server.norms.limits([valid.norms for _, _, valid in self._waiting.values()])
        work = self._relative_work()
        for client in sorted(self._waiting):
            # Replies are summed in client order, not in order of arrival, so that results are reproducible.
            reply, sent, valid = self._waiting.pop(client)
            try:
                factor = limits.factor(valid.norms, client, work[client])
                self._check_direction(client, sent, valid, work[client], factor)
            except PacketError as error:
                self._refuse(reply, error)
            else:
                self._use(reply, sent, valid, factor)
        unanswered = () if self.has_quorum() else self.unanswered()
        replies = (self.participants, self.answered, self._refusals, unanswered)
        self.outcome = self.server.policy.judge(ExchangeReport(self.server.round, self._number, *replies))
        if self.outcome is not Outcome.PROCEED:
            return self.outcome
        self.server.gather(exchange, self.received, self._context())
        mean = self.received.mean(MODEL) if self.method.sends_mean else None
        if mean is not None and UPDATE in self.phases[exchange.phase].up:
            self.server.clients.pending.must_deliver(self.server.round, {MEAN: self._encode_mean(mean)}, self.answered)
        return self.outcome

    def _encode_mean(self, mean: Tensor) -> Body:
        """The mean for clients. The server continues with what they decode."""
        compression, context = self.method.mean_compression, self._context()
        if compression is None:
            return encode_exactly(mean, self.layout)
        generator = context.generator(Draw.DOWNLINK_MEAN)
        body = compression.encode(mean, self.layout, generator, context.invited)
        self.received.replace(MODEL, decode_body(body, self.layout).dense().to(mean.device))
        return body

    def _relative_work(self) -> dict[int, float]:
        """The gradients that each waiting client computes, as a multiple of the median client's in the same phase."""
        # From the sizes that nodes joined with, limited as for weights: larger claims are not believed.
        sizes = limited(np.array([self.server.data.size(client) for client in self._waiting]), self.server.weight_limit)
        work: dict[str, dict[int, int]] = {}
        for (client, (_, sent, _)), size in zip(self._waiting.items(), sizes.tolist(), strict=True):
            work.setdefault(sent.phase.name, {})[client] = max(1, sent.phase.gradients(int(size)))
        return {client: own / median(others.values()) for others in work.values() for client, own in others.items()}

    def _check_direction(
        self, client: int, sent: SentInstruction, valid: ValidReply, work: float, factor: float
    ) -> None:
        server, vector = self.server, valid.vectors.get(MODEL)
        if server.defenses.refuse != "auto" or vector is None:
            return
        difference = None
        for shared in self.method.shared_states():
            if (change := valid.vectors.get(shared.name)) is not None:
                difference = shared.rate(self.method, self.layout) * change.payload.dense()
        server.directions.check(
            sent.phase.name,
            client,
            vector.payload.dense(),
            server.model,
            weight=factor * server.weight(client),
            work=work,
            difference=difference,
            started_over=valid.started_over or not server.clients.sequences[client],
        )

    def close(self) -> Round:
        """Update the model with the mean of the updates. Without updates the model does not change."""
        # Not after each exchange: an accepted gradient must not clear the refused updates of a later exchange.
        self.server.blocklist.accept(self.answered)
        self.server.advance(self.received)
        return self

    def training_loss(self) -> float:
        """The mean training loss of the clients that take local steps, weighted by samples whose targets count.

        As in FedAMD (Wu et al., 2023, appendix F.1). Without updates, as in EF21, it is over all clients that report a loss.
        """
        return mean_loss(self._losses, self.server.weight_limit)

    def _context(self, client: int = GLOBAL) -> RoundContext:
        server = self.server
        # With noise, no client's answer may depend on who else takes part, and none may learn it.
        invited = server.count if server.defenses.noise else len(self.participants)
        return RoundContext(self.layout, server.randomness, server.round, client, invited, len(server.data))
