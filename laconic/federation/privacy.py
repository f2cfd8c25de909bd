"""The privacy loss epsilon of a run, by the Rényi accountant of dp-accounting (extra `privacy`), and what it assumes.

Every round releases a sum of clipped updates plus Gaussian noise, whose standard deviation is `noise` times the clipping
norm. The number of clients N is public. With full participation or `sampling = "poisson"`, neighboring federations differ by
one client whose updates are left out ("zero-out", Kairouz et al., "Practical and private (deep) learning without sampling or
shuffling", ICML 2021). With a fixed number of participants they differ by replacing one client, which changes the sum by up
to twice the clipping norm (Wang, Balle and Kasiviswanathan, "Subsampled Renyi differential privacy", AISTATS 2019).

The accountant assumes that, given the models released so far, the other clients send the same whether or not this client
takes part. Every part states whether it keeps this (`Part.sensitivity`), and `check_noise` asks.

A client's state may depend on the rounds in which it took part before. Independent draws (poisson) allow this: whatever the
state of a client, adding it changes the sum by at most the clip with probability q, and the Rényi divergence of a mixture is
at most that of its worst component. A fixed number of participants does not: the states of all others together tell whether
this client took part earlier, and such hindsight is not covered by the bound for sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from laconic.algorithms.algorithm import Algorithm
from laconic.core.errors import ConfigError, missing_extra
from laconic.core.part import BOUNDED, STATEFUL, stated_sensitivity
from laconic.federation.settings import AnySampling, Defenses, Weighting

ORDERS = (*range(2, 64), 128, 256, 512)
"""The orders of the Rényi divergence. Integers only: the series of fractional orders do not always converge."""


def check_noise(
    defenses: Defenses,
    algorithm: Algorithm,
    sampling: AnySampling,
    weighting: Weighting,
    *,
    fixed_number: bool,
    quorum: float | None,
) -> None:
    """Raise `ConfigError` for parts and settings with which the reported epsilon would not hold.

    Args:
        fixed_number: Whether a fixed number of participants, fewer than all, is drawn.
    """
    for reason in _violations(defenses, sampling, weighting, quorum):
        raise ConfigError(f"defense.noise = {defenses.noise:g}: {reason}")
    for slot, part in algorithm.parts().items():
        sensitivity = stated_sensitivity(part)
        setting = f"defense.noise = {defenses.noise:g}: not possible with {slot} '{part.name}'"
        if sensitivity not in (BOUNDED, STATEFUL):
            raise ConfigError(f"{setting}: {sensitivity}")
        if sensitivity == STATEFUL and fixed_number:
            reason = "clients remember when they took part, so a fixed number of participants tells who else did"
            raise ConfigError(f"{setting} and sampling = '{sampling}': {reason}; use sampling = 'poisson'")
    if algorithm.optimizer.needs_path and algorithm.method.parameters().get("local_epochs") is not None:
        reason = "the step would depend on the clients' numbers of examples, which the noise does not hide"
        raise ConfigError(
            f"defense.noise = {defenses.noise:g}: optimizer.noise_limit is not possible with method.local_epochs: "
            f"{reason}; use local_steps"
        )


def _violations(defenses: Defenses, sampling: AnySampling, weighting: Weighting, quorum: float | None) -> Iterator[str]:
    """What the settings of the run violate."""
    if not isinstance(defenses.clip, float):
        yield "noise needs updates of bounded norm: set clip, as in --clip-updates 1"
    if defenses.refuse == "auto":
        reason = "one client's update would decide whether another's is refused, which the noise does not hide"
        yield f"refuse = 'auto' is not allowed: {reason}; give a norm"
    if defenses.aggregate != "mean":
        yield f"aggregate = '{defenses.aggregate}' is not allowed: the noise is calibrated for the mean"
    if weighting != "uniform":
        yield f"weighting = '{weighting}' gives some clients more weight; uniform is allowed"
    if sampling == "weighted" or not isinstance(sampling, str):
        yield "sampling by weights or given probabilities draws some clients more often; uniform or poisson is allowed"
    if quorum is not None:
        yield f"quorum = {quorum:g} is not allowed: a fast client would push another one out of the sum; use 1"


@dataclass(frozen=True)
class Privacy:
    """The settings of a run that its privacy loss depends on."""

    noise: float
    delta: float
    sampling: AnySampling
    participants: int
    clients: int

    def __post_init__(self) -> None:
        _accounting()

    def epsilon(self, rounds: int) -> float:
        """The privacy loss after `rounds` rounds. Rounds without any update count too.

        >>> round(Privacy(1.0, 1e-5, "poisson", 10, 100).epsilon(50), 2)
        6.02
        """
        accounting = _accounting()
        relation = accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = accounting.GaussianDpEvent(self.noise)
        if self.participants < self.clients and self.sampling == "poisson":
            event = accounting.PoissonSampledDpEvent(self.participants / self.clients, event)
        elif self.participants < self.clients:
            relation = accounting.NeighboringRelation.REPLACE_ONE
            event = accounting.GaussianDpEvent(self.noise / 2)
            event = accounting.SampledWithoutReplacementDpEvent(self.clients, self.participants, event)
        accountant = accounting.rdp.RdpAccountant(ORDERS, neighboring_relation=relation)
        accountant.compose(event, rounds)
        return float(accountant.get_epsilon(self.delta))


def _accounting() -> Any:
    try:
        import dp_accounting  # late: an extra
        import dp_accounting.rdp
    except ImportError as error:
        raise missing_extra(f"dp_noise needs the extra privacy ({error})", "privacy") from None
    return dp_accounting
