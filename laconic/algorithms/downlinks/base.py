"""How the server's model becomes bytes on its way to a client, and how the client gets the model back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.optimizers.base import Optimizer
from laconic.compression import DENSE, decode_body, encode_dense
from laconic.compression.packet import Body
from laconic.core.layout import Layout
from laconic.core.part import Part, State, part

LOST = -1
"""The version of a client that has lost its state: it must be sent the whole model."""


class LostState(Exception):
    """A client was sent what only the state that it has lost could make sense of."""


@dataclass(frozen=True)
class ClientModelVersion:
    """What the server knows of the model that a client has."""

    version: int
    """The number of the server's model that the client had when its last update was folded in; 0 is the initial one."""
    peer: State
    """What else the server keeps of this client."""


@dataclass
class BroadcastModel:
    """The server's model in one round, and what was encoded of it already: many clients need the same."""

    model: Tensor
    state: State
    layout: Layout
    by_version: dict[int, Body] = field(default_factory=dict)
    """Bodies that depend on nothing but the version that a client has."""

    @cached_property
    def whole(self) -> Body:
        """The whole model."""
        return encode_dense(self.model)


class Downlink(Part):
    """The server sends each client what it does not have yet; a client's model advances when its reply is folded."""

    def init(self, model: Tensor) -> State:
        """The server's state before round 0."""
        return {}

    def advance(self, model: Tensor, step: Tensor, state: State, context: RoundContext) -> tuple[Tensor, State]:
        """The server's new model, given the optimizer's step."""
        return model + step, state

    def version(self, state: State) -> int:
        """The number of the server's present model."""
        return 0

    def send(self, publication: BroadcastModel, held: ClientModelVersion, context: RoundContext) -> Body:
        """What one client needs."""
        raise NotImplementedError

    def confirmed(self, publication: BroadcastModel, held: ClientModelVersion, body: Body) -> State:
        """The peer state once the client's reply to `body` is folded in."""
        return {}

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        """On the client: the model to start from, and the client's new state.

        `lost` says that the server takes the client to have a state that it does not have any more. Raises `LostState` if
        the body cannot be read without it.
        """
        raise NotImplementedError

    def repeat(self, state: State, mean: Tensor) -> State:
        """On the client: what it makes of the mean of the round, if its method brings it."""
        return state

    def repeated_version(self, version: int) -> int:
        """The model that a client has once it has heard the mean of the round in which it had `version`."""
        return version

    def fitted(self, optimizer: Optimizer, sends_mean: bool) -> Downlink:
        """The downlink with what it leaves open settled for the parts beside it."""
        return self

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """What the papers' formulas count for this body."""
        raise NotImplementedError


@part("downlink", "dense")
class DenseDownlink(Downlink):
    """The whole model, 32 d bits per participant."""

    def send(self, publication: BroadcastModel, held: ClientModelVersion, context: RoundContext) -> Body:
        """Every entry, encoded and summed once for all."""
        return publication.whole

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        """The model as sent; clients that share a process share it."""
        if "model" not in body.memo:
            body.memo["model"] = decode_body(body, layout).dense()
        return body.memo["model"], state

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """32 d."""
        return DENSE.paper_bits(layout)
