"""Refuses clients whose updates push the model away from where their own data pulls it, such as updates with a flipped sign.

Let u be a client's new update, u' its last one, and y the movement of the model in between. The loss curves upward, so
gradients pull the model back: the change u - u' points against y. The update u itself does not point against y for long.
So an honest client's score, cos(u - u', y) - cos(u, y), is negative on average, whatever its data. If a client flips the
sign of its updates, the sign of its scores flips, too. A client that trains honestly on wrong labels is not found.

Random projections stand for the vectors, so the server keeps 8 kB per client instead of an update and a model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, pad

from laconic.core.errors import PacketError
from laconic.core.part import State
from laconic.core.randomness import Draw, Randomness

SIZE = 1024
"""The length of a projection. The error of a cosine is about 1 / sqrt(SIZE)."""
KEPT = 0.95
"""The factor by which earlier scores lose weight with each new one."""
FEWEST = 2.8
"""The total weight of scores below which a client is not judged: three scores."""
CLIENTS = 3
"""The number of clients with enough scores below which none is judged."""
DEVIATIONS = 3.0
"""A client is refused if its average score is this many standard errors above 0. docs/defenses.md has the measurements."""


class DirectionFilter:
    """The last update of each client, the model that it was computed from, and the moments of the client's scores."""

    def __init__(self, randomness: Randomness) -> None:
        self.randomness = randomness
        """Draws the signs. A client that knows them can deceive the filter: on Flower they are secret."""
        self._rows: dict[str, dict[int, Tensor]] = {}
        """By phase and client: weight, sum and sum of squares of its scores, then the two projections."""
        self._signs: Tensor | None = None

    def project(self, vector: Tensor) -> Tensor:
        """Random signs times the vector, summed to `SIZE` entries."""
        if self._signs is None:
            signs = 2 * self.randomness.numpy(Draw.DIRECTION).integers(0, 2, len(vector), dtype="int8") - 1
            self._signs = torch.from_numpy(signs).to(vector.device, torch.float32)
        signed = vector.to(self._signs.device, torch.float32) * self._signs
        return pad(signed, (0, -len(signed) % SIZE)).view(-1, SIZE).sum(0).cpu()

    def check(self, phase: str, client: int, update: Tensor, model: Tensor) -> None:
        """Score an update, given as projection like the model; `PacketError` if the client's scores are positive."""
        rows = self._rows.setdefault(phase, {})
        moments = torch.zeros(3)
        if client in rows:
            moments, last = rows[client][:3], rows[client][3:-SIZE]
            moved = model - rows[client][-SIZE:]
            score = cosine_similarity(update - last, moved, dim=0) - cosine_similarity(update, moved, dim=0)
            if moved.any() and score.isfinite():
                moments = KEPT * moments + score ** torch.arange(3)
        rows[client] = torch.cat([moments, update, model])
        weight, total, _ = moments.tolist()
        if weight < FEWEST or total <= 0:
            return
        weights, totals, squares = torch.stack([row[:3] for row in rows.values() if row[0] >= FEWEST]).T
        variance = float((squares / weights - (totals / weights) ** 2).median())
        if len(weights) >= CLIENTS and total > DEVIATIONS * math.sqrt(weight * max(variance, 0.0)):
            found = f"the updates of client {client} look reversed"
            raise PacketError("direction", f"{found}: average score {total / weight:.3g}; honest clients are below 0")

    def state_dict(self) -> State:
        """All rows as tensors."""
        state: State = {}
        for phase, rows in self._rows.items():
            state |= {f"{phase}/clients": torch.tensor([*rows]), f"{phase}/rows": torch.stack([*rows.values()])}
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""
        phases = [name.removesuffix("/rows") for name in state if name.endswith("/rows")]
        self._rows = {
            phase: dict(zip(state[f"{phase}/clients"].tolist(), state[f"{phase}/rows"], strict=True))
            for phase in phases
        }
