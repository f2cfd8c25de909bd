"""The size of Flower's envelope: a serialized message without Laconic's packets.

python benchmarks/flower_envelope.py [--parameters 1050010]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from flwr.app import Message, MessageType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from laconic.compression import GroupedCompressor, encode_dense
from laconic.compression.packet import CoreStream, Packet
from laconic.core.layout import Layout
from laconic.federation.messages import Instruction, Reply
from laconic.flower import wire


def serialized(message: Message) -> int:
    """Return the bytes that Flower sends for a message: its objects and the object tree."""
    objects = get_all_nested_objects(message).values()
    return sum(len(item.deflate()) for item in objects) + get_object_tree(message).ByteSize()


def example(parameters: int, compressor: str, way: str) -> Message:
    """An instruction or a reply with one packet, as a round of a model of that size has it."""
    # Flower sets these in every process that it starts. They are required to construct a message.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 2**62, 2**62, 2**62
    layout = Layout.of(torch.nn.Linear(parameters, 1, bias=False))
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(parameters).astype(np.float32))
    if compressor == "dense":
        body = encode_dense(vector)
    else:
        body = GroupedCompressor.parse(compressor).encode(vector, layout, np.random.default_rng(0))
    packets = (Packet(body, CoreStream.MODEL, layout.fingerprint, 7, 3).to_bytes(),)
    if way == "down":
        content = wire.pack_instruction(Instruction(3, 5, 10, 0, "train", None, packets), "0" * 32)
    else:
        content = wire.pack_reply(Reply(3, 5, packets, 1000, 320, 320, 2.3))
    message = Message(content, 2**62, MessageType.TRAIN, ttl=600.0, group_id="4")
    # The same length as an id of the SuperLink.
    message.metadata.__dict__["_message_id"] = message.metadata.__dict__["_reply_to_message_id"] = "0" * 64
    return message


def envelope(message: Message) -> tuple[int, int]:
    """The bytes of a message's packets, and those around them."""
    packets = sum(map(len, wire.packets_of(wire.read_record(message))))
    return packets, serialized(message) - packets


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parameters", type=int, default=1_050_010)
    options = parser.parse_args()
    for compressor in ("dense", "sign"):
        for way in ("down", "up"):
            packets, around = envelope(example(options.parameters, compressor, way))
            print(
                f"{compressor:6}{way:6}{packets:>10,} B of packets, {around:>6,} B around them ({around / packets:.3%})"
            )


if __name__ == "__main__":
    main()
