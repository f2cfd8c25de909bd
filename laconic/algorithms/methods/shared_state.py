"""State that each client keeps, whose mean the server keeps, and that travels as a difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import Exchange, Stream
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import GroupedCompressor, Payload
from laconic.core.layout import Layout
from laconic.core.part import State


def one(method: Any, layout: Layout) -> float:
    """The usual rate: differences are added in full."""
    return 1.0


class SharedState:
    """A vector c_i on each client, and c on the server, the mean over all N clients. Declared in the body of a method:

        control = SharedState(down=True)

    Both start at 0. A client reads c_i as `cohort.state.control` and answers with the difference to its new value,
    `Answer(update, control=new - own)`. It travels as C(new - own), without memory: c_i itself corrects what C leaves out.
    Client and server add what is decoded, times the rate: c_i += r C, and c += r sum(C) / N. So c stays the mean of all c_i
    for any C and any participation.

    On failure: a difference that is lost changes neither side. A client that loses its state starts again with c_i = 0; the
    c_i that it had before remains in c.
    """

    name: str

    def __init__(
        self, *, down: bool = False, contractive: bool = True, rate: Callable[[Any, Layout], float] = one
    ) -> None:
        self.down = down
        """Whether c is sent to clients, who read it as `cohort.received.control`."""
        self.contractive = contractive
        """Whether C is the uplink's compressor in its contractive form, or as it is."""
        self.rate = rate
        """r, a function of the method and the layout."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def difference(self, uplink: Uplink) -> Stream:
        """C(new - own), on its way up."""
        compression = uplink.compression
        if compression is not None and self.contractive:
            compression = compression.scaled_for_feedback()
        return Stream(self.name, compression)

    def exact(self) -> Stream:
        """The difference without compression, for the first pass."""
        return Stream(self.name)

    def mean(self, compressor: GroupedCompressor | None = None) -> Stream:
        """c, on its way down."""
        return Stream(self.name, compressor)

    def add(self, cohort: Cohort, state: State, decoded: Payload, rate: float) -> State:
        """One client's state, moved by what was decoded."""
        own = state[self.name].clone() if self.name in state else cohort.zeros()
        decoded.add_to(own, rate)
        return state | {self.name: own}


def first_pass(phase: str) -> Exchange:
    """An exchange with all N clients before round 0, in which they set their state. The papers do not count it."""
    return Exchange(phase, who="everyone", counted=False)
