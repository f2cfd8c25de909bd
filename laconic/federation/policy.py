"""What follows from refused and missing replies: who is blocked, and whether the round goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from laconic.core.errors import PacketError
from laconic.federation.blocklist import Blocklist


class Outcome(Enum):
    """How an exchange, or a round, has ended."""

    PROCEED = auto()
    """As it should."""
    RETRY = auto()
    """Nobody's answer counts: the round must be repeated."""


@dataclass(frozen=True)
class Refusal:
    """A reply that was refused, and why."""

    client: int
    error: PacketError


@dataclass(frozen=True)
class ExchangeReport:
    """One exchange after its last reply."""

    round: int
    exchange: int
    participants: Sequence[int]
    answered: Sequence[int]
    """Clients whose reply was used."""
    refusals: Sequence[Refusal]


class ReplyPolicy:
    """Blocks clients after a number of violations; every exchange proceeds."""

    def __init__(self, blocklist: Blocklist) -> None:
        self.blocklist = blocklist

    def judge(self, report: ExchangeReport) -> Outcome:
        """Draw the conclusions from an exchange."""
        for refusal in report.refusals:
            self.blocklist.record_violation(refusal.client, refusal.error)
        return Outcome.PROCEED
