"""What a federation concludes from refused and missing replies."""

from __future__ import annotations

from logging import getLogger

from laconic.federation.policy import ExchangeReport, Outcome, Refusal, ReplyPolicy
from laconic.flower.roster import Roster
from laconic.run.training import DIVERGENCE_HINT, Diverged

LOG = getLogger("flwr.laconic")
UNSTABLE = {"not finite", "exploding"}
"""The reasons for which honest updates are refused when training diverges."""


class NodePolicy(ReplyPolicy):
    """Blocks nodes that send bad replies, tells them from diverged training, and repeats rounds without an answer."""

    def __init__(self, roster: Roster, *, repeat: bool) -> None:
        super().__init__(roster.blocklist)
        self.roster = roster
        self._repeat = repeat
        """Whether a round that nobody answers is repeated; with privacy noise it is not."""
        self._unstable: dict[int, int] = {}
        """By client: its violations for unstable updates since the last exchange with an answer."""

    def judge(self, report: ExchangeReport) -> Outcome:
        """Where nobody's answer counts, training has diverged, or the round is repeated."""
        unstable = [refusal for refusal in report.refusals if refusal.error.reason in UNSTABLE]
        if report.answered:
            self._unstable = {}
        elif unstable:
            self._stop_if_diverged(report.round, unstable)
        super().judge(report)
        # A client that was heard once cannot be asked the same again, so later exchanges are not repeated.
        unanswered = not report.answered and report.exchange == 0 and report.participants
        return Outcome.RETRY if self._repeat and unanswered else Outcome.PROCEED

    def _stop_if_diverged(self, round: int, unstable: list[Refusal]) -> None:
        """One client alone may be at fault where there are others. Two clients, or all there are, are not."""
        for refusal in unstable:
            self._unstable[refusal.client] = self._unstable.get(refusal.client, 0) + 1
        others = {*self.roster.clients()} - {*self._unstable}
        if others and len(self._unstable) < 2:
            return
        for refusal in unstable:
            LOG.warning("laconic: the reply of %s was refused: %s", self.roster.name(refusal.client), refusal.error)
            self._unstable[refusal.client] -= 1
        for client, count in self._unstable.items():
            # Violations from when the client was the only one.
            self.blocklist.clear(client, count)
        reasons = " or ".join(sorted({refusal.error.reason for refusal in unstable}))
        raise Diverged(f"every update in round {round + 1} is {reasons}: {DIVERGENCE_HINT}")
