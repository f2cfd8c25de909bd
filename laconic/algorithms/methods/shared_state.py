"""State of each client, whose mean the server keeps, and which clients send as differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import Exchange, Stream
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import GroupedCompressor, Payload
from laconic.core.layout import Layout
from laconic.core.part import State


class SharedState:
    """A vector c_i on each client, and their mean c over all N clients on the server. Declared in the body of a method:

        control = SharedState(down=True)

    Both start at 0. A client reads c_i as `cohort.state.control` and answers with the change of its value,
    `Answer(update, control=new - own)`. The client sends C(new - own) without memory; the next difference contains the
    compression error. Client and server add the decoded difference times the rate: c_i += r C, and c += r sum(C) / N. So c
    is the mean of all c_i for any C and any participation.

    On failure: a lost difference changes neither side. A client that loses its state restarts with c_i = 0; its earlier c_i
    remains in c.
    """

    name: str

    def __init__(
        self,
        *,
        down: bool = False,
        contractive: bool = True,
        draw: str = "",
        rate: Callable[[Any, Layout], float] = lambda method, layout: 1.0,
    ) -> None:
        self.down = down
        """Whether clients receive c, as `cohort.received.control`."""
        self.contractive = contractive
        """Whether to use the uplink's compressor in its contractive form."""
        self.draw = draw
        """As `Stream.draw`: by default the attribute's name in upper case."""
        self.rate = rate
        """r, a function of the method and the layout."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def difference(self, uplink: Uplink) -> Stream:
        """The stream of C(new - own)."""
        compression = uplink.compression
        if compression is not None and self.contractive:
            compression = compression.scaled_for_feedback()
        return Stream(self.name, compression, self.draw)

    def exact(self) -> Stream:
        """The stream of the uncompressed difference, for the first pass."""
        return Stream(self.name, draw=self.draw)

    def mean(self, compressor: GroupedCompressor | None = None) -> Stream:
        """The stream of c, from the server."""
        return Stream(self.name, compressor, self.draw)

    def add(self, cohort: Cohort, state: State, decoded: Payload, rate: float) -> State:
        """One client's state plus the decoded difference times the rate."""
        own = state[self.name].clone() if self.name in state else cohort.zeros()
        decoded.add_to(own, rate)
        return state | {self.name: own}


def first_pass(phase: str) -> Exchange:
    """An exchange with all N clients before their first round, which sets their states. The papers do not count it."""
    return Exchange(phase, who="everyone", counted=False)
