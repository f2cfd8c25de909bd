"""The base of downlinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock

from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.optimizers.base import Optimizer
from laconic.compression import DENSE, GroupedCompressor, encode_dense
from laconic.compression.packet import Body
from laconic.core.layout import Layout
from laconic.core.part import Part, State

LOST = -1
"""The version of a client that has lost its state. It needs the whole model."""
_WHOLE = -2


class LostState(Exception):
    """A client cannot decode the model because it has lost the state that decoding needs."""


@dataclass(frozen=True)
class ClientModelVersion:
    """The server's record of the model that a client has."""

    version: int
    """The version that the client had when its last update was used; 0 is the initial model."""
    peer: State
    """The downlink's other state for this client."""


@dataclass
class BroadcastModel:
    """The server's model in one round, with its encoded bodies, which many clients share."""

    model: Tensor
    state: State
    layout: Layout
    _by_version: dict[int, Body] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)

    def for_version(self, version: int, encode: Callable[[], Body]) -> Body:
        """A body that depends only on the client's version. It is encoded once, though many threads may ask for it."""
        with self._lock:
            if version not in self._by_version:
                self._by_version[version] = encode()
            return self._by_version[version]

    @property
    def whole(self) -> Body:
        """The whole model, encoded, in the memory of the model itself."""
        return self.for_version(_WHOLE, lambda: encode_dense(self.model, lent=True))


class Downlink(Part):
    """Sends each client the part of the model that it lacks. The version advances once the client's reply is used."""

    def init(self, model: Tensor) -> State:
        """The server's state before round 0."""
        return {}

    def advance(self, model: Tensor, step: Tensor, state: State, context: RoundContext) -> tuple[Tensor, State]:
        """The server's new model, given the optimizer's step."""
        return model + step, state

    def version(self, state: State) -> int:
        """The version of the server's current model."""
        return 0

    @property
    def compression(self) -> GroupedCompressor | None:
        """C and its granularity; None if the model is not compressed."""
        return None

    @property
    def encodes_per_client(self) -> bool:
        """Whether `send` encodes a vector for each client, which is worth several threads."""
        return False

    def send(self, broadcast: BroadcastModel, client: ClientModelVersion, context: RoundContext) -> Body:
        """The body for one client. Several threads may call it at once."""
        raise NotImplementedError

    def confirmed(self, broadcast: BroadcastModel, client: ClientModelVersion, body: Body) -> State:
        """The peer state once the client's reply to `body` is used. It may overwrite the tensors of `client.peer`."""
        return {}

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        """On the client: the decoded model, and the client's new state. Both may share memory and are read-only.

        `lost`: the server assumes a state that the client has lost. Raises `LostState` if decoding needs that state.
        """
        raise NotImplementedError

    def repeat(self, state: State, mean: Tensor) -> State:
        """On the client: the state after receiving the mean of the round, for methods that send it."""
        return state

    def repeated_version(self, version: int) -> int:
        """The version of a client that had `version` and then received the mean of that round."""
        return version

    def resolve(self, optimizer: Optimizer, sends_mean: bool) -> Downlink:
        """The downlink with its open settings chosen for the other parts."""
        return self

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The bits that the papers' formulas count for this body; 32 d by default."""
        return DENSE.paper_bits(layout)
