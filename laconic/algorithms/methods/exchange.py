"""Exchanges, phases and streams: the structure of a round.

A round has one or more `Exchange`s. In each, clients get an instruction and answer it. The instruction names a `Phase`,
which defines what the client computes and which vectors the instruction and the answer contain. Each vector is a `Stream`.
Messages contain only phase names and stream numbers; both sides derive the rest from the same method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from laconic.algorithms.methods.cohort import Cohort
from laconic.compression import AnyGroupedCompressor
from laconic.compression.packet import STREAMS, CoreStream
from laconic.core.errors import ConfigError, PacketError

TRAIN = "train"
"""The phase of a method that has only one."""
MODEL, BUFFERS, MEAN, CONFIRM, BASE = CORE = tuple(stream.name.lower() for stream in CoreStream)
"""The names of the streams that every method has. MODEL is the model on the way down, the client's update on the way up."""
RESERVED = (*CORE, "refused")
"""Names that a method's own streams cannot use: the ledger counts other bytes under them."""


@checked_dataclass(frozen=True, config=ConfigDict(arbitrary_types_allowed=True))
class Stream:
    """A named vector in an instruction or answer, and the compressor that encodes it."""

    name: str
    compressor: AnyGroupedCompressor | None = None
    """A compressor, or the spelling of one, as "qsgd:8@layer"; None: dense."""
    draw: str = ""
    """The stream's part in the names of random draws, by default the name in upper case. Changing it changes results, so
    built-in methods set it: a stream can then be renamed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "draw", self.draw or self.name.upper())


UPDATE = Stream(MODEL, draw="MODEL")
"""The client's update, which the uplink encodes, with its memory."""


@dataclass(frozen=True)
class Exchange:
    """One instruction to each of several clients, and their answers."""

    phase: str = TRAIN
    """The phase of all clients, unless `Method.assign` chooses another for a client."""
    who: Literal["participants", "everyone", "answered", "one"] = "participants"
    """The participants of the round, all N clients, the participants whose last answer was used, or one drawn of these."""
    model: bool = True
    """Whether the model is sent. Otherwise clients use the model that the previous phase kept."""
    counted: bool = True
    """Whether the papers' formulas count this exchange. Measured bytes always include it."""


class Answer:
    """The vectors that a cohort sends, [C, d] by stream: `Answer(update, control=difference)`."""

    def __init__(self, update: Tensor | None = None, /, **vectors: Tensor) -> None:
        if update is not None and MODEL in vectors:
            raise ConfigError(
                f"an answer has two vectors '{MODEL}': this is the name of the update; choose another one"
            )
        self.vectors = vectors if update is None else {MODEL: update} | vectors


def no_gradients(size: int) -> int:
    """The gradient count of a phase without gradients."""
    return 0


@dataclass(frozen=True)
class Phase:
    """What a client does in one exchange."""

    name: str
    run: Callable[[Cohort], Tensor | Answer]
    """The computation for a cohort. A plain tensor is the update."""
    gradients: Callable[[int], int] = no_gradients
    """Per-example gradients that the papers count, as a function of the client's number of examples."""
    up: tuple[Stream, ...] = (UPDATE,)
    """The streams of the answer. If empty, the client only confirms."""
    down: tuple[Stream, ...] = ()
    """The streams of the instruction besides the model: entries of the server's state with these names."""
    keeps_model: bool = False
    """Whether the client keeps the model for the next exchange."""

    def answer(self, cohort: Cohort) -> dict[str, Tensor]:
        """The vectors of the answer by stream, in the order of `up`."""
        result = self.run(cohort)
        vectors = result.vectors if isinstance(result, Answer) else {MODEL: result}
        expected = [stream.name for stream in self.up]
        if set(vectors) != set(expected):
            raise ConfigError(
                f"phase '{self.name}': the answer has streams {sorted(vectors)}, but the phase declares {expected}"
            )
        for name, vector in vectors.items():
            kind = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
            if kind != cohort.models.dtype:
                raise ConfigError(
                    f"phase '{self.name}': '{name}' is {kind}, but must be a {cohort.models.dtype} tensor"
                )
            if vector.shape != cohort.models.shape:
                given, needed = list(vector.shape), list(cohort.models.shape)
                raise ConfigError(
                    f"phase '{self.name}': '{name}' has shape {given}, but [clients, parameters] is {needed}"
                )
        return {name: vectors[name] for name in expected}

    def stream(self, name: str) -> Stream:
        """The stream with this name in the answer."""
        return next(stream for stream in self.up if stream.name == name)


def _check_stream(name: str) -> None:
    if name in RESERVED or not name.isidentifier() or name != name.lower():
        raise ConfigError(f"stream = '{name}': must be a lower-case identifier other than {', '.join(RESERVED)}")


class PhaseTable:
    """The phases of a method by name, and its streams by number. Server and clients build equal tables."""

    def __init__(self, phases: Iterable[Phase]) -> None:
        self._phases = {phase.name: phase for phase in phases}
        sent = [stream for phase in self._phases.values() for stream in phase.up]
        if any(stream.name == MODEL and stream != UPDATE for stream in sent):
            raise ConfigError(f"stream = '{MODEL}': this is the name of the update, which is laconic.UPDATE")
        up = [stream.name for stream in sent]
        down = [stream.name for phase in self._phases.values() for stream in phase.down]
        self.extra_streams = tuple(dict.fromkeys(name for name in up if name != MODEL))
        """Streams that clients send besides their update."""
        self.has_update = MODEL in up
        """Whether clients send updates in any phase."""
        own = tuple(dict.fromkeys((*self.extra_streams, *down)))
        for name in own:
            _check_stream(name)
        self._names = (*CORE, *own)
        if len(self._names) > STREAMS:
            raise ConfigError(f"{len(own)} streams: at most {STREAMS - len(CORE)} are allowed")

    def __getitem__(self, name: str) -> Phase:
        try:
            return self._phases[name]
        except KeyError:
            raise PacketError("phase", f"'{name}' is unknown; known: {', '.join(self._phases)}") from None

    def number(self, stream: str) -> int:
        """The number of a stream in packet headers."""
        return self._names.index(stream)

    def stream(self, number: int) -> str:
        """The name of a stream; `PacketError` for an unknown number."""
        if number >= len(self._names):
            raise PacketError("stream", f"{number} is unknown: this method has {len(self._names)}")
        return self._names[number]
