"""What clients and server remember about what was not sent: one entry per client, kept while it is absent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .compressors import Compress, dense, fixed
from .problem import PerClient, Vector

Threshold = float | Callable[[int], float]
"""A number, or threshold(round), as for C/(alpha n) with n the clients invited in that round."""


def at_round(threshold: Threshold, round: int) -> float:
    return threshold(round) if callable(threshold) else threshold


def norm(x: Vector) -> float:
    return float(np.sqrt(sum(value**2 for value in x)))


class Uplink:
    """prepare gives (x, y): what should arrive and what would; remember is told what counts as arrived."""

    def __init__(self) -> None:
        self.memory: PerClient = {}
        self.reference: PerClient = {}
        self.fired: list[tuple[int, int]] = []

    def prepare(self, round: int, client: int, update: Vector) -> tuple[Vector, Vector]:
        raise NotImplementedError

    def remember(self, round: int, client: int, x: Vector, arrived: Vector) -> None:
        raise NotImplementedError

    def send(self, round: int, client: int, update: Vector) -> Vector:
        """Returns what the server uses for this client's update."""
        x, y = self.prepare(round, client, update)
        self.remember(round, client, x, y)
        return y


class Plain(Uplink):
    """C(u), and no memory. Dense by default."""

    def __init__(self, compress: Compress | None = None) -> None:
        super().__init__()
        self.compress = compress or fixed(dense)

    def prepare(self, round: int, client: int, update: Vector) -> tuple[Vector, Vector]:
        return update, self.compress(round, client, update)

    def remember(self, round: int, client: int, x: Vector, arrived: Vector) -> None:
        return


class ErrorFeedback(Uplink):
    """x = u + m; send C(x); m = x - arrived (Fed-EF, Algorithm 1, lines 11 and 12; FedCAMS, Algorithm 2).

    With restart_after = S, m = 0 when it was last updated more than S rounds ago (Fed-EF, section 5), from
    round restart_from on; rounds count from 0. `discarded` adds up what was thrown away.
    """

    def __init__(self, compress: Compress, restart_after: int | None = None, restart_from: int = 0) -> None:
        super().__init__()
        self.compress = compress
        self.restart_after = restart_after
        self.restart_from = restart_from
        self.last_update: dict[int, int] = {}
        self.discarded: PerClient = {}

    def prepare(self, round: int, client: int, update: Vector) -> tuple[Vector, Vector]:
        memory = self.memory.get(client, np.zeros_like(update))
        if client in self.memory and self.restart_after is not None and round >= self.restart_from:
            age = round - self.last_update[client]
            if age > self.restart_after:
                self.discarded[client] = self.discarded.get(client, np.zeros_like(update)) + memory
                memory = np.zeros_like(update)
        x = update + memory
        return x, self.compress(round, client, x)

    def remember(self, round: int, client: int, x: Vector, arrived: Vector) -> None:
        self.memory[client] = x - arrived
        self.last_update[client] = round


class Lazy(Uplink):
    """NLA (FedBNLACA, equation (3), Examples 1 and 2), with r the last vector that this client transmitted.

    If ||y - r|| <= threshold ||r||: a skip, the server uses r again. Otherwise y is sent and r = y. The first
    is always sent. Error feedback inside sees what the server used (Algorithm 3, line 13).
    """

    def __init__(self, inner: Uplink, threshold: Threshold) -> None:
        super().__init__()
        self.inner = inner
        self.memory = inner.memory
        self.threshold = threshold

    def send(self, round: int, client: int, update: Vector) -> Vector:
        x, y = self.inner.prepare(round, client, update)
        used = y
        if client in self.reference:
            r = self.reference[client]
            if norm(y - r) <= at_round(self.threshold, round) * norm(r):
                used = r
                self.fired.append((round, client))
        self.reference[client] = used
        self.inner.remember(round, client, x, used)
        return used


class Shifted(Uplink):
    """send C(u - h_i); used = h_i + decoded; h_i += rate decoded, h_i = 0 at first (contenders.md, "Shifted uplink").

    DIANA's shifts with updates in the place of gradients; DIANA's server keeps the mean of the shifts only. There is no
    paper of exactly this link.
    """

    def __init__(self, compress: Compress, rate: float) -> None:
        super().__init__()
        self.compress = compress
        self.rate = rate
        self.shifts: PerClient = {}

    def send(self, round: int, client: int, update: Vector) -> Vector:
        h = self.shifts.get(client, np.zeros_like(update))
        decoded = self.compress(round, client, update - h)
        self.shifts[client] = h + self.rate * decoded
        return h + decoded


class Accelerated(Uplink):
    """AA (FedBNLACA, equation (4), Examples 4 and 5): when the same test holds, the server uses r + y.

    r = y always. Error feedback inside sees y (feedback "sent") or r + y (feedback "used").
    """

    def __init__(self, inner: Uplink, threshold: Threshold, feedback: str = "sent") -> None:
        super().__init__()
        self.inner = inner
        self.memory = inner.memory
        self.threshold = threshold
        self.feedback = feedback

    def send(self, round: int, client: int, update: Vector) -> Vector:
        x, y = self.inner.prepare(round, client, update)
        used = y
        if client in self.reference:
            r = self.reference[client]
            if norm(y - r) <= at_round(self.threshold, round) * norm(r):
                used = r + y
                self.fired.append((round, client))
        self.reference[client] = y
        self.inner.remember(round, client, x, used if self.feedback == "used" else y)
        return used


class Downlink:
    """Dense: a client starts from w, and the server takes the optimizer's step as it is."""

    def __init__(self) -> None:
        self.mirrors: PerClient = {}
        self.phi: Vector | None = None

    def start(self, round: int, client: int, w: Vector) -> Vector:
        return w

    def advance(self, round: int, step: Vector) -> Vector:
        return step


class Broadcast(Downlink):
    """Two-way Fed-EF (Algorithm 3, as its proof needs it): H = C(s + phi); phi += s - H; all add H to w."""

    def __init__(self, compress: Compress) -> None:
        super().__init__()
        self.compress = compress

    def advance(self, round: int, step: Vector) -> Vector:
        phi = np.zeros_like(step) if self.phi is None else self.phi
        H = self.compress(round, -1, step + phi)
        self.phi = phi + step - H
        return H


class Mirrored(Downlink):
    """FedBNLACA and FedBACA (Algorithm 2): the server knows the client's model v_i and sends C(w - v_i).

    v_i starts at the initial model. With a threshold, a ||C(w - v_i)|| <= threshold ||v_i|| is not sent.
    literal: as printed, theta_hat = C(w + E_i), judged by ||theta_hat - v_i||; E_i = w + E_i - v_i.
    """

    def __init__(
        self, initial: Vector, compress: Compress, threshold: Threshold | None = None, literal: bool = False
    ) -> None:
        super().__init__()
        self.initial = initial
        self.compress = compress
        self.threshold = threshold
        self.literal = literal
        self.errors: PerClient = {}

    def start(self, round: int, client: int, w: Vector) -> Vector:
        v = self.mirrors.get(client, self.initial)
        E = self.errors.get(client, np.zeros_like(w))
        if self.literal:
            received = self.compress(round, client, w + E)
            change = received - v
        else:
            change = self.compress(round, client, w - v)
            received = v + change
        if self.threshold is not None and norm(change) <= at_round(self.threshold, round) * norm(v):
            received = v
        if self.literal:
            self.errors[client] = w + E - received
        self.mirrors[client] = received
        return received
