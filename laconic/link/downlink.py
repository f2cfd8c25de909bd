"""How the server's model becomes bytes on its way to a client, and how the client gets the model back."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from laconic.layout import Layout
from laconic.link.compressors import Dense, decode, encode_dense
from laconic.link.packet import Body
from laconic.parts import Part, State, part


class Downlink(Part):
    """The server publishes its model once a round; each client receives what it does not have yet."""

    def init(self, model: Tensor) -> State:
        """The server's state before round 0."""
        raise NotImplementedError

    def advance(self, step: Tensor, state: State) -> tuple[Tensor, State]:
        """What the server really adds to its model, given the optimiser's step."""
        raise NotImplementedError

    def publish(self, model: Tensor, state: State) -> Callable[[int], Body]:
        """The body for each client of this round."""
        raise NotImplementedError

    def receive(self, body: Body, state: State, layout: Layout) -> tuple[Tensor, State]:
        """On the client: the model to start from, and the client's new state."""
        raise NotImplementedError

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """What the papers' formulas count for this body."""
        raise NotImplementedError


@part("downlink", "dense")
class DenseDownlink(Downlink):
    """The whole model, 32 d bits per participant."""

    def init(self, model: Tensor) -> State:
        """Nothing to remember."""
        return {}

    def advance(self, step: Tensor, state: State) -> tuple[Tensor, State]:
        """The step itself."""
        return step, state

    def publish(self, model: Tensor, state: State) -> Callable[[int], Body]:
        """One body for everybody, encoded once."""
        body = encode_dense(model)
        return lambda client: body

    def receive(self, body: Body, state: State, layout: Layout) -> tuple[Tensor, State]:
        """The model as sent."""
        return decode(body, layout).dense(), state

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """32 d."""
        return Dense().paper_bits(layout)
