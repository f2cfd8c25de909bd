"""The server's side of compressed messages in anybody's Flower app: `Compressed` around its strategy.

The strategy sends and receives ordinary ArrayRecords. On the way a model becomes a packet, and a reply's packet becomes a
record again: the strategy's own model plus the difference that the node has sent. What each node has is known by the
sequence number of its last reply that was used. Each message carries that number (laconic.flower.compress_mod).

If the server stops, its strategy starts over, and so do the links: every start has a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any
from uuid import uuid4

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST, BroadcastModel, ClientModelVersion, Downlink
from laconic.algorithms.downlinks.dense import DenseDownlink
from laconic.compression import decode_body
from laconic.compression.packet import Body, CoreStream, Packet
from laconic.core.errors import ConfigError, PacketError
from laconic.core.randomness import Randomness
from laconic.core.state_dict import joined, section
from laconic.federation.client_links import ClientLinkState
from laconic.federation.ledger import Direction, Ledger
from laconic.flower import wire
from laconic.flower.arrays import EXACT, ArrayTable
from laconic.flower.compress_mod import REJECTED, mirrored_of, replaced, uplink_of

LOG = getLogger("flwr.laconic")


class Compressed(Strategy):
    """Any strategy, with compressed messages: `Compressed(FedAvg(), uplink="top_k:1/64", downlink="top_k:1/16")`.

    Every ClientApp needs `compress_mod` among its mods. `Compressed` must be the outermost strategy.

    Args:
        strategy: The strategy that samples and aggregates.
        uplink: The compressor of the nodes' updates, with error feedback if the compressor is biased and does more than
            round entries. A compressor that a node passes to `compress_mod` takes precedence.
        downlink: The compressor of the model. The server keeps a copy of each node's model, and sends C(model - copy).
            `dense` sends the whole model.
        record: The name of the ArrayRecord that is compressed; by default the strategy's `arrayrecord_key`. Others are
            sent unchanged.
        exact: Patterns of names of arrays that are not compressed. Integers never are.
    """

    def __init__(
        self,
        strategy: Strategy,
        uplink: str = "top_k:1/64",
        downlink: str = "dense",
        *,
        record: str | None = None,
        exact: Sequence[str] = EXACT,
    ) -> None:
        uplink_of(uplink)  # rejects a misspelled one before the nodes do
        self.strategy = strategy
        name = str(getattr(strategy, "arrayrecord_key", "arrays")) if record is None else record
        self._links = _Links(uplink, downlink, name, tuple(exact))

    @property
    def ledger(self) -> Ledger:
        """The bytes of all messages as they were sent: packets, other arrays, and all other values."""
        return self._links.ledger

    @property
    def uncompressed(self) -> Ledger:
        """The bytes that the same messages have without compression."""
        return self._links.uncompressed

    def start(self, grid: Grid, *arguments: Any, **keywords: Any) -> Result:
        """Run the strategy over compressed messages; see `Strategy.start`."""
        result = self.strategy.start(CompressedGrid(grid, self._links), *arguments, **keywords)
        for line in self.traffic().splitlines():
            LOG.info("laconic: %s", line)
        return result

    def traffic(self) -> str:
        """The bytes in both directions, as a table."""
        lines = [f"{'':6}{'messages':>10}{'bytes':>16}{'uncompressed':>16}{'ratio':>8}"]
        ways: tuple[Direction, ...] = ("up", "down")
        for way in ways:
            sent, full = self.ledger.bytes(way), self.uncompressed.bytes(way)
            messages = self.uncompressed.streams[f"{way}/other"].packets if full else 0
            lines.append(f"{way:6}{messages:>10,}{sent:>16,}{full:>16,}{full / max(sent, 1):>7.1f}x")
        refused = ", ".join(f"{count} {reason}" for reason, count in self.ledger.refused.items())
        return "\n".join([*lines, f"refused replies: {refused}"] if refused else lines)

    def configure_train(self, *arguments: Any, **keywords: Any) -> Iterable[Message]:
        raise self._inside()

    def aggregate_train(self, *arguments: Any, **keywords: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        raise self._inside()

    def configure_evaluate(self, *arguments: Any, **keywords: Any) -> Iterable[Message]:
        raise self._inside()

    def aggregate_evaluate(self, *arguments: Any, **keywords: Any) -> MetricRecord | None:
        raise self._inside()

    def summary(self) -> None:
        """Log the settings of the strategy."""
        self.strategy.summary()

    def _inside(self) -> ConfigError:
        return ConfigError("Compressed is inside another strategy: write Compressed(Other(FedAvg())) instead")


class CompressedGrid(Grid):
    """A grid whose messages are compressed on the way, and whose replies are decoded."""

    def __init__(self, grid: Grid, links: _Links) -> None:
        self._grid, self._links = grid, links

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(self._links.send(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._links.receive(reply) for reply in self._grid.pull_messages(message_ids)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = self._grid.send_and_receive(self._links.send(messages), timeout=timeout)
        return [self._links.receive(reply) for reply in replies]

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def create_message(self, *arguments: Any, **keywords: Any) -> Message:
        return self._grid.create_message(*arguments, **keywords)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run


@dataclass(frozen=True)
class _Nodes:
    """What the server knows of the nodes that receive records of one table."""

    table: ArrayTable
    links: ClientLinkState
    sequences: dict[int, int] = field(default_factory=dict)
    """The number of each node's last reply that was used."""

    def version(self, node: int) -> ClientModelVersion:
        """The model that a node has."""
        known = node in self.links
        return ClientModelVersion(0 if known else LOST, section(self.links.get(node), "downlink"))


