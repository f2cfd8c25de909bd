"""Records: what is known of each round, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laconic.federation.ledger import Ledger

Record = dict[str, Any]
"""One round as plain values: a line of metrics.jsonl. Costs are totals since the start; `streams` covers one round."""
DIAGNOSTICS = (
    *("skip_rate", "skip_rate_down", "acceleration_rate", "memory_norm", "server_memory_norm"),
    *("q_c", "q_a", "gamma", "lambda", "gradient_norm_squared", "objective", "epsilon"),
)
"""Keys of optional measurements."""
OTHER_KEYS = {
    *("round", "participants", "training_loss", "seconds", "streams", "refused", "clients"),
    *("skipped", "skipped_down", "accelerated", "lost", "clipped", "simulated_seconds", "cut_off", "collapsed"),
    *("clients_evaluated", "clients_left_out", "evaluations_refused"),
    *DIAGNOSTICS,
    *Ledger().totals(),
}
"""Keys of a record that are not metrics of the task."""
NESTED = ("streams", "clients")
"""Keys whose values are tables: traffic by stream, and clients by phase."""
OF_CLIENTS = ("clients_", "client_", "worst_client_", "personal_", "worst_personal_")
"""Prefixes of metrics that are measured on clients' examples."""


def metrics_of(record: Record) -> dict[str, float]:
    """The task's metrics in a record; empty if the round was not evaluated."""
    return {name: value for name, value in record.items() if name not in OTHER_KEYS}


TROUBLES = {"cut_off": "cut off", "lost": "lost state", "refused": "refused", "collapsed": "collapsed"}
"""Failures in a round: the key in a record, and its title in tables."""


def troubles(history: Sequence[Record]) -> dict[str, int]:
    """The number of failures of each kind, without those that are 0.

    >>> troubles([{"cut_off": 2}, {"refused": {"late": 1, "checksum": 2}}])
    {'cut_off': 2, 'refused': 3}
    """
    counts = {name: sum(_count(record.get(name, 0)) for record in history) for name in TROUBLES}
    return {name: count for name, count in counts.items() if count}


def _count(value: int | str | dict[str, int]) -> int:
    if isinstance(value, str):
        return 1
    return sum(value.values()) if isinstance(value, dict) else value
