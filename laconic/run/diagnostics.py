"""What the papers assume of a compressor, measured while training.

With x_i = u_i + m_i what client i meant to send, y_i what arrived, and means over the round's clients:

    q_C   = ||C(mean x) - mean x|| / ||mean x||          Fed-EF (Li and Li 2023), Definition 3.1
    q_A   = ||mean y - mean x|| / ||mean x||             Fed-EF, Assumption 4.3
    gamma = ||C(mean x) - mean y|| / ||mean u||          FedCAMS (Wang et al. 2022), Assumption 4.17

Only a simulation can know them: a real server never sees x_i.
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
    """Measures a round from the probes of the updates that were used, in client order."""

    def __init__(self, compressor: GroupedCompressor | None) -> None:
        self.compressor = compressor

    def measure(self, probes: Sequence[Probe], context: RoundContext) -> dict[str, float]:
        """The round's numbers; those that mean nothing for this algorithm are left out."""
        found: dict[str, float] = {}
        memories = [float(torch.linalg.vector_norm(probe.memory)) for probe in probes if probe.memory is not None]
        if memories:
            found["memory_norm"] = sum(memories) / len(memories)
        if not probes or self.compressor is None:
            return found
        update, target, arrived = (
            _mean([getattr(probe, name) for probe in probes]) for name in ("update", "target", "arrived")
        )
        body = self.compressor.encode(target, context.layout, context.generator(Draw.DIAGNOSTICS))
        direct = decode_body(body, context.layout).dense()
        for name, above, below in (
            ("q_c", direct - target, target),
            ("q_a", arrived - target, target),
            ("gamma", direct - arrived, update),
        ):
            size = float(torch.linalg.vector_norm(below))
            if size > 0:
                found[name] = float(torch.linalg.vector_norm(above)) / size
        return found


def _mean(vectors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, vectors) / len(vectors)
