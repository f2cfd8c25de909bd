"""Optional defenses in aggregation: what one client can do to the mean, and what the model can tell of one client.

Norm clipping bounds every update's length. The coordinate median and the trimmed mean (Yin, Chen, Ramchandran and Bartlett,
"Byzantine-robust distributed learning", ICML 2018, Definitions 1 and 2) bound every entry by those of the honest majority.
Central differential privacy (McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models",
ICLR 2018, Algorithm 1) is clipping and Gaussian noise on the sum, divided by the number of clients that were expected.

Clipping to a given length goes with the running sum. The others need all updates of a round at once, which costs as much
memory as that many models; `memory` bounds it, and the work on them goes by blocks of coordinates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from laconic.algorithms.algorithm import Algorithm
from laconic.compression import Payload, SparsePayload
from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout
from laconic.federation.aggregation import RunningMean
from laconic.federation.settings import Defenses, Sampling, Weighting, share

_BLOCK = 1 << 22
"""Entries, of all updates together, that are sorted at a time."""


def check_defenses(
    defenses: Defenses,
    algorithm: Algorithm,
    layout: Layout,
    *,
    participants: int,
    weighting: Weighting,
    sampling: Sampling,
    send_buffers: bool,
) -> None:
    """Refuse, before any work, what makes no sense or would not protect."""
    # Refusing goes with every method: a refused reply is as good as lost.
    exact = algorithm.method.exact_sums
    for stream in algorithm.phases.beside:
        exact = exact or f"its stream '{stream}' travels beside the updates, and would pass undefended"
    if defenses.any() and exact is not None:
        raise ConfigError(f"{_named(defenses)}: not with method '{algorithm.method.name}': {exact}")
    if defenses.aggregate != "mean":
        _check_coordinates(defenses, algorithm, weighting)
    if defenses.keeps_all():
        need = participants * layout.size * torch.empty(0, dtype=layout.dtype).element_size()
        if need > defenses.memory:
            together = f"{participants} updates of {layout.size:,} parameters take {need / 1e9:.3g} GB together"
            raise ConfigError(f"{_named(defenses)}: {together}; defense.memory allows {defenses.memory / 1e9:.3g} GB")
    if send_buffers and defenses.any() and defenses.aggregate == "mean":
        reason = "batch-norm statistics travel beside the update, and would pass undefended"
        raise ConfigError(f"{_named(defenses)}: {reason}; use buffers = 'frozen', or aggregate = 'median'")
    if defenses.noise:
        _check_noise(defenses, weighting, sampling, send_buffers)


def _check_coordinates(defenses: Defenses, algorithm: Algorithm, weighting: Weighting) -> None:
    if weighting != "uniform":
        raise ConfigError(f"weighting = '{weighting}': a {defenses.aggregate} knows no weights; uniform is allowed")
    compression = algorithm.uplink.compression
    if compression is not None and compression.compressor.sparse:
        reason = f"with '{compression.compressor}' most entries of an update are zero, and so is what is left of them"
        raise ConfigError(f"defense.aggregate = '{defenses.aggregate}': {reason}; use clip, or another compressor")


def _check_noise(defenses: Defenses, weighting: Weighting, sampling: Sampling, send_buffers: bool) -> None:
    given = f"defense.noise = {defenses.noise:g}"
    if not isinstance(defenses.clip, float):
        raise ConfigError(
            f"{given}: noise hides a client only if its length is bounded: set clip, as in --clip-updates 1"
        )
    if defenses.refuse == "auto":
        reason = "what one client sends would decide about another, which noise does not hide"
        raise ConfigError(f"{given}: refuse = 'auto' is not allowed: {reason}; give a length")
    if defenses.aggregate != "mean":
        raise ConfigError(f"{given}: the noise is made for a mean; aggregate = '{defenses.aggregate}' is not allowed")
    if weighting != "uniform":
        raise ConfigError(f"{given}: weighting = '{weighting}' makes some clients louder; uniform is allowed")
    if sampling == "weighted":
        raise ConfigError(f"{given}: sampling = 'weighted' favors some clients; uniform or poisson is allowed")


def _named(defenses: Defenses) -> str:
    """The first setting that is not as usual, for a message."""
    for name, usual in (("aggregate", "mean"), ("clip", None), ("noise", 0.0)):
        value = getattr(defenses, name)
        if value != usual:
            return f"defense.{name} = {value!r}"
    return "defense"


def refuse_long(defenses: Defenses, payload: Payload, client: int) -> None:
    """Refuse an update that is far too long."""
    if isinstance(defenses.refuse, float) and (found := norm(payload)) > defenses.refuse:
        raise PacketError("exploding", f"the update of client {client} has norm {found:.3g}, above {defenses.refuse:g}")


def norm(payload: Payload) -> float:
    """||u||, in double precision: the square of a large single is infinite."""
    values = payload.values if isinstance(payload, SparsePayload) else payload.dense()
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


class DefendedMean:
    """What stands in the place of `RunningMean`, for one stream and round."""

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
        """Take one update in."""
        if self._defenses.keeps_all():
            self._kept.append((payload, weight))
        else:
            clip = self._defenses.clip
            assert clip != "median"
            self._running.add(payload, weight, 1.0 if clip is None else _factor(payload, clip))

    def total(self) -> Tensor:
        """Methods that need sums are not defended (`Method.exact_sums`)."""
        raise NotImplementedError

    def mean(self) -> Tensor | None:
        """What the optimizer gets in place of the mean; with noise there is always something."""
        if self._kept:
            return self._of_all()
        if not self._defenses.noise:
            return self._running.mean()
        return (self._running.total() + self._drawn()) / self._expected

    def _drawn(self) -> Tensor:
        """The round's noise: drawn once."""
        size, dtype, device = self._like
        if self._added is None:
            assert self._noise is not None
            clip = self._defenses.clip
            assert isinstance(clip, float)
            drawn = self._noise.standard_normal(size) * (self._defenses.noise * clip)
            self._added = torch.from_numpy(drawn).to(dtype).to(device)
        return self._added

    def _of_all(self) -> Tensor:
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
    found = norm(payload)
    return limit / found if found > limit else 1.0


def trimmed(values: Tensor, share: float) -> Tensor:
    """The mean along each row without the floor(share n) lowest and highest; for a half, the median."""
    count = values.shape[1]
    ordered = values.sort(dim=1).values
    left_out = min(int(share * count + 1e-9), (count - 1) // 2)
    # Halved before they are added: two finite values may have a sum that is not.
    kept = ordered[:, left_out : count - left_out]
    return (kept / kept.shape[1]).sum(dim=1)
