"""The server's reaction to refused and missing replies: which clients to block, and whether to repeat the round."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from laconic.core.errors import PacketError
from laconic.federation.blocklist import Blocklist


class Outcome(Enum):
    """The outcome of an exchange or a round."""

    PROCEED = auto()
    """The round continues."""
    RETRY = auto()
    """The round must be repeated."""


@dataclass(frozen=True)
class Refusal:
    """A refused reply and the reason."""

    client: int
    error: PacketError


@dataclass(frozen=True)
class ExchangeReport:
    """The replies and refusals of one exchange."""

    round: int
    exchange: int
    participants: Sequence[int]
    answered: Sequence[int]
    """Clients whose reply was used."""
    refusals: Sequence[Refusal]
    unanswered: Collection[int] = ()
    """Clients that were asked and sent no valid reply, unless a quorum ended the exchange before they could."""


class ReplyPolicy:
    """Blocks clients after a number of violations. Every round proceeds."""

    def __init__(self, blocklist: Blocklist) -> None:
        self.blocklist = blocklist

    def judge(self, report: ExchangeReport) -> Outcome:
        """Record the violations of an exchange, and decide whether the round proceeds."""
        self.blocklist.record_violations((refusal.client, refusal.error) for refusal in report.refusals)
        return Outcome.PROCEED
