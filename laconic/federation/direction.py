"""Refuses clients whose updates push the model away from where it should go: flipped signs, constant pushes, wrong labels.

The server keeps three averages of each client. Let u be its new update, u' its last one, and y how far the model has moved
since.

- Training pulls the model back when others have moved it: u - u' points against y, since the loss curves upward, and u does
  not oppose y for long. cos(u - u', y) - cos(u, y) is negative on average, whatever the client's data. Here y is without the
  part that the client itself moved: u' is in that part and in u - u', so that the noise of its compression would look like a
  pull.
- After the model has moved in a client's direction, an honest client's next update is smaller in that direction, so
  cos(u, y) + cos(u - u', y) is small on average. For a client that always sends the same direction, it is large.
- The weights of a classifier grow in training: a = cos(g, x) is positive, where g is the client's update or, if it keeps
  the mean of its gradients as a shared state (SCAFFOLD), minus that state. If the model is homogeneous in its weights, as
  with ReLU and no biases, <g, x> of one step is proportional to the sum over examples of the label's logit minus the mean
  logit under the prediction. Wrong labels have low logits, and they keep g long when that of others has become short:
  (|g| / M)^2 (1 - a / A) is large, with the medians M of |g| and A of a over all clients. A client with rare data has a
  small a, too, but its g becomes short once the model has learned its data.

Not every task has such averages, so each is compared with that of the other clients. Random projections stand for the
vectors that the server must keep: 4 kB each instead of the size of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
ERRORS = 3.0
"""A client is refused if its average of the first score is this many standard errors above 0, and those of at least two
thirds of the clients are below 0. Where all clients take part in every round, clients with different data oppose each other,
and many honest averages are above 0. docs/defenses.md has the measurements."""
PUSH = 0.15
"""A client is refused if its average of the second score is this far above 0 and above the median client's, and ..."""
PUSH_SPREADS = 5.0
"""... this many robust standard deviations of all clients' above the median client's."""
SPREADS = 1.5
"""The third score counts if the median client's cosine is so many robust standard deviations of all clients' above 0, ..."""
ALIKE = 0.5
"""... and that of log |g| is below this. Near the optimum of an adaptive optimizer the lengths of honest clients differ by
orders of magnitude."""
UNLIKE = 3.0
"""Then a client is refused if its third score is above this."""
MOMENTS = 6
"""The weight of a client's scores, and the sums of the first score, of its square, of a, of |g| and of the second score."""


@dataclass(frozen=True)
class _Record:
    """What the server keeps of a client."""

    moments: Tensor
    inner: Tensor
    """<g, x> if g is a shared state, otherwise 0; `[1]`."""
    update: Tensor
    """The projection of its last update."""
    start: Tensor
    """The projection of the model that the update was computed from."""
    own: Tensor
    """The projection of how far the update has moved the model."""
    state: Tensor
    """The projection of g if g is a shared state, otherwise empty."""

    def row(self) -> Tensor:
        return torch.cat([self.moments, self.inner, self.update, self.start, self.own, self.state])

    @classmethod
    def of(cls, row: Tensor) -> _Record:
        moments, inner, vectors = row[:MOMENTS], row[MOMENTS : MOMENTS + 1], row[MOMENTS + 1 :]
        update, start, own = vectors[: 3 * SIZE].view(3, SIZE)
        return cls(moments, inner, update, start, own, vectors[3 * SIZE :])