@dataclass(frozen=True)
class _Sent:
    """A message that waits for its reply."""

    number: int
    message: Message
    nodes: _Nodes
    broadcast: BroadcastModel
    body: Body


class _Links:
    """Compresses messages and decodes replies, for all nodes."""

    def __init__(self, uplink: str, downlink: str, record: str, exact: tuple[str, ...]) -> None:
        self.uplink, self.record, self.exact = uplink, record, exact
        self.mirrored = downlink != "dense"
        self.downlink: Downlink = mirrored_of(downlink) if self.mirrored else DenseDownlink()
        self.run = uuid4().hex
        self.randomness = Randomness(int(self.run, 16))
        self.ledger, self.uncompressed = Ledger(), Ledger()
        self._tables: dict[str, _Nodes] = {}
        self._waiting: dict[int, _Sent] = {}
        """By node. A node has one message at a time: a reply to an earlier one is refused."""
        self._number = 0

    def send(self, messages: Iterable[Message]) -> list[Message]:
        """Compress each message that has the record."""
        broadcasts: dict[int, tuple[_Nodes, BroadcastModel]] = {}
        messages = list(messages)
        # Most strategies send one content to all nodes, so it is encoded once. `contents` keeps the ids from being reused.
        contents = [message.content for message in messages]
        for message, content in zip(messages, contents, strict=True):
            _count(self.uncompressed, "down", content)
            if id(content) not in broadcasts and (prepared := self._prepare(content)):
                broadcasts[id(content)] = prepared
            if id(content) in broadcasts:
                message.content = self._compress(message, *broadcasts[id(content)])
            _count(self.ledger, "down", message.content)
        return messages

    def _prepare(self, content: RecordDict) -> tuple[_Nodes, BroadcastModel] | None:
        arrays = content.array_records.get(self.record)
        table = ArrayTable(()) if arrays is None else ArrayTable.of(arrays, self.exact)
        if arrays is None or not table.layout.size:
            return None
        nodes = self._tables.setdefault(table.key, _Nodes(table, ClientLinkState(table.layout)))
        model = table.vector(arrays)
        return nodes, BroadcastModel(model, self.downlink.init(model), table.layout)

    def _compress(self, message: Message, nodes: _Nodes, broadcast: BroadcastModel) -> RecordDict:
        node, table = message.metadata.dst_node_id, nodes.table
        self._number += 1
        version = nodes.version(node)
        context = RoundContext(table.layout, self.randomness, self._number, node)
        body = self.downlink.send(broadcast, version, context)
        self._waiting[node] = _Sent(self._number, message, nodes, broadcast, body)
        fingerprint, sequence = table.layout.fingerprint, nodes.sequences.get(node, 0)
        packet = Packet(body, CoreStream.MODEL, fingerprint, sequence, self._number)
        values: dict[str, Any] = {
            "run": self.run,
            "key": table.key,
            "record": self.record,
            "uplink": self.uplink,
            "mirrored": int(self.mirrored),
            "packets": [packet.to_bytes()],
        }
        if version.version == LOST:
            values["table"] = table.text
        exact = table.exact(message.content.array_records[self.record])
        return RecordDict({**replaced(message.content, self.record, exact), **wire.content(**values)})

    def receive(self, reply: Message) -> Message:
        """Decode a reply. One that is not valid becomes an error, which strategies count as a failure of the node."""
        node = reply.metadata.src_node_id
        sent = self._waiting.pop(node, None)
        if reply.has_error():
            if sent is not None and not sent.nodes.sequences:
                LOG.warning("laconic: no node has replied yet: do the ClientApps have compress_mod among their mods?")
            return reply
        _count(self.ledger, "up", reply.content)
        if sent is not None:
            try:
                reply.content = self._decode(node, reply, sent)
            except PacketError as error:
                LOG.warning("laconic: refused a reply of node %d: %s", node, error)
                self.ledger.refuse(error.reason, node)
                return Message(Error(REJECTED, wire.sanitized(error)), reply_to=sent.message)
        _count(self.uncompressed, "up", reply.content)
        return reply

    def _decode(self, node: int, reply: Message, sent: _Sent) -> RecordDict:
        nodes, layout = sent.nodes, sent.nodes.table.layout
        record = wire.read_record(reply)
        if "lost" in record:
            nodes.links.forget(node)
            raise PacketError("lost", "the node has lost its state; it receives the whole model next")
        packet = Packet.parse(wire.packets_of(record)[0], layout)
        known = nodes.sequences.get(node, 0)
        if packet.round != sent.number:
            raise PacketError("stale", f"a reply to message {packet.round}, not to {sent.number}")
        content = RecordDict({key: value for key, value in reply.content.items() if key != wire.RECORD})
        if packet.stream == CoreStream.MODEL:
            if packet.sequence <= known:
                raise PacketError("sequence", f"{packet.sequence} is not above {known}")
            content = self._restored(content, wire.text(record, "record"), packet.body, sent)
        elif packet.stream != CoreStream.CONFIRM or packet.sequence < known:
            raise PacketError("stream", f"{packet.stream} with number {packet.sequence}")
        nodes.sequences[node] = packet.sequence
        if self.mirrored:
            peer = self.downlink.confirmed(sent.broadcast, nodes.version(node), sent.body)
            nodes.links[node] = joined({"downlink": peer})
        return content

    def _restored(self, content: RecordDict, name: str, body: Body, sent: _Sent) -> RecordDict:
        """The reply as the app has made it: the strategy's model plus the decoded difference."""
        if name not in content.array_records:
            raise PacketError("record", f"no ArrayRecord '{name}'")
        model: Tensor = sent.broadcast.model.clone()
        decode_body(body, sent.nodes.table.layout).add_to(model, 1.0)
        return replaced(content, name, sent.nodes.table.record(model, content.array_records[name]))


def _count(ledger: Ledger, way: Direction, content: RecordDict) -> None:
    """Count the bytes of a message by what they are. Flower's own envelope, some hundred bytes, is not included."""
    other = 0
    for name, record in content.items():
        other += len(name)
        if isinstance(record, ArrayRecord):
            for key, array in record.items():
                ledger.count(way, "arrays", len(key) + len(array.data), 0)
            continue
        for key, value in record.items():
            other += len(key)
            if name == wire.RECORD and key == "packets":
                ledger.count(way, "packets", _size(value), 0)
            else:
                other += _size(value)
    ledger.count(way, "other", other, 0)


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else 8
