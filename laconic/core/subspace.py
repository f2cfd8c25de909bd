"""Training in a random subspace: w = base + P z, where only z is trained and sent.

P follows from the seed, so no one sends it. Its columns are orthonormal: a step of z moves w by the projection of the step
that full training would make. Li et al., "Measuring the intrinsic dimension of objective landscapes", ICLR 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn

from laconic.core.errors import ConfigError
from laconic.core.layout import Layout, Slot
from laconic.core.randomness import Draw, Randomness

SMALLEST = 4096
"""Layers with fewer entries are trained whole: they hold few of the entries, and the model depends on them most."""


@dataclass(frozen=True)
class Subspace(Layout):
    """The layout of z: `share` of the entries of every large layer, and all entries of small ones.

    A large layer of n entries has r = share n numbers. Entry j belongs to one of r buckets of about equal sizes and has a
    random sign: w_j = base_j + sign_j z_bucket(j) / sqrt(size of the bucket). base is the initial model. z starts at 0. For
    small layers base is 0 and P the identity, so that z is the layer itself.
    """

    whole: Layout = field(kw_only=True)
    """The layout of w."""
    base: Tensor = field(kw_only=True, compare=False, repr=False)
    index: Tensor = field(kw_only=True, compare=False, repr=False)
    """The position in z of every entry of w."""
    scale: Tensor = field(kw_only=True, compare=False, repr=False)
    """sign / sqrt(size of the bucket) of every entry of w."""

    @classmethod
    def within(cls, module: nn.Module, share: float, seed: int) -> Subspace:
        """The subspace of a module's parameters, around its current ones."""
        full = Layout.of(module)
        if not any(slot.size >= SMALLEST for slot in full.parameters):
            raise ConfigError(
                f"subspace = {share:g}: no layer of this model has {SMALLEST} entries or more; leave subspace out"
            )
        rng, offset = Randomness(seed).numpy(Draw.SUBSPACE), 0
        slots, indices, scales = [], [], []
        base = full.flatten(module)
        for slot in full.parameters:
            size = max(1, round(share * slot.size)) if slot.size >= SMALLEST else slot.size
            slots.append(Slot(slot.name, (size,) if size < slot.size else slot.shape, offset))
            if size < slot.size:
                buckets = rng.permutation(np.arange(slot.size) % size)
                signs = rng.choice([-1.0, 1.0], slot.size)
                scales.append(signs / np.sqrt(np.bincount(buckets))[buckets])
            else:
                buckets = np.arange(size)
                scales.append(np.ones(size))
                slot.view(base).zero_()
            indices.append(buckets + offset)
            offset += size
        index, scale = torch.from_numpy(np.concatenate(indices)), torch.from_numpy(np.concatenate(scales))
        index, scale = index.to(base.device), scale.to(base)
        return cls(tuple(slots), full.buffers, full.dtype, whole=full, base=base, index=index, scale=scale)

    @property
    def full(self) -> Layout:
        return self.whole

    def expand(self, vectors: Tensor) -> Tensor:
        """base + P z, of a vector z or of every row of a matrix."""
        return torch.addcmul(self.base, self.scale, vectors[..., self.index])

    def project(self, vectors: Tensor) -> Tensor:
        """P^T g, of a vector g or of every row of a matrix."""
        result = vectors.new_zeros((*vectors.shape[:-1], self.size))
        return result.scatter_add_(-1, self.index.expand_as(vectors), vectors * self.scale)

    @cached_property
    def fingerprint(self) -> int:
        """A hash of the layout, the base and P. A client with another base would train another model."""
        digest = blake2b(self.full.fingerprint.to_bytes(6, "little"), digest_size=6)
        for tensor in (self.base, self.index, self.scale):
            digest.update(tensor.cpu().numpy().tobytes())
        return int.from_bytes(digest.digest(), "little")

    def flatten(self, module: nn.Module) -> Tensor:
        """The z whose w is nearest to the module's parameters."""
        return self.project(self.full.flatten(module) - self.base)

    def write(self, module: nn.Module, vector: Tensor, buffers: Tensor | None = None) -> None:
        """Copy base + P z, and optionally buffers, into the module's tensors."""
        self.full.write(module, self.expand(vector), buffers)
