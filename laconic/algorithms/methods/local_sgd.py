"""Local SGD, as in FedAvg (McMahan et al., 2017, Algorithm 1), and other local optimizers.

With the proximal term it is FedProx.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import LocalMethod, method
from laconic.algorithms.methods.cohort import Cohort, Step
from laconic.algorithms.methods.exchange import TRAIN, UPDATE, Answer, Exchange, Phase, Stream
from laconic.algorithms.methods.local_optimizers import COUNT, AdamW, AnyLocalOptimizer, LocalOptimizer
from laconic.algorithms.methods.received import Received
from laconic.algorithms.uplinks.base import Uplink
from laconic.core.errors import ConfigError
from laconic.core.part import BOUNDED, STATEFUL, State
from laconic.core.schedules import LARGEST, RateSchedule, StepSchedule


@method("local_sgd")
class LocalSGD(LocalMethod):
    """W <- w; then K times W -= a (g(W, batch) + mu (W - w)), with mu > 0 for FedProx (Li et al., 2020).

    Another `local_optimizer` replaces the step. With the optimizer state "averaged", clients send the state's vectors with
    their update, and the next participants start from the mean.
    """

    proximal: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    """mu, the weight of the proximal term, which pulls a client toward the server's model."""
    local_optimizer: AnyLocalOptimizer = LocalOptimizer()
    """sgd, momentum, nesterov, adam or adamw, with settings as in adamw:weight_decay=0.1,beta2=0.95."""
    local_optimizer_state: Literal["reset", "kept", "averaged"] = "reset"
    """The local optimizer's state: reset in every round, kept by each client, or averaged by the server."""
    step_schedule: StepSchedule = RateSchedule()
    """The factor on the local rate in each step of a round, such as warmup:5 or cosine:20."""

    @property
    def sensitivity(self) -> str:
        if self._averaged:
            return "the averaged state of the local optimizer has neither clip nor noise"
        return STATEFUL if self._kept else BOUNDED

    @property
    def _averaged(self) -> tuple[str, ...]:
        """The vectors that the server averages."""
        return self.local_optimizer.vectors if self.local_optimizer_state == "averaged" else ()

    @property
    def _kept(self) -> bool:
        return self.local_optimizer_state == "kept" and bool(self.local_optimizer.vectors)

    def check(self, sizes: np.ndarray, weighting: str) -> None:
        super().check(sizes, weighting)
        if self.weight_decay and isinstance(self.local_optimizer, AdamW):
            meant = replace(self.local_optimizer, weight_decay=self.weight_decay)
            raise ConfigError(
                f"method.weight_decay = {self.weight_decay:g}: this is an L2 term of the loss, not the decay of AdamW; "
                f"write local_optimizer='{meant}'"
            )
        if self.local_optimizer_state == "averaged" and not self._averaged:
            raise ConfigError(
                f"method.local_optimizer_state = 'averaged': local_optimizer = '{self.local_optimizer}' has no state; "
                "use momentum, nesterov, adam or adamw, or leave it out"
            )

    def local(self, cohort: Cohort) -> Tensor | Answer:
        models, state = cohort.start(), self._state(cohort)

        def rate(step: Step) -> float:
            return self.rate(cohort.round) * self.step_schedule.factor(step.number)

        if self.local_optimizer.plain and not self.proximal and self.clip_norm is None:
            cohort.descend(models, self.steps(cohort), rate)
        else:
            for step in self.steps(cohort):
                self._step(cohort, models, step, rate(step), state)
        updates = models.sub_(cohort.models)
        if self._kept:
            cohort.kept = state
        return Answer(updates, **{name: state[name] for name in self._averaged}) if self._averaged else updates

    def _step(self, cohort: Cohort, models: Tensor, step: Step, rate: float, state: State) -> None:
        gradients, working = self.gradients(cohort, models, step), step.working(models)
        if self.proximal:
            # A client that has finished must not move.
            gradients.add_((models - cohort.models) * working, alpha=self.proximal)
        if self.local_optimizer.plain:
            models.sub_(gradients, alpha=rate)
        else:
            self.local_optimizer.step(models, gradients, rate, state, working)

    def _state(self, cohort: Cohort) -> State:
        """The state of the local optimizer at the start of the round."""
        names = self.local_optimizer.vectors
        state: State = dict.fromkeys(names, torch.zeros_like(cohort.models)) if names else {}
        count = cohort.models.new_zeros(len(cohort.clients), 1)
        if self._averaged:
            state |= {name: getattr(cohort.received, name) for name in self._averaged}
            # The mean is that of clients that have taken part since round 0.
            count = count.new_tensor([[cohort.round * self.step_count(size)] for size in cohort.sizes])
        if self._kept:
            state |= {name: cohort.stacked(name) for name in self.local_optimizer.vectors}
            count = torch.stack([known.get(COUNT, torch.zeros(1)) for known in cohort.states]).to(count)
        return state | {COUNT: count}

    def path(self, round: int, size: int) -> float | None:
        if not self.local_optimizer.plain:
            return None
        count = self.step_count(size)
        if self.step_schedule.name == "constant":  # epochs over many examples are many steps
            return self.rate(round) * count
        return self.rate(round) * sum(map(self.step_schedule.factor, range(count)))

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        streams = tuple(map(Stream, self._averaged))
        return (Phase(TRAIN, self.local, self.nominal_gradients, (UPDATE, *streams), streams),)

    def init(self, model: Tensor) -> State:
        return {name: torch.zeros_like(model) for name in self._averaged}

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        means = {name: received.mean(name) for name in self._averaged}
        return state | {name: mean for name, mean in means.items() if mean is not None}
