"""FedGATE, FedCOMGATE and Scaffnew: clients correct their drift with the difference between the mean update and their own.

[G] is Haddadpour, Kamani, Mokhtari and Mahdavi, AISTATS 2021, Algorithms 3 and 4, with update = end - start. [S] is
Scaffnew: Mishchenko, Malinovsky, Stich and Richtarik, "ProxSkip", ICML 2022, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import LocalMethod, method
from laconic.algorithms.methods.cohort import Cohort, Step
from laconic.algorithms.methods.exchange import MEAN, MODEL, TRAIN, Answer, Exchange, Phase
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import Payload
from laconic.core.errors import ConfigError
from laconic.core.part import State
from laconic.core.randomness import Draw

MEAN_ARRIVES = "take in the mean"


@method("gradient_tracking")
class GradientTracking(LocalMethod):
    """K times W -= a (g(W, batch) - T_i); then T_i += beta (q - q_i) / (a K).

    q_i is the client's update as the server decodes it; q is the mean of all q_i, which the server returns in a second
    exchange. beta (`tracker_rate`) is 1 for an uplink without memory. With memory q_i contains parts of old updates; beta is
    then k/d for compressors that keep k entries exactly, such as top_k, and 0.1 for others.

    On failure: a client subtracts its q_i term immediately and adds the q term when q arrives. The server resends q until
    the client confirms. So the trackers and the undelivered q terms sum to 0 for any participation. A client that loses
    its state restarts with T_i = 0.
    """

    tracker_rate: Annotated[float, Field(ge=0)] | None = None
    """beta; by default chosen for the uplink."""
    memory: Literal["standard", "global"] = "standard"
    """`global` subtracts the returned mean from the error memory, as the authors' code does; it may not converge."""
    random_steps: bool = False
    """The number of steps is drawn for each round, the same for all clients: geometric, with mean K [S]."""
    equal_clients: ClassVar[bool] = True
    sends_mean: ClassVar[bool] = True
    exact_sums: ClassVar[str | None] = "its trackers sum to zero only if the mean is exact"
    sensitivity = "a client that took part uses the mean to correct later updates, which noise would spoil"

    def resolve(self, uplink: Uplink) -> Self:
        if self.memory == "global" and not (uplink.lossless or uplink.has_memory):
            raise ConfigError(
                f"method.memory = 'global': the uplink '{uplink.name}' has no memory from which to subtract the mean; "
                "use --memory, or uplink = error_feedback"
            )
        return self if self.tracker_rate is not None else self.replace(tracker_rate=_tracker_rate(uplink))

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        return (*super().phases(uplink), Phase(MEAN_ARRIVES, _confirm, up=()))

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        return (Exchange(TRAIN), Exchange(MEAN_ARRIVES, who="answered", model=False))

    def steps(self, cohort: Cohort) -> Iterator[Step]:
        if not self.random_steps:
            return super().steps(cohort)
        generator = cohort.randomness.numpy(Draw.LOCAL_STEPS, cohort.round)
        drawn = int(generator.geometric(1 / self.step_count(cohort.sizes[0])))
        return self.replace(local_steps=drawn, random_steps=False).steps(cohort)

    def local(self, cohort: Cohort) -> Tensor:
        rate = self.rate(cohort.round)
        trackers = cohort.stacked("tracker")
        models = cohort.models.clone()
        for step in self.steps(cohort):
            models.sub_(self.gradients(cohort, models, step).sub_(trackers), alpha=rate)
        updates = models.sub_(cohort.models)
        return updates.add_(cohort.stacked("correction")) if self.memory == "global" else updates

    def remember(self, cohort: Cohort, row: int, decoded: Mapping[str, Payload]) -> State:
        """T_i -= beta q_i / (a K)."""
        state = dict(cohort.states[row])
        if MODEL not in decoded:
            return state
        assert self.tracker_rate is not None
        distance = self.rate(cohort.round) * self.step_count(cohort.sizes[row])
        # With a = 0, at the end of a schedule, updates contain no information about the gradients.
        unit = self.tracker_rate / distance if distance else 0.0
        tracker = state["tracker"].clone() if "tracker" in state else cohort.zeros()
        decoded[MODEL].add_to(tracker, -unit)
        state |= {"tracker": tracker, "unit": torch.tensor(unit, dtype=torch.float64)}
        if self.memory == "global":
            correction = cohort.zeros()
            decoded[MODEL].add_to(correction, 1.0)
            state["correction"] = correction
        return state

    def receive(self, state: State, received: Mapping[str, Tensor]) -> State:
        """T_i += beta q / (a K)."""
        if MEAN not in received:
            return state
        mean = received[MEAN]
        state = state | {"tracker": state["tracker"].add(mean, alpha=float(state["unit"]))}
        if "correction" in state:
            state["correction"] = state["correction"] - mean
        return state


def _confirm(cohort: Cohort) -> Answer:
    # `receive` has already used the mean.
    return Answer()


def _tracker_rate(uplink: Uplink) -> float:
    compressor = None if uplink.compression is None else uplink.compression.compressor
    if compressor is None or compressor.lossless or not uplink.has_memory:
        return 1.0
    return compressor.kept_fraction if compressor.exact and compressor.kept_fraction is not None else 0.1
