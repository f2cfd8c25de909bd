"""The client's side of compressed messages in anybody's Flower app: a mod for its ClientApp.

A message is a transaction, as in Laconic's own rounds (laconic.federation.store). The node stores its new error memory as
pending before the reply leaves. The next message says which reply the server has used: that state is committed, all others
are dropped. So a reply that is lost on the way loses nothing but its own work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Literal

import torch
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LostState
from laconic.algorithms.downlinks.dense import DenseDownlink
from laconic.algorithms.downlinks.mirrored import Mirrored
from laconic.algorithms.uplinks.compressed import Compressed
from laconic.compression import Codec, GroupedCompressor
from laconic.compression.packet import Body, CoreStream, Packet
from laconic.core.errors import LaconicError, PacketError
from laconic.core.part import State
from laconic.core.randomness import Randomness
from laconic.core.state_dict import joined, section
from laconic.federation.store import Question
from laconic.flower import wire
from laconic.flower.arrays import ArrayTable
from laconic.flower.node_store import KEEP_DAYS, NodeFile, node_file

LOG = getLogger("flwr.laconic")
REJECTED = 6
"""Flower's error code of a mod that cannot handle a message."""
_MASK = 2**63 - 1
"""SQLite's integers have a sign, Flower's node ids have none."""


def compress_mod(
    compressor: str | None = None, memory: bool | Literal["auto"] = "auto", state: str | Path | None = None
) -> Mod:
    """Build a mod that compresses a ClientApp's replies: `ClientApp(mods=[compress_mod("top_k:1/64")])`.

    The server needs `Compressed` around its strategy. Messages of other strategies pass unchanged.

    Args:
        compressor: The compressor of this node's updates. Default: the `uplink` of the server's `Compressed`.
        memory: Error feedback: add the compression error to the next update. `auto`: on if the compressor is biased,
            unless it only rounds entries.
        state: The folder of the node's file. `state = "…"` in the node's config takes precedence.
    """
    own = None if compressor is None else uplink_of(compressor, memory)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.has_content() or wire.RECORD not in message.content.config_records:
            return call_next(message, context)
        try:
            return _answer(message, context, call_next, _Link(message, context, node_file(context, state), own))
        except LaconicError as error:
            LOG.error("laconic: %s", error)
            return Message(Error(REJECTED, str(error)), reply_to=message)

    return mod


def _answer(message: Message, context: Context, call_next: ClientAppCallable, link: _Link) -> Message:
    """Decode the model, call the app, and encode what it replies."""
    try:
        opened = link.receive(message.content)
    except LostState:
        return Message(wire.content(lost=True), reply_to=message)
    message.content = replaced(message.content, link.name, opened.arrays)
    reply = call_next(message, context)
    if reply.has_content():
        reply.content = link.send(reply.content, opened)
    return reply


@dataclass(frozen=True)
class _Opened:
    """A decoded message."""

    table: ArrayTable
    packet: Packet
    arrays: ArrayRecord
    """The record that the app sees."""
    uplink_state: State
    downlink_state: State
    """The new state, after this message."""


