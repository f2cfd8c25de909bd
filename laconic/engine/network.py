"""A simulated network: the duration of every message by the client's bandwidth and latency, and an optional deadline.

Clients are independent of each other, so an exchange takes as long as its slowest client. The time of a client is

    latency + bytes down / its bandwidth down + gradients x compute + latency + bytes up / its bandwidth up

With a deadline, replies that would arrive later are dropped, so the client's round is not committed, and the
round ends at the deadline. Connections are drawn from the seed and the client's id, or read from a file.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from laconic.core.errors import ConfigError
from laconic.core.randomness import Draw, Randomness
from laconic.engine.settings import Network, Spread, quantity
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.messages import Instruction, Reply


class Connection(NamedTuple):
    """The bandwidths of one client in bits per second, and its latency in seconds."""

    up: float
    down: float
    latency: float


class Connections:
    """The connection of every client in every round."""

    def __init__(self, network: Network, randomness: Randomness) -> None:
        def bandwidth(text: str | None) -> Spread:
            return Spread.parse(text, "bandwidth") if text else Spread(math.inf)

        self._randomness = randomness
        self._up, self._down = bandwidth(network.bandwidth_up), bandwidth(network.bandwidth_down)
        self._latency = Spread.parse(network.latency, "latency")
        self._trace = Trace(Path(network.trace)) if network.trace else None
        self._drawn = lru_cache(maxsize=100_000)(self._draw)

    def of(self, client: int, round: int) -> Connection:
        """The client's connection. Values of the trace take precedence over drawn ones."""
        return self._drawn(client) if self._trace is None else self._trace.of(client, round, self._drawn(client))

    def _draw(self, client: int) -> Connection:
        return Connection(
            up=self._value(self._up, Draw.BANDWIDTH_UP, client),
            down=self._value(self._down, Draw.BANDWIDTH_DOWN, client),
            latency=self._value(self._latency, Draw.LATENCY, client),
        )

    def _value(self, spread: Spread, purpose: Draw, client: int) -> float:
        if spread.deviation == 0:
            return spread.median
        draw = self._randomness.numpy(purpose, client=client).normal()
        return spread.median * math.exp(spread.deviation * float(draw))


class Trace:
    """Measured connections. Client i uses the rows of client i mod n, where n is the number of clients in the file."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise ConfigError(f"network.trace = '{path}': {error.strerror}") from None
        if not rows or not set(Connection._fields) & rows[0].keys():
            raise ConfigError(f"network.trace = '{path}': no rows with a column {', '.join(Connection._fields)}")
        by_client: dict[str, list[tuple[int, dict[str, float]]]] = {}
        for number, row in enumerate(rows, 2):
            try:
                entry = int(row.get("round") or 0), _values(row)
            except ValueError as error:
                raise ConfigError(f"network.trace = '{path}', line {number}: {error}") from None
            # Without client and round columns every row is a client. With rounds only, all rows are one client.
            name = row.get("client") or ("" if "round" in row else str(number))
            by_client.setdefault(name, []).append(entry)
        self._clients = [sorted(entries, key=lambda entry: entry[0]) for entries in by_client.values()]

    def of(self, client: int, round: int, default: Connection) -> Connection:
        """The values of the last row that applies to the round, and `default` where it has none."""
        entries = self._clients[client % len(self._clients)]
        applicable = [values for first_round, values in entries if first_round <= round]
        return default._replace(**applicable[-1]) if applicable else default


def _values(row: dict[str, str]) -> dict[str, float]:
    kinds = {"up": "bandwidth", "down": "bandwidth", "latency": "latency"}
    return {name: quantity(row[name], kind) for name, kind in kinds.items() if row.get(name)}


class NetworkEngine(SimulatedEngine):
    """Wraps another engine and simulates the duration of its messages."""

    def __init__(self, engine: SimulatedEngine, network: Network, randomness: Randomness) -> None:
        self.engine, self.network = engine, network
        self.connections = Connections(network, randomness)
        self.seconds = 0.0
        """Simulated seconds since the start of the run."""
        self.cut_off = 0
        """The number of replies in the current round that missed the deadline."""
        self._round_seconds = 0.0
        """Simulated seconds since the start of the current round."""

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """The replies that arrive before the deadline, in order."""
        unanswered: dict[int, Instruction] = {}
        slowest = 0.0
        for reply in self.engine.run(self._record(instructions, unanswered)):
            instruction = unanswered.get(reply.client)
            if instruction is None or instruction.round != reply.round:
                # A duplicate or a reply of an earlier round takes no time: the server does not wait for it.
                yield reply
                continue
            duration = self._seconds(instruction, reply)
            if self.network.deadline is not None and self._round_seconds + duration > self.network.deadline:
                self.cut_off += 1
                continue
            slowest = max(slowest, duration)
            del unanswered[reply.client]
            yield reply
        if self.network.deadline is not None and unanswered:
            # The server waits for missing replies until the deadline.
            slowest = self.network.deadline - self._round_seconds
        self._round_seconds += slowest
        self.seconds += slowest

    def _record(self, instructions: Iterable[Instruction], unanswered: dict[int, Instruction]) -> Iterator[Instruction]:
        for index, instruction in enumerate(instructions):
            if index == 0 and instruction.exchange == 0:
                self._round_seconds, self.cut_off = 0.0, 0
            unanswered[instruction.client] = instruction
            yield instruction

    def _seconds(self, instruction: Instruction, reply: Reply) -> float:
        connection = self.connections.of(reply.client, instruction.round)
        bits_down, bits_up = (8 * sum(map(len, message.packets)) for message in (instruction, reply))
        travel = 2 * connection.latency + bits_down / connection.down + bits_up / connection.up
        return travel + self.network.compute * reply.samples
