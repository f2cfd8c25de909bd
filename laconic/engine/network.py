"""Simulated seconds: how long every message would take at each client's bandwidth and latency, and who is too late.

Clients are independent of each other, so an exchange takes as long as its slowest client. A client's time is

    latency + bytes down / its bandwidth down + gradients x compute + latency + bytes up / its bandwidth up

With a deadline, whoever would answer after it is cut off: the reply never arrives, so the client's round is not committed
(design rule 5), and the round ends at the deadline. Rates follow from the seed and the client's number, or from a file.
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
    """One client's, in bits a second and seconds."""

    up: float
    down: float
    latency: float


class Connections:
    """Every client's connection in every round."""

    def __init__(self, network: Network, randomness: Randomness) -> None:
        self._randomness = randomness
        self._spreads = {
            Draw.BANDWIDTH_UP: Spread.parse(network.bandwidth_up, "bandwidth")
            if network.bandwidth_up
            else Spread(math.inf),
            Draw.BANDWIDTH_DOWN: Spread.parse(network.bandwidth_down, "bandwidth")
            if network.bandwidth_down
            else Spread(math.inf),
            Draw.LATENCY: Spread.parse(network.latency, "latency"),
        }
        self._trace = Trace(Path(network.trace)) if network.trace else None
        self._drawn = lru_cache(maxsize=100_000)(self._draw)

    def of(self, client: int, round: int) -> Connection:
        """The client's connection; a trace wins over what is said of all."""
        return self._drawn(client) if self._trace is None else self._trace.of(client, round, self._drawn(client))

    def _draw(self, client: int) -> Connection:
        drawn = {purpose: self._value(spread, purpose, client) for purpose, spread in self._spreads.items()}
        return Connection(up=drawn[Draw.BANDWIDTH_UP], down=drawn[Draw.BANDWIDTH_DOWN], latency=drawn[Draw.LATENCY])

    def _value(self, spread: Spread, purpose: Draw, client: int) -> float:
        if spread.deviation == 0:
            return spread.median
        draw = self._randomness.numpy(purpose, client=client).normal()
        return spread.median * math.exp(spread.deviation * float(draw))


class Trace:
    """Measured connections. Client i has the rows of the i-th client of the file, counted round and round."""

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
            # Rows that say neither client nor round are a client each; with rounds alone they are one client's story.
            name = row.get("client") or ("" if "round" in row else str(number))
            by_client.setdefault(name, []).append(entry)
        self._clients = [sorted(entries, key=lambda entry: entry[0]) for entries in by_client.values()]

    def of(self, client: int, round: int, otherwise: Connection) -> Connection:
        """The last row whose round has come; what it does not say is as for all."""
        entries = self._clients[client % len(self._clients)]
        begun = [values for since, values in entries if since <= round]
        return otherwise._replace(**begun[-1]) if begun else otherwise


def _values(row: dict[str, str]) -> dict[str, float]:
    kinds = {"up": "bandwidth", "down": "bandwidth", "latency": "latency"}
    return {name: quantity(row[name], kind) for name, kind in kinds.items() if row.get(name)}


class NetworkEngine(SimulatedEngine):
    """An engine whose messages take time."""

    def __init__(self, engine: SimulatedEngine, network: Network, randomness: Randomness) -> None:
        self.engine, self.network = engine, network
        self.connections = Connections(network, randomness)
        self.seconds = 0.0
        """Simulated seconds since the start."""
        self.cut_off = 0
        """Clients of the present round that were too late."""
        self._spent = 0.0
        """Of it, in the present round."""

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """The replies that are in time, in order."""
        asked: dict[int, Instruction] = {}
        slowest = 0.0
        for reply in self.engine.run(self._noted(instructions, asked)):
            instruction = asked.get(reply.client)
            if instruction is None or instruction.round != reply.round:
                # A second copy, or one that comes from an earlier round: nobody has waited for it.
                yield reply
                continue
            took = self._seconds(instruction, reply)
            if self.network.deadline is not None and self._spent + took > self.network.deadline:
                self.cut_off += 1
                continue
            slowest = max(slowest, took)
            del asked[reply.client]
            yield reply
        if self.network.deadline is not None and asked:
            # Somebody has not answered, and only the deadline tells.
            slowest = self.network.deadline - self._spent
        self._spent += slowest
        self.seconds += slowest

    def _noted(self, instructions: Iterable[Instruction], asked: dict[int, Instruction]) -> Iterator[Instruction]:
        for number, instruction in enumerate(instructions):
            if number == 0 and instruction.exchange == 0:
                self._spent, self.cut_off = 0.0, 0
            asked[instruction.client] = instruction
            yield instruction

    def _seconds(self, instruction: Instruction, reply: Reply) -> float:
        connection = self.connections.of(reply.client, instruction.round)
        bits_down, bits_up = (8 * sum(map(len, message.packets)) for message in (instruction, reply))
        travel = 2 * connection.latency + bits_down / connection.down + bits_up / connection.up
        return travel + self.network.compute * reply.samples
