"""Limits on the norms of clients' vectors: replies above one limit are refused, updates above another are clipped.

Limits are numbers, or multiples of a median: that of the round, and that of recently accepted vectors. A median is robust to
a few malicious clients, and it follows training as updates become smaller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import NamedTuple

import torch

from laconic.algorithms.methods.exchange import BUFFERS, MODEL
from laconic.core.errors import PacketError
from laconic.core.part import State
from laconic.federation.settings import Defenses, median_multiple

OUTLIER = 5.0
"""`refuse = "auto"` refuses updates and batch-norm statistics above this multiple of the median. See docs/defenses.md."""
CLIPPED_OUTLIER = 10.0
"""The same where updates are clipped, which bounds attackers too, once the norms of earlier updates are known."""
OTHER_OUTLIER = 20.0
"""The same for other vectors. Most are differences from a shared state, which are large if a client was away for long."""
EXPLODING = 100.0
"""An update whose norm exceeds this multiple of the median (of this round or of recent rounds) counts as exploding, not as
an outlier."""
ENOUGH = 5
"""The number of norms that make a median. A round with fewer is completed with the latest norms of earlier rounds."""
FEWEST = 3
"""The number of norms below which no reply is compared with a median."""
KEPT = 300
"""The number of recent norms that a norm is compared with."""


class Limit(NamedTuple):
    """A norm above which a reply is refused."""

    norm: float
    reason: str
    """An honest client may be an outlier, but its updates do not explode."""
    origin: str = ""
    """Where the number comes from, for the message."""


@dataclass(frozen=True)
class NormLimits:
    """The limits of one exchange, by kind of vector ("phase/stream")."""

    refuse: Mapping[str, Sequence[Limit]]
    """Limits above which a reply is refused, the worst reason first."""
    clip: Mapping[str, float]
    """The norm to which an update is scaled down."""

    def factor(self, norms: Mapping[str, float], client: int, work: float = 1.0) -> float:
        """The factor that clips a reply's update, 1 for most; `PacketError` if a vector is refused.

        Args:
            work: the client's local steps, as a multiple of the median client's. So much farther may its update go.
        """
        factor = 1.0
        for kind, norm in norms.items():
            update = _stream(kind) == MODEL
            for limit in self.refuse.get(kind, ()):
                most = limit.norm * max(1.0, work) if update and limit.reason == "outlier" else limit.norm
                if norm > most:
                    what = "update" if update else f"vector '{_stream(kind)}'"
                    found = f"has norm {norm:.3g}, above {most:.3g}{limit.origin}"
                    raise PacketError(limit.reason, f"the {what} of client {client} {found}")
            if kind in self.clip and norm > self.clip[kind]:
                factor = self.clip[kind] / norm
        return factor


class UpdateNormFilter:
    """Sets the limits of each exchange, and keeps the norms of recently accepted vectors.

    Norms are kept by kind, since the phases and streams of a method have different norms.
    """

    def __init__(self, defenses: Defenses) -> None:
        self._defenses = defenses
        self._accepted: dict[str, deque[float]] = {}

    def limits(self, replies: Sequence[Mapping[str, float]]) -> NormLimits:
        """The limits for the replies of one exchange, of which these are the norms."""
        refuse, clip = {}, {}
        for kind in {kind: None for norms in replies for kind in norms}:
            found = [norms[kind] for norms in replies if kind in norms]
            refuse[kind] = self._refused_above(kind, found)
            if self._defenses.clip is not None and _stream(kind) == MODEL:
                multiple = median_multiple(self._defenses.clip)
                clip[kind] = float(self._defenses.clip) if multiple is None else multiple * self._median(kind, found)
        return NormLimits(refuse, clip)

    def _refused_above(self, kind: str, norms: Sequence[float]) -> list[Limit]:
        setting = self._defenses.refuse
        # Buffers are statistics, not updates: a norm given for updates has no meaning for them.
        if setting is None or (setting != "auto" and _stream(kind) == BUFFERS):
            return []
        if setting != "auto":
            return [Limit(float(setting), "exploding")]
        # A client that was away for long, or has lost its state, sends a difference as large as the state.
        state = OUTLIER * median(self._accepted.get(f"first/{_stream(kind)}") or [0.0])
        limits = []
        outlier = OUTLIER if _stream(kind) in (MODEL, BUFFERS) else OTHER_OUTLIER
        typical, origin = self._median(kind, norms), "times the median of the round"
        if len(accepted := self._accepted.get(kind, ())) >= ENOUGH:
            recent, known = median(accepted), "times the median of earlier rounds"
            if self._defenses.clip is not None and _stream(kind) == MODEL:
                # Near the optimum most updates are tiny, and some honest ones are not. Clipping bounds them.
                outlier, recent, known = (
                    CLIPPED_OUTLIER,
                    quantiles(accepted, n=4)[-1],
                    "times the norms of earlier rounds",
                )
                typical, origin = max((typical, origin), (recent, known))
            limits.append(Limit(EXPLODING * recent, "exploding", f", {EXPLODING:g} {known}"))
        if len(self._sample(kind, norms)) >= FEWEST:
            limits.append(Limit(EXPLODING * typical, "exploding", f", {EXPLODING:g} {origin}"))
            limits.append(Limit(outlier * typical, "outlier", f", {outlier:g} {origin}"))
        return [limit._replace(norm=max(limit.norm, state)) for limit in limits]

    def _sample(self, kind: str, norms: Sequence[float]) -> list[float]:
        """The norms of the round, completed with the latest ones of earlier rounds. Zero is not compared."""
        sample = [norm for norm in norms if norm > 0]
        missing = max(0, ENOUGH - len(sample))
        return sample + [*self._accepted.get(kind, ())][::-1][:missing]

    def _median(self, kind: str, norms: Sequence[float]) -> float:
        return median(self._sample(kind, norms) or [0.0])

    def add(self, norms: Mapping[str, float]) -> None:
        """Keep the norms of an accepted reply if later rounds need them, except zeros."""
        for kind, norm in norms.items():
            if norm > 0 and self._defenses.compares_norms():
                self._accepted.setdefault(kind, deque(maxlen=KEPT)).append(norm)

    def state_dict(self) -> State:
        """All norms as tensors."""
        return {kind: torch.tensor([*norms], dtype=torch.float64) for kind, norms in self._accepted.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""
        self._accepted = {kind: deque(norms.tolist(), maxlen=KEPT) for kind, norms in state.items()}


def kind_of(phase: str, stream: str, *, first: bool) -> str:
    """The kind of a vector. A client's first difference from a shared state is the whole state, so it is another kind."""
    return f"{'first' if first and stream not in (MODEL, BUFFERS) else phase}/{stream}"


def _stream(kind: str) -> str:
    return kind.rpartition("/")[2]
