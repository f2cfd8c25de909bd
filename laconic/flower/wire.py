"""Converts Laconic's messages to Flower's: packets as bytes, and a few numbers next to them.

Flower frames, encrypts and delivers messages. This module checks the types of received values; the server checks the rest.
"""

from __future__ import annotations

import math
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from laconic.core.errors import PacketError
from laconic.federation.blocklist import UNSTABLE
from laconic.federation.messages import Instruction, Reply

RECORD = "laconic"
"""The name of the record in a Flower message that has all of Laconic's values."""
UNKNOWN_RUN = "plan"
"""The reason for which a node refuses an instruction if it has not joined the run, or has lost its file."""
MOST_EXAMPLES = 2**32
"""The largest number of examples that a node may report."""
LARGEST_LOSS = 1e9
"""A loss beyond this is recorded as unknown."""


def content(**values: Any) -> RecordDict:
    """The content of a Flower message."""
    return RecordDict({RECORD: ConfigRecord(values)})


def read_record(message: Message) -> ConfigRecord:
    """Laconic's record in a message; raises `PacketError` if there is none."""
    if not message.has_content() or RECORD not in message.content.config_records:
        raise PacketError("record", "not a message of Laconic's")
    return message.content.config_records[RECORD]


def read_answer(message: Message | PacketError) -> ConfigRecord:
    """Laconic's record in a node's answer; raises `PacketError` if the node refused or failed, or if there is none."""
    if isinstance(message, PacketError):
        raise message
    record = read_record(message)
    if "refused" in record:
        raise _refusal_error(record)
    return record


def refusal(reason: str, detail: str) -> RecordDict:
    """A node's answer that it refuses a message, with the reason."""
    return content(refused=reason, detail=detail)


def _refusal_error(record: ConfigRecord) -> PacketError:
    """A node's refusal as an error. A node chooses one of three reasons; any other is a failure of the node.

    The three: its instruction is old, it has lost the plan, or its update is not finite, which compressors notice.
    """
    reasons = {"stale": "stale", UNKNOWN_RUN: UNKNOWN_RUN, "not finite": UNSTABLE}
    reason, detail = record.get("refused"), sanitized(record.get("detail"))
    return PacketError(reasons.get(reason, "failed") if isinstance(reason, str) else "failed", detail)


def sanitized(text: object, limit: int = 300) -> str:
    """Text from a node, made safe for the log: one short line of printable characters."""
    line = " ".join(str(text or "")[: 4 * limit].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def pack_instruction(instruction: Instruction, run: str) -> RecordDict:
    """An instruction as the content of a message."""
    return content(
        run=run,
        round=instruction.round,
        client=instruction.client,
        invited=instruction.invited,
        exchange=instruction.exchange,
        phase=instruction.phase,
        continues=-1 if instruction.continues is None else instruction.continues,
        packets=[*map(bytes, instruction.packets)],
    )


def unpack_instruction(record: ConfigRecord) -> Instruction:
    """The inverse of `pack_instruction`."""
    numbers: dict[str, Any] = {name: count(record, name) for name in ("round", "client", "invited", "exchange")}
    continues = count(record, "continues", lowest=-1)
    phase = text(record, "phase")
    return Instruction(
        **numbers, phase=phase, continues=None if continues < 0 else continues, packets=packets_of(record)
    )


def pack_reply(reply: Reply) -> RecordDict:
    """A reply as the content of a message."""
    return content(
        round=reply.round,
        packets=[*map(bytes, reply.packets)],
        examples=reply.examples,
        gradients=reply.gradients,
        samples=reply.samples,
        loss=reply.loss,
        **counted_share(reply.counted),
    )


def counted_share(value: float) -> dict[str, float]:
    """The entry of a record for the share of targets that count, which is left out if all of them do."""
    return {} if value == 1.0 else {"counted": value}


def counted_of(record: ConfigRecord) -> float:
    """The inverse of `counted_share`."""
    value = record.get("counted", 1.0)
    if not isinstance(value, float) or not 0.0 <= value <= 1.0:
        raise PacketError("record", "counted is not a number from 0 to 1")
    return value


def unpack_reply(record: ConfigRecord, client: int) -> Reply:
    """The inverse of `pack_reply`. The client number is that of the sender, not one that the message contains."""
    loss = record.get("loss")
    if not isinstance(loss, float):
        raise PacketError("record", "loss is not a number")
    return Reply(
        round=count(record, "round"),
        client=client,
        packets=packets_of(record),
        examples=count(record, "examples", highest=MOST_EXAMPLES),
        gradients=count(record, "gradients"),
        samples=count(record, "samples"),
        loss=loss if abs(loss) <= LARGEST_LOSS else math.nan,
        counted=counted_of(record),
    )


def count(record: ConfigRecord, name: str, lowest: int = 0, highest: int = 2**53) -> int:
    """An integer of a record."""
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise PacketError("record", f"{name} is not a number from {lowest} to {highest}")
    return value


def text(record: ConfigRecord, name: str, longest: float = math.inf) -> str:
    """A string of a record."""
    value = record.get(name)
    if not isinstance(value, str):
        raise PacketError("record", f"{name} is not a string")
    if len(value) > longest:
        raise PacketError("record", f"{name} has {len(value)} characters; allowed: {longest:g}")
    return value


def packets_of(record: ConfigRecord) -> tuple[bytes, ...]:
    """The packets of a record."""
    value = record.get("packets")
    packets = tuple(packet for packet in value if isinstance(packet, bytes)) if isinstance(value, list) else ()
    if not packets:
        raise PacketError("record", "no packets")
    return packets
