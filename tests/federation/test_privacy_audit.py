"""An empirical audit of epsilon: can an attacker who sees every noisy sum tell whether the canary took part?

Several hundred short runs with the canary and as many without give a lower bound on epsilon (Jagielski, Ullman and Oprea,
"Auditing differentially private machine learning", NeurIPS 2020): any test satisfies TPR <= e^epsilon FPR + delta, and the
Clopper-Pearson limits of both rates hold together with 95 % confidence. The attacker knows all settings and everybody's
updates. Its statistic is the projection of a run's sums on what the canary changes; it picks the threshold on other runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import beta

from laconic.core.randomness import Randomness
from laconic.federation.settings import Defenses
from laconic.federation.update_norms import UpdateNormFilter
from laconic.run.simulation import Simulation
from tests.federation.scripted import ACCEPTED, CANARY, CLIP, noisy_sums, private

pytestmark = pytest.mark.long

CLIENTS, ROUNDS, DELTA = 4, 3, 1e-3
CHOOSING, JUDGING = 100, 300
"""Runs of each kind that choose the threshold, and others that judge it. With 300 the bound is at most 4.2."""


@dataclass
class Audit:
    """Runs of one simulation with and without the canary, each with its own secret."""

    simulation: Simulation

    def __post_init__(self) -> None:
        self.start, self.draw = self.simulation.state_dict(), self.simulation.server.draw_participants

    def sums(self, secret: int, canary: bool) -> torch.Tensor:
        """[rounds * d]: what the attacker sees of one run."""
        self.simulation.load_state_dict(self.start)
        server = self.simulation.server
        server.secret = Randomness(secret)
        server.draw_participants = lambda: [client for client in self.draw() if canary or client != CANARY]
        return noisy_sums(self.simulation, ROUNDS).flatten()

    def lower_bound(self) -> float:
        """A lower bound on epsilon with 95 % confidence."""
        # With equal secrets, samples and noise are the same, and only the canary makes a difference.
        signal = sum(self.sums(secret, True) - self.sums(secret, False) for secret in range(20))
        scores = {
            canary: np.array(
                [float(self.sums(1000 + 2 * run + canary, canary) @ signal) for run in range(CHOOSING + JUDGING)]
            )
            for canary in (False, True)
        }
        chosen = [*scores[False][:CHOOSING], *scores[True][:CHOOSING]]
        threshold = max(chosen, key=lambda at: max(bounds(scores, slice(CHOOSING), at)))
        return max(bounds(scores, slice(CHOOSING, CHOOSING + JUDGING), threshold))


def bounds(scores: dict[bool, np.ndarray], part: slice, threshold: float) -> tuple[float, float]:
    """The lower bounds on epsilon of the test "score > threshold" and of its complement."""
    above = {canary: int((values[part] > threshold).sum()) for canary, values in scores.items()}
    runs = len(scores[True][part])
    return bound(above[True], above[False], runs), bound(runs - above[False], runs - above[True], runs)


def bound(hits: int, false_alarms: int, runs: int, confidence: float = 0.95) -> float:
    """log((TPR - delta) / FPR), with the lower limit of TPR and the upper limit of FPR.

    Two complementary tests are judged, so each of the four limits fails with a quarter of the allowed probability.
    """
    error = (1 - confidence) / 4
    lowest = beta.ppf(error, hits, runs - hits + 1) if hits else 0.0
    highest = beta.ppf(1 - error, false_alarms + 1, runs - false_alarms) if false_alarms < runs else 1.0
    return max(0.0, math.log((lowest - DELTA) / highest)) if lowest > DELTA else 0.0


def audited(name: str, participants: int, **broken: float) -> tuple[float, float]:
    """The lower bound of the audit and the reported epsilon. `broken` changes the defenses behind the accountant's back."""
    defense = {"clip": CLIP, "noise": 2.0, "delta": DELTA}
    simulation = private(ACCEPTED[name], clients=CLIENTS, rounds=ROUNDS, participants=participants, defense=defense)
    assert simulation.privacy is not None
    reported = simulation.privacy.epsilon(ROUNDS)
    simulation.server.defenses = defenses = Defenses(**defense | broken)
    simulation.server.norms = UpdateNormFilter(defenses)
    try:
        return Audit(simulation).lower_bound(), reported
    finally:
        simulation.close()


@pytest.mark.parametrize("participants", [CLIENTS, CLIENTS - 1], ids=["all", "poisson"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_no_attacker_finds_more_than_epsilon(name: str, participants: int) -> None:
    found, reported = audited(name, participants)
    assert found <= reported, f"the audit found {found:.2f}"


@pytest.mark.parametrize("broken", [{"noise": 1e-3}, {"clip": 10.0, "noise": 0.2}], ids=["no noise", "no clip"])
@pytest.mark.parametrize("name", ["dense", "error feedback, top_k", "accelerated with memory"])
def test_the_audit_notices_what_is_broken(name: str, broken: dict) -> None:
    """Hardly any noise; then noise for the clip that was promised, and updates of ten times that norm."""
    found, reported = audited(name, CLIENTS, **broken)
    assert found > reported, f"the audit found {found:.2f}"