class _Link:
    """The node's side of one exchange: the packet of a message, the node's state, and the packet of the reply."""

    def __init__(self, message: Message, context: Context, file: NodeFile, own: Compressed | None) -> None:
        self.record = wire.read_record(message)
        self.name = wire.text(self.record, "record")
        self.mirrored = wire.count(self.record, "mirrored", highest=1) == 1
        self.client = context.node_id & _MASK
        run = wire.text(self.record, "run")
        if not re.fullmatch("[0-9a-f]{1,32}", run):
            raise PacketError("record", "run is not a hexadecimal number")
        self.randomness = Randomness(int(run, 16))
        self.run = f"{run}/{wire.text(self.record, 'key')}"
        self.file, self.store = file, file.store(self.run)
        self.keep_days = float(context.node_config.get("keep-days", KEEP_DAYS))
        self.uplink = own or uplink_of(wire.text(self.record, "uplink"))

    def receive(self, content: RecordDict) -> _Opened:
        """Decode the message; `LostState` if that needs a state that the node has lost."""
        if self.name not in content.array_records:
            raise PacketError("record", f"no ArrayRecord '{self.name}'")
        table = self._table()
        packet = Packet.parse(wire.packets_of(self.record)[0], table.layout)
        settled = self.store.settle(self.client, Question(0, packet.round, 0, packet.sequence))
        state = section(settled.state or {}, "downlink")
        downlink = mirrored_of("dense") if self.mirrored else DenseDownlink()
        lost = settled.lost or "model" not in state
        nothing = torch.zeros(0, dtype=table.layout.dtype)
        model, new_state = downlink.receive(packet.body, state, nothing, table.layout, lost)
        arrays = table.record(model, content.array_records[self.name])
        return _Opened(table, packet, arrays, section(settled.state or {}, "uplink"), new_state)

    def _table(self) -> ArrayTable:
        """The table of the arrays. It comes with the whole model, and the node keeps it for differences."""
        if "table" not in self.record:
            text = self.file.value(self.run, "table")
            if text is None:
                raise LostState
            return ArrayTable.parse(text)
        table = ArrayTable.parse(wire.text(self.record, "table"))
        size = table.layout.size * table.layout.dtype.itemsize
        if len(wire.packets_of(self.record)[0]) < size:
            # Without the bytes of the model, a table could claim any amount of memory.
            raise PacketError("record", f"a table of arrays without the {size} bytes of the model")
        if self.file.value(self.run, "table") != table.text:
            self.file.put_value(self.run, "table", table.text, self.keep_days)
        return table

    def send(self, content: RecordDict, opened: _Opened) -> RecordDict:
        """The content of the reply, with the app's record as a compressed difference from the received one.

        A record with other arrays than the received one travels as it is, if the whole model was received. So do all other
        records.
        """
        table, packet, uplink_state = opened.table, opened.packet, opened.uplink_state
        names = [*content.array_records]
        name = names[0] if len(names) == 1 else self.name
        arrays = content.array_records.get(name)
        body, stream = Body(Codec.SKIP), CoreStream.CONFIRM
        if arrays is not None and table.fits(arrays):
            update = table.vector(arrays) - table.vector(opened.arrays)
            context = RoundContext(table.layout, self.randomness, packet.round, self.client)
            encoded = self.uplink.encode(update, uplink_state, context)
            body, stream, uplink_state = encoded.body, CoreStream.MODEL, encoded.state
            content = replaced(content, name, table.exact(arrays))
        elif arrays is not None and self.mirrored:
            # The strategy would take them for changes of its own model, but they are changes of this node's copy.
            raise PacketError("record", "the reply's arrays are not those of the message; this needs downlink='dense'")
        sequence = packet.sequence
        if self.mirrored or stream == CoreStream.MODEL:
            parts = {"uplink": uplink_state, "downlink": opened.downlink_state}
            sequence = self.store.propose(self.client, sequence, joined(parts))
        answer = Packet(body, stream, table.layout.fingerprint, sequence, packet.round)
        return RecordDict({**content, **wire.content(record=name, packets=[answer.to_bytes()])})


def uplink_of(text: str, memory: bool | Literal["auto"] = "auto") -> Compressed:
    """The uplink of a compressor's text form, such as `sign@layer`."""
    parsed = GroupedCompressor.parse(text)
    return Compressed(parsed.compressor, granularity=parsed.granularity, memory=memory)


def mirrored_of(text: str) -> Mirrored:
    """The downlink of a compressor's text form."""
    parsed = GroupedCompressor.parse(text)
    return Mirrored(parsed.compressor, granularity=parsed.granularity)


def replaced(content: RecordDict, name: str, arrays: ArrayRecord) -> RecordDict:
    """A content with another ArrayRecord under `name`, without Laconic's record. The order of the records stays."""
    return RecordDict({key: arrays if key == name else value for key, value in content.items() if key != wire.RECORD})
