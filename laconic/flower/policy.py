"""How a federation handles refused and missing replies."""

from __future__ import annotations

from logging import getLogger

from laconic.federation.blocklist import EXCUSED
from laconic.federation.blocklist import UNSTABLE as REPORTED
from laconic.federation.policy import ExchangeReport, Outcome, Refusal, ReplyPolicy
from laconic.flower.roster import Roster
from laconic.run.training import DIVERGENCE_HINT, Diverged

LOG = getLogger("flwr.laconic")
UNSTABLE = {"not finite": "not finite", "exploding": "exploding", REPORTED: "not finite"}
"""Reasons for which updates of honest clients are refused or not sent when training diverges, and their names in errors."""


class NodePolicy(ReplyPolicy):
    """Blocks nodes that send invalid replies, detects divergence, and repeats rounds without a valid reply."""

    def __init__(self, roster: Roster, *, repeat: bool) -> None:
        super().__init__(roster.blocklist)
        self.roster = roster
        self._repeat = repeat
        """Whether to repeat a round without a valid reply. With privacy noise it is not repeated."""
        self._unstable: dict[int, int] = {}
        """Clients with unstable updates since the last exchange with a valid reply, and their violations for them."""

    def judge(self, report: ExchangeReport) -> Outcome:
        """Without a valid reply, training has diverged or the round is repeated."""
        unstable = [refusal for refusal in report.refusals if refusal.error.reason in UNSTABLE]
        if report.answered:
            self._unstable = {}
        elif unstable:
            self._stop_if_diverged(report.round, unstable)
        super().judge(report)
        refused = {refusal.client for refusal in report.refusals if refusal.error.reason not in EXCUSED}
        self.roster.record_answers(report.answered, {*report.unanswered} - refused)
        # Clients have already answered the first exchange and cannot repeat it, so later exchanges are not repeated.
        unanswered = not report.answered and report.exchange == 0 and report.participants
        return Outcome.RETRY if self._repeat and unanswered else Outcome.PROCEED

    def _stop_if_diverged(self, round: int, unstable: list[Refusal]) -> None:
        """One unstable client among others may be faulty. If two clients, or all, are unstable, training has diverged."""
        for refusal in unstable:
            counts = refusal.error.reason not in EXCUSED
            self._unstable[refusal.client] = self._unstable.get(refusal.client, 0) + counts
        others = {*self.roster.clients()} - {*self._unstable}
        if others and len(self._unstable) < 2:
            return
        for refusal in unstable:
            LOG.warning("laconic: the reply of %s was refused: %s", self.roster.name(refusal.client), refusal.error)
            self._unstable[refusal.client] -= refusal.error.reason not in EXCUSED
        for client, count in self._unstable.items():
            # Violations of earlier exchanges, in which the client was the only unstable one.
            self.blocklist.clear(client, count)
        reasons = " or ".join(sorted({UNSTABLE[refusal.error.reason] for refusal in unstable}))
        raise Diverged(f"every update in round {round + 1} is {reasons}: {DIVERGENCE_HINT}")
