"""Optional defenses in aggregation, against malicious clients and for differential privacy.

Norm clipping bounds the norm of every update. The coordinate-wise median and trimmed mean (Yin, Chen, Ramchandran and
Bartlett, "Byzantine-robust distributed learning", ICML 2018, Definitions 1 and 2) bound every entry by the entries of the
honest majority. Central differential privacy (McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent
language models", ICLR 2018, Algorithm 1) clips updates, adds Gaussian noise to their sum, and divides by the expected number
of participants.

Clipping to a fixed norm works with a running sum. The other defenses need all updates of a round in memory, which
`Defenses.memory` limits. They process the updates in blocks of coordinates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from laconic.algorithms.algorithm import Algorithm
from laconic.compression import DensePayload, Payload, SparsePayload, SumPayload
from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout
from laconic.federation.aggregation import RunningMean
from laconic.federation.settings import Defenses, Weighting, share

_BLOCK = 1 << 22
"""The number of entries, over all updates, that are sorted at a time."""


def check_defenses(
    defenses: Defenses,
    algorithm: Algorithm,
    layout: Layout,
    *,
    participants: int,
    weighting: Weighting,
    send_buffers: bool,
) -> None:
    """Raise `ConfigError` for defenses that the rest of the config makes impossible or ineffective."""
    # `refuse` works with every method: a refused reply is handled as a lost one.
    reason = algorithm.method.exact_sums
    for stream in algorithm.phases.extra_streams:
        reason = reason or f"its stream '{stream}' is sent with the updates and would be undefended"
    if defenses.any() and reason is not None:
        raise ConfigError(f"{_named(defenses)}: not possible with method '{algorithm.method.name}': {reason}")
    if defenses.aggregate != "mean":
        _check_coordinates(defenses, algorithm, weighting)
    if defenses.keeps_all():
        need = participants * layout.size * torch.empty(0, dtype=layout.dtype).element_size()
        if need > defenses.memory:
            total = f"{participants} updates of {layout.size:,} parameters take {need / 1e9:.3g} GB"
            raise ConfigError(f"{_named(defenses)}: {total}; defense.memory allows {defenses.memory / 1e9:.3g} GB")
    if send_buffers and defenses.any() and defenses.aggregate == "mean":
        reason = "batch-norm statistics are sent with the update and would be undefended"
        raise ConfigError(f"{_named(defenses)}: {reason}; use buffers = 'frozen', or aggregate = 'median'")


def _check_coordinates(defenses: Defenses, algorithm: Algorithm, weighting: Weighting) -> None:
    if weighting != "uniform":
        raise ConfigError(f"weighting = '{weighting}': a {defenses.aggregate} has no weights; uniform is allowed")
    compression = algorithm.uplink.compression
    if compression is not None and compression.compressor.sparse:
        reason = f"with '{compression.compressor}' most entries of an update are zero, and so is their median"
        raise ConfigError(f"defense.aggregate = '{defenses.aggregate}': {reason}; use clip, or another compressor")


def _named(defenses: Defenses) -> str:
    """The first setting that is not the default, for a message."""
    for name, default in (("aggregate", "mean"), ("clip", None), ("noise", 0.0)):
        value = getattr(defenses, name)
        if value != default:
            return f"defense.{name} = {value!r}"
    return "defense"


def check_norm(defenses: Defenses, payload: Payload, client: int) -> None:
    """Refuse an update whose norm exceeds a fixed `refuse`."""
    if isinstance(defenses.refuse, float) and (update_norm := norm(payload)) > defenses.refuse:
        raise PacketError(
            "exploding", f"the update of client {client} has norm {update_norm:.3g}, above {defenses.refuse:g}"
        )


def norm(payload: Payload) -> float:
    """||u|| in double precision, since squares may overflow in single precision."""
    values = payload.values if isinstance(payload, SparsePayload) else payload.dense()
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


class DefendedMean:
    """The aggregate of one stream in one round with defenses, in place of `RunningMean`."""

    def __init__(
        self,
        defenses: Defenses,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
        expected: int,
        noise: np.random.Generator | None,
    ) -> None:
        self._defenses, self._expected, self._noise = defenses, expected, noise
        self._like = (size, dtype, device)
        self._running = RunningMean(*self._like)
        self._kept: list[tuple[Payload, float]] = []
        self._added: Tensor | None = None

    def add(self, payload: Payload, weight: float) -> None:
        """Add one update."""
        if self._defenses.noise and isinstance(payload, SumPayload):
            # Its terms may be far longer than the clip even if their sum is not, and rounding would then change the others.
            payload = DensePayload(torch.nan_to_num(payload.dense()))
        if self._defenses.keeps_all():
            self._kept.append((payload, weight))
        else:
            clip = self._defenses.clip
            assert clip != "median"
            self._running.add(payload, weight, 1.0 if clip is None else _factor(payload, clip))

    def total(self) -> Tensor:
        """Not available: `check_defenses` refuses methods that need sums (`Method.exact_sums`)."""
        raise NotImplementedError

    def mean(self) -> Tensor | None:
        """The defended mean; None without updates, unless there is noise."""
        if self._kept:
            return self._robust_mean()
        if not self._defenses.noise:
            return self._running.mean()
        return (self._running.total() + self._drawn_noise()) / self._expected

    def _drawn_noise(self) -> Tensor:
        """The round's noise, drawn once."""
        size, dtype, device = self._like
        if self._added is None:
            assert self._noise is not None
            clip = self._defenses.clip
            assert isinstance(clip, float)
            drawn = self._noise.standard_normal(size) * (self._defenses.noise * clip)
            self._added = torch.from_numpy(drawn).to(dtype).to(device)
        return self._added

    def _robust_mean(self) -> Tensor:
        factors = self._factors()
        trim = share(self._defenses.aggregate)
        if trim is None:
            running = RunningMean(*self._like)
            for (payload, weight), factor in zip(self._kept, factors, strict=True):
                running.add(payload, weight, factor)
            mean = running.mean()
            assert mean is not None
            return mean
        size, dtype, device = self._like
        rows = [payload.dense().to(device=device, dtype=dtype) for payload, _ in self._kept]
        result = torch.empty(size, dtype=dtype, device=device)
        width = max(1, _BLOCK // len(rows))
        scale = torch.tensor(factors, dtype=dtype, device=device)
        for start in range(0, size, width):
            block = torch.stack([row[start : start + width] for row in rows], dim=1)
            result[start : start + width] = trimmed(block.mul_(scale), trim)
        return result

    def _factors(self) -> list[float]:
        clip = self._defenses.clip
        if clip is None:
            return [1.0] * len(self._kept)
        limit = float(np.median([norm(payload) for payload, _ in self._kept])) if clip == "median" else clip
        return [_factor(payload, limit) for payload, _ in self._kept]


def _factor(payload: Payload, limit: float) -> float:
    """min(1, limit / ||u||)."""
    update_norm = norm(payload)
    return limit / update_norm if update_norm > limit else 1.0


def trimmed(values: Tensor, share: float) -> Tensor:
    """The mean of each row without its floor(share n) lowest and highest values. A share of 0.5 gives the median."""
    count = values.shape[1]
    ordered = values.sort(dim=1).values
    left_out = min(int(share * count + 1e-9), (count - 1) // 2)
    # Divide before summing: the sum of finite values may overflow.
    kept = ordered[:, left_out : count - left_out]
    return (kept / kept.shape[1]).sum(dim=1)