class DirectionFilter:
    """The last update of each client, the model that it was computed from, and the moments of the client's scores."""

    def __init__(self, randomness: Randomness) -> None:
        self.randomness = randomness
        """Draws the signs. A client that knows them can deceive the filter: on Flower they are secret."""
        self._records: dict[str, dict[int, _Record]] = {}
        """By phase and client."""
        self._signs: Tensor | None = None
        self._start = torch.zeros(SIZE)
        """The projection of the model that the current round begins with."""
        self._used: dict[tuple[str, int], float] = {}
        """The weights of the updates that passed in the current round, by phase and client."""

    def begin(self, model: Tensor) -> None:
        """Begin a round with this model."""
        self._start, self._used = self.project(model), {}

    def end(self, model: Tensor) -> None:
        """End a round: note how far each update has moved the model. It is taken as a multiple of the mean update."""
        if not self._used:
            return
        parts = {key: weight * self._records[key[0]][key[1]].update for key, weight in self._used.items()}
        total = torch.stack([*parts.values()]).sum(0)
        gain = (self.project(model) - self._start) @ total / (total @ total).clamp_min(1e-30)
        for (phase, client), part in parts.items():
            self._records[phase][client] = replace(self._records[phase][client], own=gain * part)
        self._used = {}

    def project(self, vector: Tensor) -> Tensor:
        """Random signs times the vector, summed to `SIZE` entries."""
        if self._signs is None:
            signs = 2 * self.randomness.numpy(Draw.DIRECTION).integers(0, 2, len(vector), dtype="int8") - 1
            self._signs = torch.from_numpy(signs).to(vector.device, torch.float32)
        signed = vector.to(self._signs.device, torch.float32) * self._signs
        return pad(signed, (0, -len(signed) % SIZE)).view(-1, SIZE).sum(0).cpu()

    def check(
        self,
        phase: str,
        client: int,
        update: Tensor,
        model: Tensor,
        *,
        weight: float = 1.0,
        work: float = 1.0,
        difference: Tensor | None = None,
        started_over: bool = False,
    ) -> None:
        """Score an update; `PacketError` if a score of the client is too high.

        Args:
            weight: the weight of the update in the mean.
            work: the client's local steps, as a multiple of the median client's.
            difference: by how much the client's shared state changes if the update is accepted.
            started_over: whether that state is 0 before this change: the client is new, or the state was lost or restarted.
        """
        records = self._records.setdefault(phase, {})
        known, start = records.get(client), self._start
        projected, moments = self.project(update), torch.zeros(MOMENTS)
        inner, state = torch.zeros(1), torch.zeros(0 if difference is None else SIZE)
        if known is not None and difference is not None and not started_over:
            # The model has turned a little since, so the error of a projection is small here.
            inner, state = known.inner + known.state @ (start - known.start), known.state
        refused = accepted = _Record(moments, inner, projected, start, torch.zeros(SIZE), state)
        # <u, x> is not from projections: its cosine is small, and the model hardly turns between rounds, so their error
        # would not average out.
        length, growth = update.norm().cpu().float() / max(1.0, work), _inner(update, model) / update.norm().cpu()
        if difference is not None:
            accepted = replace(refused, inner=inner - _inner(difference, model), state=state - self.project(difference))
            length = accepted.state.norm()
            growth = accepted.inner / length
        if known is not None:
            moments, moved = known.moments, start - known.start
            change, others = projected - known.update, moved - known.own
            reversal = cosine_similarity(change, others, dim=0) - cosine_similarity(projected, others, dim=0)
            push = cosine_similarity(change, moved, dim=0) + cosine_similarity(projected, moved, dim=0)
            cosine = growth.squeeze() / model.norm().cpu()
            scores = torch.stack([torch.ones(()), reversal, reversal**2, cosine, length, push])
            if moved.any() and scores.isfinite().all():
                moments = KEPT * moments + scores
        # A client whose reply is refused rolls its shared state back.
        records[client] = replace(refused, moments=moments)
        self._judge(client, moments, [record.moments for record in records.values()])
        records[client] = replace(accepted, moments=moments)
        self._used[phase, client] = weight

    def _judge(self, client: int, moments: Tensor, clients: Sequence[Tensor]) -> None:
        if moments[0] < FEWEST:
            return
        table = torch.stack([*clients])
        judged = table[table[:, 0] >= FEWEST]
        if len(judged) < CLIENTS:
            return
        averages = judged[:, 1:] / judged[:, :1]
        average, typical = moments[1:] / moments[0], averages.median(0).values
        error = ((averages[:, 1] - averages[:, 0] ** 2).clamp_min(0).median() / moments[0]).sqrt()
        if average[0] > ERRORS * error and 3 * int((averages[:, 0] < 0).sum()) >= 2 * len(averages):
            found = f"look reversed: average score {average[0]:.3g}; those of most clients are below 0"
            raise PacketError("direction", f"the updates of client {client} {found}")
        spreads = 1.4826 * (averages - typical).abs().median(0).values
        if average[4] > max(PUSH + typical[4].clamp_min(0), typical[4] + PUSH_SPREADS * spreads[4]):
            found = (
                f"push the same way whatever the model: average score {average[4]:.3g}, the median is {typical[4]:.3g}"
            )
            raise PacketError("direction", f"the updates of client {client} {found}")
        unlike = (average[3] / typical[3]) ** 2 * (1 - average[2] / typical[2])
        lengths = (averages[:, 3] / typical[3]).log().abs().median()
        if unlike > UNLIKE and typical[2] > SPREADS * spreads[2] and 1.4826 * lengths < ALIKE:
            found = f"undo the training of the others: score {unlike:.3g}; honest clients are below {UNLIKE:g}"
            raise PacketError("direction", f"the updates of client {client} {found}")

    def state_dict(self) -> State:
        """All records as tensors."""
        state: State = {}
        for phase, records in self._records.items():
            rows = torch.stack([record.row() for record in records.values()])
            state |= {f"{phase}/clients": torch.tensor([*records]), f"{phase}/rows": rows}
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""
        phases = [name.removesuffix("/rows") for name in state if name.endswith("/rows")]
        self._records = {
            phase: dict(zip(state[f"{phase}/clients"].tolist(), map(_Record.of, state[f"{phase}/rows"]), strict=True))
            for phase in phases
        }


def _inner(vector: Tensor, model: Tensor) -> Tensor:
    """<vector, model>; `[1]`."""
    return (vector.to(model.device, torch.float32) @ model.to(torch.float32)).cpu().reshape(1)
