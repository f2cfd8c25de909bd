"""Examples that every client holds out: it does not train on them, and the model is evaluated on them client by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

import numpy as np

from laconic.core.errors import ConfigError
from laconic.core.randomness import Draw, Randomness
from laconic.data.federated import ClientData, Indices, sizes_of


@runtime_checkable
class Selectable(Protocol):
    """The capability to leave out examples of clients."""

    def selected(self, positions: Sequence[Indices]) -> Self:
        """The same clients with some of their examples: those at `positions[client]`, in this order."""


def hold_out(data: ClientData, share: float) -> tuple[ClientData, list[Indices]]:
    """The data that clients train on, and the positions of the examples that each client holds out.

    A client with too few examples holds out none. The choice does not depend on the run's seed, so that runs with different
    seeds are evaluated on the same examples.
    """
    if not isinstance(data, Selectable):
        raise ConfigError("client_eval: this data cannot leave out examples: it needs a method `selected(positions)`")
    kept: list[Indices] = []
    held: list[Indices] = []
    for client, size in enumerate(sizes_of(data).tolist()):
        order = Randomness(0).numpy(Draw.CLIENT_EVALUATION, client=client).permutation(size)
        count = min(round(share * size), max(0, size - 1))
        kept.append(np.sort(order[count:]))
        held.append(np.sort(order[:count]))
    if not any(map(len, held)):
        raise ConfigError(f"client_eval = {share}: no client has enough examples to hold one out; use a larger share")
    return data.selected(kept), held
