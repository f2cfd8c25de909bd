"""SCAFFOLD: each client knows by how much its own gradient differs from everybody's.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, ICML 2020, Algorithm 1, option II.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import LocalMethod, Vectors
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.differences import add_difference, difference_compressor
from laconic.algorithms.methods.exchange import TRAIN, Exchange
from laconic.algorithms.methods.received import Received
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor, GroupedCompressor, Payload
from laconic.compression.packet import Stream
from laconic.core.part import State, part

WARM_UP = "first gradient"


@part("method", "control_variates")
class ControlVariates(LocalMethod):
    """K times W -= a (g(W, batch) - c_i + c); c_i_new = c_i - c - u_i / (K a); the server: c += sum(c_i_new - c_i) / N.

    c_i_new - c_i is a state difference: what the server decodes of it is added on both sides, so c stays the mean of all
    c_i whatever compresses it.
    """

    warm_start: bool = False
    """c_i starts as the client's full gradient at w_0, not at 0."""
    mean_compressor: AnyGroupedCompressor | None = None
    """How c travels to clients; dense when not given. It has no memory: use an unbiased one, as `qsgd:8@layer`."""
    equal_clients: ClassVar[bool] = True
    exact_sums: ClassVar[str | None] = "what clients change in their own state must be added as it is, undefended"

    def answer(self, cohort: Cohort) -> Vectors:
        """u_i, and the change of c_i."""
        if cohort.phase == WARM_UP:
            fresh = cohort.large_gradients([cohort.models], None, self.clip_norm)[0]
            return {Stream.CONTROL: fresh - cohort.stacked("control")}
        rate = self.rate(cohort.round)
        mean = cohort.received[Stream.CONTROL]
        correction = mean - cohort.stacked("control")
        models = cohort.models.clone()
        for step in self.steps(cohort):
            models.sub_(self.gradients(cohort, models, step).add_(correction), alpha=rate)
        updates = models.sub_(cohort.models)
        if rate == 0:
            # At the end of a schedule nobody walks, and steps of no length say nothing of the gradients on the way.
            return {Stream.MODEL: updates, Stream.CONTROL: torch.zeros_like(updates)}
        return {Stream.MODEL: updates, Stream.CONTROL: -mean - updates / (self.step_count(cohort.sizes[0]) * rate)}

    def remember(self, cohort: Cohort, row: int, used: Mapping[Stream, Payload]) -> State:
        """c_i, moved by what arrived."""
        return add_difference(cohort, row, "control", used[Stream.CONTROL])

    def compressor(self, phase: str, uplink: Uplink) -> GroupedCompressor | None:
        """As the update is compressed, without memory; a warm start is exact."""
        return None if phase == WARM_UP else difference_compressor(uplink)

    def init(self, model: Tensor) -> State:
        """c_0 = 0."""
        return {"control": torch.zeros_like(model)}

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        """One a round; before the first, if asked, everybody's gradient."""
        opening = (Exchange(WARM_UP, who="everyone", counted=False),) if self.warm_start and not context.round else ()
        return (*opening, Exchange())

    def send(self, phase: str, state: State) -> Vectors:
        """c."""
        return {Stream.CONTROL: state["control"]} if phase == TRAIN else {}

    def send_compressor(self, stream: Stream) -> GroupedCompressor | None:
        """As that was asked for."""
        return self.mean_compressor

    def streams(self, phase: str) -> tuple[Stream, ...]:
        """u_i and the change of c_i, or the latter alone."""
        return (Stream.MODEL, Stream.CONTROL) if phase == TRAIN else (Stream.CONTROL,)

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        """c += sum(c_i_new - c_i) / N."""
        return {"control": state["control"] + received.take(Stream.CONTROL) / context.population}
