"""What a client computes from the model and its data, and what the server folds back.

A simple method has one vector to say, its update, and writes `local` alone. Others keep a state on each client and one on
the server, send further vectors in streams of their own, or need more than one exchange per round. All of them are written
with the hooks below; the round, the client's transaction and the ledger are the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.batches import BatchOrder, nominal_examples, positions
from laconic.algorithms.methods.cohort import Cohort, Step
from laconic.algorithms.methods.exchange import Exchange
from laconic.algorithms.methods.received import Received
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import GroupedCompressor, Payload
from laconic.compression.packet import Stream
from laconic.core.errors import ConfigError
from laconic.core.part import Part, State, checked
from laconic.core.schedules import LARGEST, RateSchedule, Schedule, clipped

DEFAULT_STEPS = 10
Count = Annotated[int, Field(ge=1)]
ClipNorm = Annotated[float, Field(gt=0)] | None
Vectors = dict[Stream, Tensor]


_SERVER_ONLY = "it takes one step a round, whose only rate is the server's: "
ONE_STEP = {
    "local_lr": f"{_SERVER_ONLY}use server_lr",
    "local_schedule": f"{_SERVER_ONLY}use server_schedule",
    "local_steps": f"{_SERVER_ONLY}there are no local steps",
    "local_epochs": f"{_SERVER_ONLY}there are no local steps",
}
"""What methods without local steps say to those who set some."""


class Method(Part):
    """A client's work in one round, and the server's part in it."""

    one_at_a_time: ClassVar[bool] = False
    """True for work that cannot share the process: it then runs alone, with all the operator threads."""
    equal_weights: ClassVar[bool] = False
    """True if the mathematics need the same weight for all clients."""
    equal_clients: ClassVar[bool] = False
    """True if they need the same K, too."""
    sends_mean: ClassVar[bool] = False
    """True if clients are told the mean of the round's updates."""
    exact_sums: ClassVar[str | None] = None
    """Why the server must use exactly what clients sent, so that no defense can come between; None if it need not."""
    plain_uplink: ClassVar[str | None] = None
    """Why the uplink can have neither a memory nor a reference, which the method would ignore; None if it can."""
    keeps_model: ClassVar[frozenset[str]] = frozenset()
    """The works after which a client keeps the round's model, because the next exchange comes without it."""

    # On the client, for a chunk of clients with the same work.

    def local(self, cohort: Cohort) -> Tensor:
        """The updates [C, d]: each client's end minus its start."""
        raise NotImplementedError

    def answer(self, cohort: Cohort) -> Vectors:
        """All that goes up, [C, d] by stream. MODEL is the update: it passes through the uplink and its memory."""
        return {Stream.MODEL: self.local(cohort)}

    def receive(self, state: State, received: Vectors) -> State:
        """The client's state once it has what the server owed it (`owes`)."""
        return state

    def remember(self, cohort: Cohort, row: int, used: Mapping[Stream, Payload]) -> State:
        """One client's new state, given what the server will decode of its answer."""
        return cohort.states[row]

    def compressor(self, phase: str, uplink: Uplink) -> GroupedCompressor | None:
        """How vectors other than the update are compressed in that work; None is dense."""
        return None

    # On the server.

    def init(self, model: Tensor) -> State:
        """The server's state before round 0."""
        return {}

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        """The exchanges of a round that begins with that state on the server."""
        return (Exchange(),)

    def assign(self, exchange: Exchange, context: RoundContext) -> str:
        """The work of one client in an exchange."""
        return exchange.phase

    def send(self, phase: str, state: State) -> Vectors:
        """What goes down with that work, besides the model."""
        return {}

    def send_compressor(self, stream: Stream) -> GroupedCompressor | None:
        """How what `send` gives is compressed, once for all; None is dense."""
        return None

    def streams(self, phase: str) -> tuple[Stream, ...]:
        """What comes up as the answer to that work."""
        return (Stream.MODEL,)

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        """The server's state after an exchange."""
        return state

    def owes(self, exchange: Exchange, received: Received) -> Vectors:
        """What every client that was folded in this exchange must be told, sooner or later, for both sides to agree."""
        return {}

    def update(self, received: Received, state: State) -> Tensor | None:
        """What the optimizer is given at the end of the round; None leaves the model where it is."""
        return received.mean(Stream.MODEL)

    def close(self, state: State, model: Tensor) -> State:
        """The server's state after a round that started from `model`."""
        return state

    # About the method.

    def nominal_gradients(self, size: int, phase: str) -> int:
        """How many gradients of single examples the papers count for a client with `size` examples."""
        raise NotImplementedError

    def fitted(self, uplink: Uplink) -> Self:
        """The method with what it leaves open settled for this uplink."""
        return self

    def check(self, sizes: np.ndarray, weighting: str) -> None:
        """Refuse, before any work, settings in which the mathematics do not hold."""
        if (self.equal_weights or self.equal_clients) and weighting != "uniform":
            raise ConfigError(f"weighting = '{weighting}': {self.name} needs the same weight for all clients: uniform")


