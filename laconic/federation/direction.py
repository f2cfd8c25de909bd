"""Refuses clients whose updates push the model away from where it should go, such as updates with a flipped sign.

Each update has two scores, both odd in the update. An honest client's are negative on average:

- Training pulls the model back when other clients have moved it. Let the model x have moved by y since a client's last
  update u', and let u be its new one. Then u - u' points against y, since the loss curves upward, and u does not oppose y
  for long: cos(u - u', y) - cos(u, y).
- The weights of a classifier grow in training: -cos(u, x). If the model is homogeneous in its weights, as with ReLU and no
  biases, <u, x> of one step is proportional to the sum over examples of the label's logit minus the mean logit under the
  prediction. Wrong labels have low logits, so training on them shrinks a good model.

Not every task has such scores, so a score counts only while the clients agree on its sign. For the first score random
projections stand for the vectors: the server keeps 8 kB per client instead of an update and a model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, pad

from laconic.core.errors import PacketError
from laconic.core.part import State
from laconic.core.randomness import Draw, Randomness

SIZE = 1024
"""The length of a projection. The error of a cosine is about 1 / sqrt(SIZE)."""
KEPT = 0.85
"""The factor by which earlier scores lose weight with each new one."""
FEWEST = 2.5
"""The total weight of scores below which a client is not judged: three scores."""
CLIENTS = 5
"""The number of clients with enough scores below which none is judged."""
SPREADS = torch.tensor([0.0, 3.0])
"""A score counts if the median client's average is this many robust standard deviations of the averages below 0, by score.
Many attackers widen the spread, so the first score, whose sign is safe, does without."""
ERRORS = 2.0
"""Then a client is refused if its average is this many standard errors above 0. docs/defenses.md has the measurements."""
REASONS = ("look reversed", "undo the training of the others")
"""By score."""
MOMENTS = 1 + 2 * len(REASONS)
"""The weight of a client's scores, their sums and the sums of their squares."""


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

    def check(self, phase: str, client: int, update: Tensor, start: Tensor, model: Tensor | None) -> None:
        """Score an update; `PacketError` if an average score of the client is too high.

        Args:
            start: the projection of the model.
            model: the model; None if updates are compressed, whose noise would hide the second score.
        """
        # Not from projections: this cosine is small, and the model hardly turns between rounds, so the error of a projection
        # would not average out.
        growth = torch.zeros(())
        if model is not None:
            growth = cosine_similarity(update.to(model.device, torch.float32), model.to(torch.float32), dim=0).cpu()
        update = self.project(update)
        rows = self._rows.setdefault(phase, {})
        moments = torch.zeros(MOMENTS)
        if client in rows:
            moments, last = rows[client][:MOMENTS], rows[client][MOMENTS:-SIZE]
            moved = start - rows[client][-SIZE:]
            reversal = cosine_similarity(update - last, moved, dim=0) - cosine_similarity(update, moved, dim=0)
            scores = torch.stack([reversal, -growth])
            if moved.any() and scores.isfinite().all():
                moments = KEPT * moments + torch.cat([torch.ones(1), scores, scores**2])
        rows[client] = torch.cat([moments, update, start])
        if moments[0] < FEWEST or not (moments[1:3] > 0).any():
            return
        judged = torch.stack([row[:MOMENTS] for row in rows.values() if row[0] >= FEWEST])
        if len(judged) < CLIENTS:
            return
        averages, squares = judged[:, 1:3] / judged[:, :1], judged[:, 3:] / judged[:, :1]
        average, typical = moments[1:3] / moments[0], averages.median(0).values
        error = ((squares - averages**2).clamp_min(0).median(0).values / moments[0]).sqrt()
        spread = 1.4826 * (averages - typical).abs().median(0).values
        suspicious = (average > ERRORS * error) & (typical + SPREADS * spread < 0)
        for reason, score, refused in zip(REASONS, average.tolist(), suspicious.tolist(), strict=True):
            if refused:
                found = f"the updates of client {client} {reason}"
                raise PacketError("direction", f"{found}: average score {score:.3g}; honest clients are below 0")

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
