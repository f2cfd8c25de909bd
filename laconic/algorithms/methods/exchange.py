"""What a round consists of: exchanges, phases and streams.

A round is one `Exchange` with clients or several: each client gets an instruction and answers it. The instruction names a
`Phase`: what the client computes, and which vectors travel with the instruction and with the answer. Each such vector is a
`Stream`. Only the names of phases and the numbers of streams travel, and both sides derive them from the same method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from laconic.algorithms.methods.cohort import Cohort
from laconic.compression import GroupedCompressor
from laconic.compression.packet import STREAMS, CoreStream
from laconic.core.errors import ConfigError, PacketError

TRAIN = "train"
"""The phase of a method that has only one."""
MODEL, BUFFERS, MEAN, CONFIRM = CORE = tuple(stream.name.lower() for stream in CoreStream)
"""The names of the streams that every method has."""
RESERVED = (*CORE, "refused")
"""Names that a method's own streams cannot have: the ledger counts other bytes under them."""


@dataclass(frozen=True)
class Stream:
    """One vector that travels, by its name, with the compressor that it is encoded with."""

    name: str
    compressor: GroupedCompressor | None = None
    """Dense if there is none."""

    @property
    def draw(self) -> str:
        """The stream's part in the names of random draws. It is frozen: another spelling would change results."""
        return self.name.upper()


UPDATE = Stream(MODEL)
"""The client's update: the uplink encodes it, and keeps its memory."""


@dataclass(frozen=True)
class Exchange:
    """One instruction to each of several clients, and their answers."""

    phase: str = TRAIN
    """The phase of all clients; `Method.assign` can choose another for each of them."""
    who: Literal["participants", "everyone", "answered"] = "participants"
    """The participants of the round; all N clients; or the participants whose last answer was used."""
    model: bool = True
    """Whether the model is sent. Without it, clients use the model that the phase before has kept."""
    counted: bool = True
    """Whether the papers' formulas count it. The measured bytes always do."""


class Answer:
    """What a chunk of clients sends, [C, d] by stream: `Answer(update, control=difference)`."""

    def __init__(self, update: Tensor | None = None, /, **vectors: Tensor) -> None:
        self.vectors = vectors if update is None else {MODEL: update} | vectors


def no_gradients(size: int) -> int:
    """The count of a phase that computes no gradient."""
    return 0


@dataclass(frozen=True)
class Phase:
    """What a client does in one exchange."""

    name: str
    run: Callable[[Cohort], Tensor | Answer]
    """The computation, for a chunk of C clients. A tensor alone is the update."""
    gradients: Callable[[int], int] = no_gradients
    """How many gradients of single examples the papers count for a client with that many examples."""
    up: tuple[Stream, ...] = (UPDATE,)
    """What the answer contains. If it is empty, the client only confirms."""
    down: tuple[Stream, ...] = ()
    """What is sent besides the model: the entries of the server's state with these names."""
    keeps_model: bool = False
    """Whether the client keeps the model, for a next exchange that comes without it."""

    def answer(self, cohort: Cohort) -> dict[str, Tensor]:
        """The vectors of the answer by stream, in the order of `up`."""
        given = self.run(cohort)
        vectors = given.vectors if isinstance(given, Answer) else {MODEL: given}
        expected = [stream.name for stream in self.up]
        if set(vectors) != set(expected):
            raise ConfigError(f"phase '{self.name}': the answer has {sorted(vectors)}, and declared are {expected}")
        return {name: vectors[name] for name in expected}

    def stream(self, name: str) -> Stream:
        """The stream of that name in the answer."""
        return next(stream for stream in self.up if stream.name == name)


class PhaseTable:
    """The phases of a method by name, and its streams by number. Server and clients build equal tables."""

    def __init__(self, phases: Iterable[Phase]) -> None:
        self._phases = {phase.name: phase for phase in phases}
        up = [stream.name for phase in self._phases.values() for stream in phase.up]
        down = [stream.name for phase in self._phases.values() for stream in phase.down]
        self.beside = tuple(dict.fromkeys(name for name in up if name != MODEL))
        """The streams that clients send besides their update."""
        own = tuple(dict.fromkeys((*self.beside, *down)))
        for name in own:
            if name in RESERVED or not name.isidentifier() or name != name.lower():
                raise ConfigError(
                    f"stream = '{name}': a name in lower case is allowed, and none of {', '.join(RESERVED)}"
                )
        self._names = (*CORE, *own)
        if len(self._names) > STREAMS:
            raise ConfigError(f"{len(own)} streams: at most {STREAMS - len(CORE)} are allowed")

    def __getitem__(self, name: str) -> Phase:
        try:
            return self._phases[name]
        except KeyError:
            raise PacketError("phase", f"'{name}' is not known: {', '.join(self._phases)}") from None

    def number(self, stream: str) -> int:
        """The number of a stream in the header."""
        return self._names.index(stream)

    def stream(self, number: int) -> str:
        """The name of a stream; an unknown number is refused."""
        if number >= len(self._names):
            raise PacketError("stream", f"{number} is not known: this method has {len(self._names)}")
        return self._names[number]
