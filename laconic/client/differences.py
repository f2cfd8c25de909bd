"""State differences: vectors that both sides keep, moved on both sides by what is decoded of their change.

The client sends C(target - state), without memory (state and memory would count the same thing twice), and both sides add
what was decoded: so the server's mean is the mean of the clients' states for any contractive C.
"""

from __future__ import annotations

from laconic.client.cohort import Cohort
from laconic.link.compressors import AnyCompressor, Payload
from laconic.link.uplink import Uplink
from laconic.parts import State


def difference_compressor(uplink: Uplink) -> AnyCompressor | None:
    """What compresses the update, in its contractive form; None if the update is not compressed."""
    compressor: AnyCompressor | None = uplink.parameters().get("compressor")
    return None if compressor is None else compressor.scaled_for_feedback()


def add_difference(cohort: Cohort, row: int, name: str, arrived: Payload, rate: float = 1.0) -> State:
    """One client's state with what arrived, or a part of it, added to it."""
    before = cohort.states[row]
    moved = before[name].clone() if name in before else cohort.zeros()
    arrived.add_to(moved, rate)
    return before | {name: moved}
