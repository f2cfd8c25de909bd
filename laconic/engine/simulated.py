"""Engines whose clients are simulated: every reply is well formed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator

from laconic.federation.engine import Engine
from laconic.federation.messages import Instruction, Reply


class SimulatedEngine(Engine):
    """Base of the inline and Ray engines, and of the engines that add faults or a network to another engine."""

    @abstractmethod
    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """The replies, in the order of the instructions."""
