"""What Flower adds to a message is small beside the packets in it, for models of a million parameters and more."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "flower_envelope.py"


@pytest.fixture(scope="module")
def measured() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flower_envelope", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("way", ["down", "up"])
@pytest.mark.parametrize(("compressor", "size"), [("dense", 4_000_000), ("sign", 125_000)])
def test_the_envelope_is_below_five_percent(measured: ModuleType, compressor: str, size: int, way: str) -> None:
    packets, around = measured.envelope(measured.example(1_000_000, compressor, way))
    assert size < packets < 1.001 * size
    assert 0 < around < 0.05 * packets
    # It does not grow with the model: it is names, and a few numbers.
    assert around < 1000


def test_what_is_serialized_can_be_read_again(measured: ModuleType) -> None:
    from flwr.app import Message
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto.message_pb2 import Message as Proto

    message = measured.example(1000, "sign", "up")
    sent = message_to_proto(message).SerializeToString()
    arrived = message_from_proto(Proto.FromString(sent))
    assert isinstance(arrived, Message)
    assert measured.envelope(arrived) == measured.envelope(message)
    # Flower's older, single form of a message has no more around its packets than the one of many objects.
    assert len(sent) <= measured.serialized(message) + 100
