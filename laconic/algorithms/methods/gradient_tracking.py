"""FedGATE and FedCOMGATE: clients correct their drift by what they see of each other's updates.

[G] is Haddadpour, Kamani, Mokhtari and Mahdavi, AISTATS 2021, Algorithms 3 and 4, with update = end - start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import LocalMethod, Vectors
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import TRAIN, Exchange
from laconic.algorithms.methods.received import Received
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import Payload
from laconic.compression.packet import Stream
from laconic.core.errors import ConfigError
from laconic.core.part import State, part

TAKE_IN = "take in the mean"


@part("method", "gradient_tracking")
class GradientTracking(LocalMethod):
    """K times W -= a (g(W, batch) - T_i); then T_i += beta (q - q_i) / (a K).

    q_i is the client's update as the server has it, q their mean, which comes back in a second exchange. Until a client
    has it, its tracker holds the half with q_i, and the server owes it the other: so the trackers and what is owed sum to
    0 at any participation and after any loss. beta (`tracker_rate`) is 1 unless the uplink has a memory: then q_i holds
    old mass, and beta is k/d for compressors that keep k entries exactly, such as top_k, and 0.1 for others.
    """

    tracker_rate: Annotated[float, Field(ge=0)] | None = None
    """beta; when not given it follows from the uplink."""
    memory: Literal["standard", "global"] = "standard"
    """`global` takes the mean that came back out of the error memory, as the authors' code does; it need not converge."""
    equal_clients: ClassVar[bool] = True
    sends_mean: ClassVar[bool] = True
    exact_sums: ClassVar[str | None] = "its trackers sum to zero only if the mean is exact"

    def fitted(self, uplink: Uplink) -> Self:
        """With the tracker rate that suits the uplink."""
        if self.memory == "global" and not (uplink.lossless or uplink.has_memory):
            raise ConfigError(
                f"method.memory = 'global': the uplink '{uplink.name}' has no memory that the mean could be taken out of; "
                "say --memory, or uplink = error_feedback"
            )
        return self if self.tracker_rate is not None else self.replace(tracker_rate=_tracker_rate(uplink))

    def answer(self, cohort: Cohort) -> Vectors:
        """The updates; nothing when the question was only to take in the mean."""
        if cohort.phase == TAKE_IN:
            return {}
        rate = self.rate(cohort.round)
        trackers = cohort.stacked("tracker")
        models = cohort.models.clone()
        for step in self.steps(cohort):
            models.sub_(self.gradients(cohort, models, step).sub_(trackers), alpha=rate)
        updates = models.sub_(cohort.models)
        if self.memory == "global":
            updates.add_(cohort.stacked("correction"))
        return {Stream.MODEL: updates}

    def remember(self, cohort: Cohort, row: int, used: Mapping[Stream, Payload]) -> State:
        """T_i without its share of q_i."""
        state = dict(cohort.states[row])
        if cohort.phase == TAKE_IN:
            return state
        assert self.tracker_rate is not None
        walked = self.rate(cohort.round) * self.step_count(cohort.sizes[row])
        # At the end of a schedule nobody walks: what still comes out of memories says nothing of the gradients.
        unit = self.tracker_rate / walked if walked else 0.0
        tracker = state["tracker"].clone() if "tracker" in state else cohort.zeros()
        used[Stream.MODEL].add_to(tracker, -unit)
        state |= {"tracker": tracker, "unit": torch.tensor(unit, dtype=torch.float64)}
        if self.memory == "global":
            correction = cohort.zeros()
            used[Stream.MODEL].add_to(correction, 1.0)
            state["correction"] = correction
        return state

    def receive(self, state: State, received: Vectors) -> State:
        """The other half of the tracker's step."""
        if Stream.MEAN not in received:
            return state
        mean = received[Stream.MEAN]
        state = state | {"tracker": state["tracker"].add(mean, alpha=float(state["unit"]))}
        if "correction" in state:
            state["correction"] = state["correction"] - mean
        return state

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        """Train; then hear the mean."""
        return (Exchange(), Exchange(TAKE_IN, who="answered", model=False))

    def streams(self, phase: str) -> tuple[Stream, ...]:
        """The update, or the word that the mean has come."""
        return (Stream.CONFIRM,) if phase == TAKE_IN else (Stream.MODEL,)

    def owes(self, exchange: Exchange, received: Received) -> Vectors:
        """q, to everybody who is in it."""
        mean = received.mean(Stream.MODEL)
        return {Stream.MEAN: mean} if exchange.phase == TRAIN and mean is not None else {}

    def nominal_gradients(self, size: int, phase: str) -> int:
        """K b'."""
        return 0 if phase == TAKE_IN else super().nominal_gradients(size, phase)


def _tracker_rate(uplink: Uplink) -> float:
    compressor = None if uplink.compression is None else uplink.compression.compressor
    if compressor is None or compressor.lossless or not uplink.has_memory:
        return 1.0
    return compressor.kept_fraction if compressor.exact and compressor.kept_fraction is not None else 0.1