@checked
class LocalMethod(Method):
    """A method that takes local steps on small batches: K steps, or whole passes over the client's data."""

    local_lr: Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)] = 0.05
    """a, the local learning rate."""
    local_steps: Count | None = None
    """K; 10 when neither steps nor epochs are given."""
    local_epochs: Count | None = None
    batch_size: Count = 32
    batch_order: BatchOrder = "shuffled"
    """`fixed` is the order of the client's data, the same in every round."""
    local_schedule: Schedule = RateSchedule()
    """What the local rate is multiplied with as rounds go by."""
    clip_norm: ClipNorm = None
    """Gradients that are longer are brought to this length."""

    def __post_init__(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            given = f"local_steps = {self.local_steps}, local_epochs = {self.local_epochs}"
            raise ConfigError(f"method: {given}: only one of the two is allowed")
        if self.local_epochs is None and self.local_steps is None:
            object.__setattr__(self, "local_steps", DEFAULT_STEPS)

    def replace(self, **changes: Any) -> Self:
        """Choosing steps puts epochs aside, and the other way round."""
        for one, other in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
            if changes.get(one) is not None and other not in changes:
                changes[other] = None
        return super().replace(**changes)

    def rate(self, round: int) -> float:
        """a in that round."""
        return self.local_lr * self.local_schedule.factor(round)

    def steps(self, cohort: Cohort) -> Iterator[Step]:
        """The cohort's local steps in this round."""

        def plan(size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
            counts = (self.batch_size, self.local_steps, self.local_epochs)
            return positions(size, *counts, self.batch_order, generator)

        return cohort.steps(plan)

    def gradients(self, cohort: Cohort, models: Tensor, step: Step) -> Tensor:
        """G [C, d], clipped if that was asked for."""
        return clipped(cohort.gradients(models, step), self.clip_norm)

    def step_count(self, size: int) -> int:
        """K of a client with `size` examples."""
        if self.local_steps is not None:
            return self.local_steps
        return (self.local_epochs or 0) * -(-size // self.batch_size)

    def nominal_gradients(self, size: int, phase: str) -> int:
        """K b', or the examples of the passes."""
        return nominal_examples(size, self.batch_size, self.local_steps, self.local_epochs)

    def check(self, sizes: np.ndarray, weighting: str) -> None:
        """Where clients must be alike: the same K and the same weight."""
        super().check(sizes, weighting)
        if not self.equal_clients:
            return
        counts = {self.step_count(int(size)) for size in np.unique(sizes)}
        if len(counts) > 1:
            raise ConfigError(
                f"method.local_epochs = {self.local_epochs}: clients of unlike sizes would take {min(counts)} to "
                f"{max(counts)} steps, and {self.name} needs the same number for all; use local_steps"
            )
