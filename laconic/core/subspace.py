"""Training in a random subspace: w = base + P z, where only z is trained and sent.

P follows from the seed, so no one sends it. Its columns are orthonormal: a step of z moves w by the projection of the step
that full training would make. Li et al., "Measuring the intrinsic dimension of objective landscapes", ICLR 2018.

With `every` P is redrawn every so many rounds: base becomes the current w, and z starts at 0 again. So training searches
the whole space in the long run. Both sides compute the new base from the last z of the period before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn

from laconic.core.errors import ConfigError
from laconic.core.layout import Layout, Slot
from laconic.core.randomness import GLOBAL, Draw, Randomness

SMALLEST = 4096
"""Layers with fewer entries are trained whole: they hold few of the entries, and the model depends on them most."""


@dataclass(frozen=True)
class Subspace(Layout):
    """The layout of z: `share` of the entries of every large layer, and all entries of small ones.

    A large layer of n entries has r = share n numbers. Entry j belongs to one of r buckets of about equal sizes and has a
    random sign: w_j = base_j + sign_j z_bucket(j) / sqrt(size of the bucket). base is the model at which P was drawn, the
    initial one at first. z starts at 0. For small layers base is 0 and P the identity, so that z is the layer itself.
    """

    whole: Layout = field(kw_only=True)
    """The layout of w."""
    seed: int = field(kw_only=True)
    every: int | None = field(kw_only=True)
    """The number of rounds after which P is redrawn; None: never."""
    number: int = field(kw_only=True, default=0)
    """The number of the period."""
    weights: Tensor = field(kw_only=True, compare=False, repr=False)
    """The model w at which P was drawn, with the small layers."""
    base: Tensor = field(kw_only=True, compare=False, repr=False)
    index: Tensor = field(kw_only=True, compare=False, repr=False)
    """The position in z of every entry of w."""
    scale: Tensor = field(kw_only=True, compare=False, repr=False)
    """sign / sqrt(size of the bucket) of every entry of w."""
    first: Subspace | None = field(kw_only=True, default=None, compare=False, repr=False)
    """The subspace of the first period; None if it is this one."""
    _drawn: dict[int, Subspace] = field(kw_only=True, default_factory=dict, compare=False, repr=False)
    """The last two periods that were drawn, by number. Their base is not known."""
    _located: dict[int, Subspace] = field(kw_only=True, default_factory=dict, compare=False, repr=False)
    """The last two subspaces around a model, by period. All clients of a process share them."""

    @classmethod
    def within(cls, module: nn.Module, share: float, seed: int, every: int | None = None) -> Subspace:
        """The subspace of a module's parameters, around its current ones."""
        full = Layout.of(module)
        if not any(slot.size >= SMALLEST for slot in full.parameters):
            raise ConfigError(
                f"subspace = {share:g}: no layer of this model has {SMALLEST} entries or more; leave subspace out"
            )
        weights, slots = full.flatten(module), _slots(full, share)
        index, scale = _draw(full, slots, Randomness(seed).numpy(Draw.SUBSPACE, GLOBAL))
        index, scale = index.to(weights.device), scale.to(weights)
        return cls(
            slots,
            full.buffers,
            full.dtype,
            whole=full,
            seed=seed,
            every=every,
            weights=weights,
            base=_without_small(full, slots, weights),
            index=index,
            scale=scale,
        )

    @property
    def full(self) -> Layout:
        return self.whole

    @property
    def period(self) -> int:
        return self.number

    def starts(self, round: int) -> bool:
        return round == 0 if self.every is None else round % self.every == 0

    def for_round(self, round: int) -> Subspace:
        """The subspace of a round. Its base is not known yet if it is that of another period."""
        return self._numbered(0 if self.every is None else round // self.every)

    def _numbered(self, number: int) -> Subspace:
        if number == self.number:
            return self
        if (known := self._drawn.get(number)) is None:
            index, scale = _draw(self.full, self.parameters, Randomness(self.seed).numpy(Draw.SUBSPACE, number))
            index, scale = index.to(self.index.device), scale.to(self.scale)
            first = self.first or self
            known = _keep(self._drawn, replace(first, number=number, index=index, scale=scale, first=first))
        return known

    def around(self, weights: Tensor) -> Subspace:
        """The subspace around a model w."""
        known, weights = self._located.get(self.number), weights.to(self.weights.device)
        if known is None or not torch.equal(known.weights, weights):
            base = _without_small(self.full, self.parameters, weights)
            known = _keep(self._located, replace(self, weights=weights, base=base))
        return known

    def located(self, known: Mapping[str, Tensor], sent: Tensor | None) -> Subspace | None:
        if sent is not None and sent.numel() == self.full.size:
            return self.around(sent)
        last = [] if sent is None else [*sent.view(-1, self.size)]
        number, first = int(known["period"]) if known else 0, self.first or self
        if number + len(last) != self.number:
            return None
        subspace = first._numbered(number).around(known["weights"]) if known else first
        for z in last:
            number += 1
            subspace = first._numbered(number).around(subspace.expand(z.to(self.scale)))
        return subspace

    def location(self) -> dict[str, Tensor]:
        if not self.number:
            return {}
        return {"weights": self.weights.cpu(), "period": torch.tensor(self.number)}

    def start(self, initial: Tensor) -> Tensor:
        return initial if self.first is None else self.project(self.weights - self.base).to(initial.device)

    def expand(self, vectors: Tensor) -> Tensor:
        """base + P z, of a vector z or of every row of a matrix."""
        return torch.addcmul(self.base, self.scale, vectors[..., self.index])

    def project(self, vectors: Tensor) -> Tensor:
        """P^T g, of a vector g or of every row of a matrix."""
        result = vectors.new_zeros((*vectors.shape[:-1], self.size))
        return result.scatter_add_(-1, self.index.expand_as(vectors), vectors * self.scale)

    @cached_property
    def fingerprint(self) -> int:
        """A hash of the layout, the initial model and P. A client with another initial model would train another one."""
        before = self.full if self.first is None else self.first
        digest = blake2b(before.fingerprint.to_bytes(6, "little"), digest_size=6)
        for tensor in (self.base, self.index, self.scale) if self.first is None else (self.index, self.scale):
            digest.update(tensor.cpu().numpy().tobytes())
        return int.from_bytes(digest.digest(), "little")

    def flatten(self, module: nn.Module) -> Tensor:
        """The z whose w is nearest to the module's parameters."""
        return self.project(self.full.flatten(module) - self.base)

    def write(self, module: nn.Module, vector: Tensor, buffers: Tensor | None = None) -> None:
        """Copy base + P z, and optionally buffers, into the module's tensors."""
        self.full.write(module, self.expand(vector), buffers)


def _slots(full: Layout, share: float) -> tuple[Slot, ...]:
    """The slots of z."""
    slots, offset = [], 0
    for slot in full.parameters:
        size = max(1, round(share * slot.size)) if slot.size >= SMALLEST else slot.size
        slots.append(Slot(slot.name, (size,) if size < slot.size else slot.shape, offset))
        offset += size
    return tuple(slots)


def _draw(full: Layout, slots: tuple[Slot, ...], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The position in z and the scale of every entry of w."""
    indices, scales = [], []
    for slot, own in zip(full.parameters, slots, strict=True):
        if own.size < slot.size:
            buckets = rng.permutation(np.arange(slot.size) % own.size)
            signs = rng.choice([-1.0, 1.0], slot.size)
            scales.append(signs / np.sqrt(np.bincount(buckets))[buckets])
        else:
            buckets = np.arange(own.size)
            scales.append(np.ones(own.size))
        indices.append(buckets + own.offset)
    return torch.from_numpy(np.concatenate(indices)), torch.from_numpy(np.concatenate(scales))


def _keep(subspaces: dict[int, Subspace], subspace: Subspace) -> Subspace:
    """Keep the subspaces of the last two periods. Threads may do this at the same time."""
    subspaces[subspace.number] = subspace
    for number in sorted(subspaces)[:-2]:
        subspaces.pop(number, None)
    return subspace


def _without_small(full: Layout, slots: tuple[Slot, ...], weights: Tensor) -> Tensor:
    """A copy of w with zeros in the layers that are trained whole."""
    base = weights.clone()
    for slot, own in zip(full.parameters, slots, strict=True):
        if own.size == slot.size:
            slot.view(base).zero_()
    return base
