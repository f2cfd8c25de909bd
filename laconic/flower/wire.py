"""Laconic's messages inside Flower's: packets as they are, and the few numbers that travel beside them.

Flower frames, encrypts and delivers. What a node sends is checked here for its form, and by the server for its meaning.
"""

from __future__ import annotations

import math
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from laconic.core.errors import PacketError
from laconic.federation.messages import Instruction, Reply

RECORD = "laconic"
"""Under this name stands all that Laconic says in a Flower message."""
NOT_KNOWN = "plan"
"""A node refuses an instruction of a run that it was not told about: it is new, or has lost its file."""
_LARGEST = 2**53


def content(**values: Any) -> RecordDict:
    """A message's content."""
    return RecordDict({RECORD: ConfigRecord(values)})


def said(message: Message) -> ConfigRecord:
    """What a message says; one of another form is refused."""
    if not message.has_content() or RECORD not in message.content.config_records:
        raise PacketError("record", "not a message of Laconic's")
    return message.content.config_records[RECORD]


def refusal(reason: str, detail: str) -> RecordDict:
    """A node's answer that it cannot do what it was asked."""
    return content(refused=reason, detail=detail)


def refused(record: ConfigRecord) -> PacketError:
    """Such an answer, as the server's log has it."""
    return PacketError(shown(record.get("refused"), 40), shown(record.get("detail")))


def shown(said: object, most: int = 300) -> str:
    """What a node says, fit for a log: one line, and not a long one."""
    line = " ".join(str(said or "")[: 4 * most].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def pack_instruction(instruction: Instruction, run: str) -> RecordDict:
    """The instruction as a message's content."""
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
    """The reply as a message's content."""
    return content(
        round=reply.round,
        packets=[*map(bytes, reply.packets)],
        examples=reply.examples,
        gradients=reply.gradients,
        samples=reply.samples,
        loss=reply.loss,
    )


def unpack_reply(record: ConfigRecord, client: int) -> Reply:
    """The reply of the node that is `client`; a node speaks for no other."""
    if "refused" in record:
        raise refused(record)
    loss = record.get("loss")
    if not isinstance(loss, float):
        raise PacketError("record", "loss is not a number")
    return Reply(
        round=count(record, "round"),
        client=client,
        packets=packets_of(record),
        examples=count(record, "examples"),
        gradients=count(record, "gradients"),
        samples=count(record, "samples"),
        loss=loss if math.isfinite(loss) else math.nan,
    )


def count(record: ConfigRecord, name: str, lowest: int = 0) -> int:
    """A whole number in a record."""
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < _LARGEST:
        raise PacketError("record", f"{name} is not a number from {lowest} on")
    return value


def text(record: ConfigRecord, name: str) -> str:
    """A string in a record."""
    value = record.get(name)
    if not isinstance(value, str):
        raise PacketError("record", f"{name} is not a text")
    return value


def packets_of(record: ConfigRecord) -> tuple[bytes, ...]:
    """The packets in a record."""
    value = record.get("packets")
    packets = tuple(each for each in value if isinstance(each, bytes)) if isinstance(value, list) else ()
    if not packets:
        raise PacketError("record", "no packets")
    return packets
