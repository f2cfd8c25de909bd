"""Measures the constants that the papers assume of a compressor, during training.

u_i is the update of client i, e_i its error memory, x_i = u_i + e_i the compressor's input, and y_i the decoded update.
Means are over the round's participants:

    q_C   = ||C(mean x) - mean x|| / ||mean x||          Fed-EF (Li and Li 2023), Definition 3.1
    q_A   = ||mean y - mean x|| / ||mean x||             Fed-EF, Assumption 4.3
    gamma = ||C(mean x) - mean y|| / ||mean u||          FedCAMS (Wang et al. 2022), Assumption 4.17
    lambda = ||mean of y_i - r_i over M|| / ||mean u||   FedBNLACA's paper, Assumption C.1, (C.15)

M are the clients whose update is skipped or accelerated, and r_i is the last update that client i sent. Without such clients
there is no lambda.

Only a simulation can measure them: a real server never sees x_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.compression import GroupedCompressor, decode_body
from laconic.core.randomness import Draw
from laconic.federation.messages import Probe


class Diagnostics:
    """Measures a round from the probes of the aggregated updates, in client order."""

    def __init__(self, compressor: GroupedCompressor | None) -> None:
        self.compressor = compressor

    def measure(self, probes: Sequence[Probe], context: RoundContext) -> dict[str, float]:
        """The round's measurements, without those that are undefined for this algorithm."""
        measured: dict[str, float] = {}
        memories = [float(torch.linalg.vector_norm(probe.memory)) for probe in probes if probe.memory is not None]
        if memories:
            measured["memory_norm"] = sum(memories) / len(memories)
        changes = [probe.change for probe in probes if probe.change is not None]
        if changes:
            measured |= _ratio("lambda", _mean(changes), _mean([probe.update for probe in probes]))
        if not probes or self.compressor is None:
            return measured
        update, target, arrived = (
            _mean([getattr(probe, name) for probe in probes]) for name in ("update", "target", "arrived")
        )
        body = self.compressor.encode(target, context.layout, context.generator(Draw.DIAGNOSTICS), context.invited)
        direct = decode_body(body, context.layout).dense()
        for name, numerator, denominator in (
            ("q_c", direct - target, target),
            ("q_a", arrived - target, target),
            ("gamma", direct - arrived, update),
        ):
            measured |= _ratio(name, numerator, denominator)
        return measured


def _ratio(name: str, numerator: Tensor, denominator: Tensor) -> dict[str, float]:
    """The ratio of the norms; nothing if the denominator is 0."""
    norm = float(torch.linalg.vector_norm(denominator))
    return {name: float(torch.linalg.vector_norm(numerator)) / norm} if norm > 0 else {}


def _mean(vectors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, vectors) / len(vectors)
