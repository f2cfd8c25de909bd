"""What the papers assume of a compressor, measured while training.

With x_i = u_i + m_i what client i meant to send, y_i what arrived, and means over the round's clients:

    q_C   = ||C(mean x) - mean x|| / ||mean x||          Fed-EF (Li and Li 2023), Definition 3.1
    q_A   = ||mean y - mean x|| / ||mean x||             Fed-EF, Assumption 4.3
    gamma = ||C(mean x) - mean y|| / ||mean u||          FedCAMS (Wang et al. 2022), Assumption 4.17

Only a simulation can know them: a real server never sees x_i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.compression import GroupedCompressor, decode_body
from laconic.core.randomness import Draw
from laconic.federation.messages import Probe, Reply


class Diagnostics:
    """Looks at what the server folds in, in client order."""

    def __init__(self, compressor: GroupedCompressor | None) -> None:
        self.compressor = compressor
        self._clear()

    def _clear(self) -> None:
        self.sums: list[Tensor] = []
        self.memories: list[float] = []
        self.count = 0

    def observe(self, reply: Reply) -> None:
        """One reply that counts."""
        if reply.probe is not None:
            self._add(reply.probe)

    def _add(self, probe: Probe) -> None:
        parts = [probe.update, probe.target, probe.arrived]
        self.sums = [total + part for total, part in zip(self.sums, parts, strict=True)] if self.sums else parts
        self.count += 1
        if probe.memory is not None:
            self.memories.append(float(torch.linalg.vector_norm(probe.memory)))

    def measure(self, context: RoundContext) -> dict[str, float]:
        """The round's numbers, and a clean sheet for the next; what has no meaning for this algorithm is left out."""
        try:
            return self._measured(context)
        finally:
            self._clear()

    def _measured(self, context: RoundContext) -> dict[str, float]:
        found: dict[str, float] = {}
        if self.memories:
            found["memory_norm"] = sum(self.memories) / len(self.memories)
        if not self.count or self.compressor is None:
            return found
        update, target, arrived = (total / self.count for total in self.sums)
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
