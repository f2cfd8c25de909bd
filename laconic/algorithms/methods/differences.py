"""State differences: vectors that both sides keep, moved on both sides by what is decoded of their change.

The client sends C(target - state), without memory (state and memory would count the same thing twice), and both sides add
what was decoded: so the server's mean is the mean of the clients' states for any contractive C.
"""

from __future__ import annotations

from laconic.algorithms.methods.base import Method
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import GroupedCompressor, Payload
from laconic.core.errors import ConfigError
from laconic.core.part import State


def difference_compressor(uplink: Uplink) -> GroupedCompressor | None:
    """What compresses the update, in its contractive form; None if the update is not compressed."""
    return None if uplink.compression is None else uplink.compression.scaled_for_feedback()


def unbiased_compressor(method: Method, uplink: Uplink) -> GroupedCompressor | None:
    """What compresses the update, as it is, for a method that adds up means; a biased one is refused."""
    compression = uplink.compression
    if compression is not None and compression.compressor.biased:
        raise ConfigError(
            f"uplink.compressor = {compression.compressor}: {method.name} needs an unbiased compressor, as qsgd:4, "
            "uniform:8 or random_k:1/16, since nothing makes up for what a biased one leaves out; ef21 takes that"
        )
    return compression


def add_difference(cohort: Cohort, row: int, name: str, arrived: Payload, rate: float = 1.0) -> State:
    """One client's state with what arrived, or a part of it, added to it."""
    before = cohort.states[row]
    moved = before[name].clone() if name in before else cohort.zeros()
    arrived.add_to(moved, rate)
    return before | {name: moved}
