"""The base classes of methods.

A method that sends only its update defines `local`. A method with state on both sides declares a `SharedState`. A method
that sends other vectors, or that has several exchanges per round, defines `phases` and `exchanges`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.batches import BatchOrder, positions
from laconic.algorithms.methods.cohort import Cohort, Step
from laconic.algorithms.methods.exchange import MODEL, TRAIN, UPDATE, Answer, Exchange, Phase
from laconic.algorithms.methods.received import Received
from laconic.algorithms.methods.shared_state import SharedState
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import GroupedCompressor, Payload
from laconic.core.counts import counted
from laconic.core.errors import ConfigError
from laconic.core.part import Part, State, checked, part
from laconic.core.schedules import LARGEST, RateSchedule, Schedule, clipped

DEFAULT_STEPS = 10
Count = Annotated[int, Field(ge=1)]
ClipNorm = Annotated[float, Field(gt=0)] | None
M = TypeVar("M", bound="Method")

_SERVER_ONLY = "it takes one step per round, with the server's learning rate: "
ONE_STEP = {
    "local_lr": f"{_SERVER_ONLY}use server_lr",
    "local_schedule": f"{_SERVER_ONLY}use server_schedule",
    "local_steps": f"{_SERVER_ONLY}there are no local steps",
    "local_epochs": f"{_SERVER_ONLY}there are no local steps",
}
"""Parameters that methods without local steps reject, and why."""


@dataclass_transform(frozen_default=True)
def method(name: str) -> Callable[[type[M]], type[M]]:
    """Class decorator: register a method under a name; its annotated attributes become validated parameters."""
    return part("method", name)


class Method(Part):
    """What clients compute in a round, and how the server combines their answers.

    On failure: a client's new state is pending until the server has committed the round that used its answer. Otherwise it
    is rolled back, as if the client had not taken part. The server's state is part of its checkpoint. A method need not
    handle lost messages.
    """

    one_at_a_time: ClassVar[bool] = False
    """True if clients must run one by one; each then uses all intra-op threads."""
    equal_weights: ClassVar[bool] = False
    """True if all clients must have the same weight."""
    equal_clients: ClassVar[bool] = False
    """True if all clients must also take the same number of steps."""
    sends_mean: ClassVar[bool] = False
    """True if every client whose update was used must receive the mean of that round, immediately or later."""
    exact_sums: ClassVar[str | None] = None
    """Why the server must use updates exactly as sent, which excludes defenses; None if defenses are possible."""

    # On the client, for a chunk of clients in the same phase.

    def local(self, cohort: Cohort) -> Tensor | Answer:
        """The updates [C, d], each client's end minus its start; with shared state an `Answer`."""
        raise ConfigError(f"method '{self.name}': define `local(self, cohort)`, which returns the updates")

    def receive(self, state: State, received: Mapping[str, Tensor]) -> State:
        """One client's state after receiving an instruction's vectors, by stream. Called before the phase runs."""
        return state

    def remember(self, cohort: Cohort, row: int, decoded: Mapping[str, Payload]) -> State:
        """One client's state after its answer; `decoded` is the answer as the server decodes it, by stream.

        By default the state as it was, with the new values of shared states and of what `local` left in `cohort.kept`.
        """
        state = cohort.states[row] | {name: rows[row].cpu().clone() for name, rows in cohort.kept.items()}
        for shared in self.shared_states():
            if shared.name in decoded:
                state = shared.add(cohort, state, decoded[shared.name], shared.rate(self, cohort.layout))
        return state

    # On both sides.

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        """The phases of the method. Streams other than the update may use the uplink's compressor."""
        shared = self.shared_states()
        up = (UPDATE, *(state.difference(uplink) for state in shared))
        down = tuple(state.mean() for state in shared if state.down)
        return (Phase(TRAIN, self.local, self.nominal_gradients, up, down),)

    @classmethod
    @functools.cache
    def shared_states(cls) -> tuple[SharedState, ...]:
        """The shared states that the class and its bases declare."""
        declared = {name: value for kind in reversed(cls.__mro__) for name, value in vars(kind).items()}
        return tuple(value for value in declared.values() if isinstance(value, SharedState))

    # On the server.

    def init(self, model: Tensor) -> State:
        """The server's state before round 0."""
        return {shared.name: torch.zeros_like(model) for shared in self.shared_states()}

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        """The exchanges of a round, given the server's state at its start."""
        return (Exchange(),)

    def assign(self, exchange: Exchange, context: RoundContext) -> str:
        """The phase of one client in an exchange."""
        return exchange.phase

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        """The server's state after an exchange."""
        moved = {
            shared.name: state[shared.name]
            + shared.rate(self, context.layout) * received.take(shared.name) / context.population
            for shared in self.shared_states()
        }
        return state | moved

    def update(self, received: Received, state: State) -> Tensor | None:
        """The mean update for the optimizer; None leaves the model unchanged."""
        return received.mean(MODEL)

    def close(self, state: State, model: Tensor) -> State:
        """The server's state after a round that started from `model`."""
        return state

    @property
    def mean_compression(self) -> GroupedCompressor | None:
        """What encodes the mean of a round for clients, of a method with `sends_mean`; None: exactly."""
        return None

    # About the method.

    @property
    def regularization(self) -> float:
        """phi: gradients are those of the loss plus phi / 2 ||w||^2."""
        return 0.0

    def nominal_gradients(self, size: int) -> int:
        """Per-example gradients that the papers count for a client with `size` examples; by default one epoch."""
        return size

    def path(self, round: int, size: int) -> float | None:
        """The sum of the local rates in a round of a client with `size` examples; its update divided by it estimates the
        negative gradient. None if local steps are not plain gradient steps."""
        return None

    def resolve(self, uplink: Uplink) -> Self:
        """The method with its open settings chosen for this uplink."""
        return self

    def check(self, sizes: np.ndarray, weighting: str) -> None:
        """Reject settings that violate the method's assumptions, before the run starts."""
        if (self.equal_weights or self.equal_clients) and weighting != "uniform":
            raise ConfigError(f"weighting = '{weighting}': {self.name} needs the same weight for all clients: uniform")


