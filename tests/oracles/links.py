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
    """x = u + e; send C(x); e = x - arrived (Fed-EF, Algorithm 1, lines 11 and 12; FedCAMS, Algorithm 2).

    With restart_after = S, e = 0 when it was last updated more than S rounds ago (Fed-EF, section 5), from
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
    is always sent. Error feedback inside sees what the server used (Algorithm 3, line 13), or with feedback "sent" the
    single-hat y of (D.1) and (E.1), e = Delta + e - Delta-hat, whether it was transmitted or not.
    """

    def __init__(self, inner: Uplink, threshold: Threshold, feedback: str = "used") -> None:
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
                used = r
                self.fired.append((round, client))
        self.reference[client] = used
        self.inner.remember(round, client, x, used if self.feedback == "used" else y)
        return used


class LAG(Uplink):
    """FedBNLACA's paper, equations (1) and (2), on updates y instead of gradients; m is the number of all clients.

    (1) ||y - r||^2 <= 1/(alpha^2 m^2) sum_{k=1}^R xi_k ||theta^{t+1-k} - theta^{t-k}||^2: a skip, r is used again.
    (2) the same with L^2 ||theta_m - theta^t||^2 on the left, theta_m the model of the last transmission.
    theta are the models that the client got, so `models[round]` must be known: full participation and a dense downlink.
    """

    def __init__(
        self,
        models: list[Vector],
        clients: int,
        alpha: float,
        window: int,
        xi: float | list[float],
        smoothness: float | None = None,
    ) -> None:
        super().__init__()
        self.models = models
        self.clients = clients
        self.alpha = alpha
        self.window = window
        self.xi = xi if isinstance(xi, list) else [xi] * window
        self.smoothness = smoothness
        self.sent_at: PerClient = {}

    def send(self, round: int, client: int, update: Vector) -> Vector:
        theta = self.models
        total = 0.0
        for k in range(1, self.window + 1):
            if round - k >= 0:
                total = total + self.xi[k - 1] * norm(theta[round + 1 - k] - theta[round - k]) ** 2
        right = total / (self.alpha**2 * self.clients**2)
        if client in self.reference:
            if self.smoothness is None:
                left = norm(update - self.reference[client]) ** 2
            else:
                left = self.smoothness**2 * norm(self.sent_at[client] - theta[round]) ** 2
            if left <= right:
                self.fired.append((round, client))
                return self.reference[client]
        self.reference[client] = update
        self.sent_at[client] = theta[round].copy()
        return update


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
    """FedBNLACA and FedBACA (Algorithm 2): the server knows the client's model z_i and sends C(w - z_i).

    z_i starts at `initial`, the initial model or 0 (Algorithm 2, input). With a threshold, a ||C(w - z_i)|| <= threshold
    ||z_i|| is not sent (Example 3); or, accelerated (Example 6), added together with the increment before it.
    literal: as printed, theta_hat = C(w + E_i), judged by ||theta_hat - z_i||; E_i = w + E_i - z_i; accelerated as printed,
    the client gets z_i + theta_hat.
    """

    def __init__(
        self,
        initial: Vector,
        compress: Compress,
        threshold: Threshold | None = None,
        literal: bool = False,
        accelerated: bool = False,
    ) -> None:
        super().__init__()
        self.initial = initial
        self.compress = compress
        self.threshold = threshold
        self.literal = literal
        self.accelerated = accelerated
        self.errors: PerClient = {}
        self.increments: PerClient = {}
        self.fired: list[tuple[int, int]] = []

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
            self.fired.append((round, client))
            if not self.accelerated:
                received = v
            elif self.literal:
                received = v + received
            else:
                received = v + self.increments.get(client, np.zeros_like(w)) + change
        self.increments[client] = change
        if self.literal:
            self.errors[client] = w + E - received
        self.mirrors[client] = received
        return received
