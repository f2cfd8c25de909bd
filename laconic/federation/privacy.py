"""The privacy loss epsilon of a run, by the Rényi accountant of dp-accounting (extra `privacy`).

Every round releases a sum of clipped updates plus Gaussian noise, whose standard deviation is `noise` times the clipping
norm. With full participation or `sampling = "poisson"`, neighboring federations differ by adding or removing one client.
With a fixed number of participants they differ by replacing one client, which changes the sum by up to twice the clipping
norm (Wang, Balle and Kasiviswanathan, "Subsampled Renyi differential privacy", AISTATS 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from laconic.core.errors import ConfigError
from laconic.federation.settings import Sampling

ORDERS = (*range(2, 64), 128, 256, 512)
"""The orders of the Rényi divergence. Integers only: the series of fractional orders do not always converge."""


@dataclass(frozen=True)
class Privacy:
    """The settings of a run that its privacy loss depends on."""

    noise: float
    delta: float
    sampling: Sampling
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
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise ConfigError(
            f"dp_noise needs the extra privacy: in the folder of the clone, pip install -e '.[privacy]' ({error})"
        ) from None
    return dp_accounting
