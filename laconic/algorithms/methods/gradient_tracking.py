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
from laconic.compression import AnyGroupedCompressor, GroupedCompressor, Payload
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.randomness import Draw

MEAN_ARRIVES = "take in the mean"


@method("gradient_tracking")
class GradientTracking(LocalMethod):
    """K times W -= a (g(W, batch) - T_i); then T_i += beta (q - q_i) / (a K).

    q_i is the client's update as the server decodes it; q is the mean of all q_i, which the server returns in a second
    exchange. By default, beta (`tracker_rate`) is 1 for an uplink without memory. For a sparse unbiased compressor, it
    is 1 / (1 + omega), which is k/d for random_k: beta = 1 would diverge, because the nonzero entries of q_i are much larger
    than those of the update. With memory, q_i contains parts of old updates; beta is then k/d for compressors that keep k
    of d entries exactly, such as top_k, and 0.1 for others.

    On failure: a client subtracts its q_i term immediately and adds the q term when q arrives. The server resends q until
    the client confirms. So the trackers and the undelivered q terms sum to 0 for any participation. A client that loses
    its state restarts with T_i = 0.
    """

    tracker_rate: Annotated[float, Field(ge=0)] | None = None
    """beta; by default chosen for the uplink."""
    memory: Literal["standard", "global", "printed"] = "standard"
    """The new error memory, from the update u and the old memory e: `standard` u + e - q_i; `global` u + e - q, as in the
    authors' code; `printed` u / N + e - q, as in equation (9) of [G]. The last two are not guaranteed to converge."""
    mean_compressor: AnyGroupedCompressor | None = None
    """Compresses the mean q on its way to clients, such as uniform:8@layer; exact by default. It must be unbiased, and
    updates must have no memory [G, B.2, after equation (9)]. The server then uses what clients decode, and the trackers sum
    to 0 on average only."""
    sparsifier: AnyGroupedCompressor | None = None
    """The compressor whose k/d or omega sets the default beta. `resolve` sets it to the uplink's."""
    random_steps: bool = False
    """The number of steps is drawn for each round, the same for all clients: geometric, with mean K [S]."""
    equal_clients: ClassVar[bool] = True
    sends_mean: ClassVar[bool] = True
    exact_sums: ClassVar[str | None] = "its trackers sum to zero only if the mean is exact"
    sensitivity = "a client that took part uses the mean to correct later updates, which noise would spoil"

    def resolve(self, uplink: Uplink) -> Self:
        if self.memory != "standard" and not (uplink.lossless or uplink.has_memory):
            raise ConfigError(
                f"method.memory = '{self.memory}': the uplink '{uplink.name}' has no memory from which to subtract the "
                "mean; use --memory, or uplink = error_feedback"
            )
        if self.mean_compressor is not None and (self.mean_compressor.compressor.biased or uplink.has_memory):
            raise ConfigError(
                f"method.mean_compressor = {self.mean_compressor}: only an unbiased compressor, such as uniform:8@layer, "
                "and an uplink without memory are allowed"
            )
        if self.tracker_rate is not None:
            return self
        compression = uplink.compression
        if compression is None or compression.compressor.lossless:
            return self.replace(tracker_rate=1.0)
        compressor = compression.compressor
        keeps_entries = compressor.exact and compressor.kept_fraction is not None
        if keeps_entries if uplink.has_memory else compressor.sparse and not compressor.biased:
            return self.replace(sparsifier=compression)
        return self.replace(tracker_rate=0.1 if uplink.has_memory else 1.0)

    def beta(self, layout: Layout) -> float:
        """The rate of the trackers."""
        if self.tracker_rate is not None:
            return self.tracker_rate
        assert self.sparsifier is not None  # set by `resolve`
        exact = self.sparsifier.compressor.exact
        return self.sparsifier.kept_share(layout) if exact else 1 / (1 + self.sparsifier.omega(layout))

    @property
    def mean_compression(self) -> GroupedCompressor | None:
        return self.mean_compressor

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
        models = cohort.start()
        for step in self.steps(cohort):
            models.sub_(self.gradients(cohort, models, step).sub_(trackers), alpha=rate)
        updates = models.sub_(cohort.models)
        if self.memory == "standard":
            return updates
        cohort.kept["update"] = updates.clone()
        return updates.add_(cohort.stacked("correction"))

    def remember(self, cohort: Cohort, row: int, decoded: Mapping[str, Payload]) -> State:
        """T_i -= beta q_i / (a K)."""
        state = dict(cohort.states[row])
        if MODEL not in decoded:
            return state
        distance = self.rate(cohort.round) * self.step_count(cohort.sizes[row])
        # With a = 0, at the end of a schedule, updates contain no information about the gradients.
        unit = self.beta(cohort.layout) / distance if distance else 0.0
        tracker = state["tracker"].clone() if "tracker" in state else cohort.zeros()
        decoded[MODEL].add_to(tracker, -unit)
        state |= {"tracker": tracker, "unit": torch.tensor(unit, dtype=torch.float64)}
        if self.memory != "standard":
            # The uplink keeps u + e - q_i; the correction makes u + e - q of it, or with eq. (9) u / N + e - q.
            correction = cohort.zeros()
            decoded[MODEL].add_to(correction, 1.0)
            if self.memory == "printed":
                correction.sub_(cohort.kept["update"][row].cpu(), alpha=1 - 1 / len(cohort.data))
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
