"""How much a model tells of one client: epsilon, by the accountant of dp-accounting (extra `privacy`).

Every round releases a sum of clipped updates with Gaussian noise, `noise` times the clipping length. Where all clients take
part, or each one by a coin of its own (`sampling = "poisson"`), neighbors are federations with and without one client.
Where a fixed number is drawn, they are federations in which one client is another; a sum then moves by up to twice the
clipping length (Wang, Balle and Kasiviswanathan, "Subsampled Renyi differential privacy", AISTATS 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from laconic.core.errors import ConfigError
from laconic.federation.settings import Sampling

ORDERS = (*range(2, 64), 128, 256, 512)
"""Of the Renyi divergence. Whole ones: the series of the others do not always converge."""


@dataclass(frozen=True)
class Privacy:
    """What an accountant must know of a run."""

    noise: float
    delta: float
    sampling: Sampling
    participants: int
    clients: int

    def __post_init__(self) -> None:
        _accounting()

    def epsilon(self, rounds: int) -> float:
        """After so many rounds. Every one counts, also those in which nobody was heard.

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