@checked
class LocalMethod(Method):
    """A method that takes local steps on mini-batches: K steps, or whole epochs."""

    absent = {
        "local_optimizer": "it takes plain SGD steps, so that an update is a sum of gradients",
        "local_optimizer_state": "it takes plain SGD steps, so that an update is a sum of gradients",
    }
    local_lr: Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)] = 0.05
    """a, the local learning rate."""
    local_steps: Count | None = None
    """K; 10 if neither steps nor epochs are set."""
    local_epochs: Count | None = None
    """Passes over the client's examples, instead of `local_steps`."""
    batch_size: Count = 32
    """Examples per local step."""
    batch_order: BatchOrder = "shuffled"
    """`fixed`: the order of the client's data, the same in every round."""
    local_schedule: Schedule = RateSchedule()
    """The factor on `local_lr` in each round."""
    clip_norm: ClipNorm = None
    """Gradients with a larger norm are scaled to this norm."""
    weight_decay: Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)] = 0.0
    """phi: all gradients are those of f + phi / 2 ||w||^2 (FedCOMGATE's paper, Theorems D.9 and E.9)."""

    def __post_init__(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            settings = f"local_steps = {self.local_steps}, local_epochs = {self.local_epochs}"
            raise ConfigError(f"method: {settings}: only one of the two is allowed")
        if self.local_epochs is None and self.local_steps is None:
            object.__setattr__(self, "local_steps", DEFAULT_STEPS)

    def replace(self, **changes: Any) -> Self:
        # Setting steps unsets epochs, and vice versa.
        for chosen, unset in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
            if changes.get(chosen) is not None and unset not in changes:
                changes[unset] = None
        return super().replace(**changes)

    @property
    def regularization(self) -> float:
        return self.weight_decay

    def rate(self, round: int) -> float:
        """The local learning rate in a round."""
        return self.local_lr * self.local_schedule.factor(round)

    def steps(self, cohort: Cohort) -> Iterator[Step]:
        """The cohort's local steps in this round."""
        return cohort.steps(self.batches)

    def batches(self, size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """The batches of the local steps of a client with `size` examples, as positions in its data."""
        counts = (self.batch_size, self.local_steps, self.local_epochs)
        return positions(size, *counts, self.batch_order, generator)

    def gradients(self, cohort: Cohort, models: Tensor, step: Step) -> Tensor:
        """The clients' gradients [C, d], clipped to `clip_norm`."""
        return clipped(cohort.gradients(models, step), self.clip_norm)

    def step_count(self, size: int) -> int:
        """K for a client with `size` examples."""
        if self.local_steps is not None:
            return self.local_steps
        return (self.local_epochs or 0) * -(-size // self.batch_size)

    def path(self, round: int, size: int) -> float | None:
        return self.rate(round) * self.step_count(size)

    def nominal_gradients(self, size: int) -> int:
        """K times the batch size, even for a smaller client; or epochs times `size`."""
        steps, epochs = self.local_steps, self.local_epochs
        return steps * self.batch_size if steps is not None else (epochs or 0) * size

    def check(self, sizes: np.ndarray, weighting: str) -> None:
        super().check(sizes, weighting)
        if not self.equal_clients:
            return
        counts = {self.step_count(int(size)) for size in np.unique(sizes)}
        if len(counts) > 1:
            raise ConfigError(
                f"method.local_epochs = {self.local_epochs}: clients of different sizes would take {min(counts)} to "
                f"{counted(max(counts), 'step')}, and {self.name} needs the same number for all; use local_steps"
            )
