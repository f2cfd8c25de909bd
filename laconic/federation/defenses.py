"""Optional defenses in aggregation, against malicious clients and for differential privacy.

Norm clipping bounds the norm of every update. The coordinate-wise median and trimmed mean (Yin, Chen, Ramchandran and
Bartlett, "Byzantine-robust distributed learning", ICML 2018, Definitions 1 and 2) bound every entry by the entries of the
honest majority. Central differential privacy (McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent
language models", ICLR 2018, Algorithm 1) clips updates, adds Gaussian noise to their sum, and divides by the expected number
of participants.

Clipping needs norms only (update_norms.py) and works with a running sum. Medians and trimmed means need all updates of a
round in memory, which `Defenses.memory` limits. They process the updates in blocks of coordinates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from laconic.algorithms.algorithm import Algorithm
from laconic.compression import DensePayload, Payload, SumPayload
from laconic.core.counts import counted
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.federation.aggregation import RunningMean
from laconic.federation.settings import Defenses, Weighting

AUTO_CLIP = "median:2"
"""`clip = "auto"`. docs/defenses.md has the measurements."""
AUTO_SHARE = 0.2
"""`aggregate = "auto"` trims this share where updates are signs. The same page has the measurements."""
_BLOCK = 1 << 22
"""The number of entries, over all updates, that are sorted at a time."""


def resolve_defenses(
    defenses: Defenses,
    algorithm: Algorithm,
    layout: Layout,
    participants: int,
    weighting: Weighting,
    send_buffers: bool,
) -> Defenses:
    """Replace `aggregate = "auto"` and `clip = "auto"` by what they mean for this run.

    Signs are aggregated by a trimmed mean, which is close to a majority vote, if enough clients take part, the model is sent
    without compression, and the rest of the config allows it; all other updates by the mean. Means are clipped by
    `AUTO_CLIP` where that is possible.

    Raises `ConfigError` for defenses that the rest of the config makes impossible or ineffective.
    """
    exact = _needs_exact_means(algorithm) is not None
    if defenses.aggregate == "auto":
        useful = algorithm.uplink.sends_signs and algorithm.downlink.compression is None
        allowed = not exact and weighting == "uniform" and not defenses.noise
        fits = AUTO_SHARE * participants >= 1 and _bytes(participants, layout) <= defenses.memory
        defenses = defenses.model_copy(
            update={"aggregate": f"trimmed_mean:{AUTO_SHARE}" if useful and allowed and fits else "mean"}
        )
    if defenses.clip == "auto":
        undefended = send_buffers and not _judged(defenses)
        possible = defenses.aggregate == "mean" and not undefended and not exact
        defenses = defenses.model_copy(update={"clip": AUTO_CLIP if possible else None})
    _check_method(defenses, algorithm)
    if defenses.aggregate != "mean":
        _check_coordinates(defenses, algorithm, layout, participants, weighting)
    else:
        _check_buffers(defenses, send_buffers)
    return defenses


def _needs_exact_means(algorithm: Algorithm) -> str | None:
    """Why updates must be averaged as they are; None if a defense may change them."""
    reason = algorithm.method.exact_sums
    for stream in algorithm.phases.extra_streams:
        reason = reason or f"its stream '{stream}' is sent with the updates and would be undefended"
    return reason


def _judged(defenses: Defenses) -> bool:
    """Whether batch-norm statistics are compared with those of other clients."""
    return defenses.refuse == "auto"


def _bytes(participants: int, layout: Layout) -> int:
    """The size of a round's decoded updates."""
    return participants * layout.size * torch.empty(0, dtype=layout.dtype).element_size()


def _check_method(defenses: Defenses, algorithm: Algorithm) -> None:
    # `refuse` works with every method: a refused reply is handled as a lost one.
    reason = _needs_exact_means(algorithm)
    if defenses.any() and reason is not None:
        raise ConfigError(
            f"{_named(defenses)}: not possible with method '{algorithm.method.name}': {reason}; "
            "leave it out, or use defense.refuse, which works with every method"
        )


def _check_coordinates(
    defenses: Defenses, algorithm: Algorithm, layout: Layout, participants: int, weighting: Weighting
) -> None:
    if weighting != "uniform":
        raise ConfigError(f"weighting = '{weighting}': a {defenses.aggregate} has no weights; uniform is allowed")
    compression = algorithm.uplink.compression
    if compression is not None and compression.compressor.sparse:
        reason = f"with '{compression.compressor}' most entries of an update are zero, and so is their median"
        raise ConfigError(f"defense.aggregate = '{defenses.aggregate}': {reason}; use clip, or another compressor")
    need = _bytes(participants, layout)
    if need > defenses.memory:
        total = f"{counted(participants, 'update')} of {counted(layout.size, 'parameter')} need {need / 1e9:.3g} GB"
        raise ConfigError(f"{_named(defenses)}: {total}; defense.memory allows {defenses.memory / 1e9:.3g} GB")


def _check_buffers(defenses: Defenses, send_buffers: bool) -> None:
    if send_buffers and defenses.any() and (defenses.noise or not _judged(defenses)):
        reason = "batch-norm statistics are sent with the update and would be undefended"
        allowed = (
            "buffers = 'frozen'" if defenses.noise else "buffers = 'frozen', refuse = 'auto' or aggregate = 'median'"
        )
        raise ConfigError(f"{_named(defenses)}: {reason}; use {allowed}")


def _named(defenses: Defenses) -> str:
    """The first setting that is not the default, for a message."""
    for name, default in (("aggregate", "mean"), ("clip", None), ("noise", 0.0)):
        value = getattr(defenses, name)
        if value != default:
            return f"defense.{name} = {value!r}"
    return "defense"


class NoisyMean(RunningMean):
    """The sum of clipped updates with Gaussian noise, divided by the expected number of updates."""

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
        noise: np.random.Generator,
        deviation: float,
        expected: int,
    ) -> None:
        super().__init__(size, dtype, device)
        self._noise = torch.from_numpy(noise.standard_normal(size) * deviation).to(dtype).to(device)
        self._expected = expected

    def add(self, payload: Payload, weight: float, factor: float = 1.0) -> None:
        """Add one update."""
        if isinstance(payload, SumPayload):
            # Its terms may be far longer than the clip even if their sum is not, and rounding would then change the others.
            payload = DensePayload(torch.nan_to_num(payload.dense()))
        super().add(payload, weight, factor)

    def mean(self) -> Tensor:
        """The noisy mean, also without any update."""
        return (self.total() + self._noise) / self._expected


class CoordinateMean:
    """The coordinate-wise trimmed mean of updates, of which it keeps all; the median for a share of 0.5."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, share: float) -> None:
        self._result = torch.empty(size, dtype=dtype, device=device)
        self._share = share
        self._rows: list[Tensor] = []

    def add(self, payload: Payload, weight: float, factor: float = 1.0) -> None:
        """Add one update. `resolve_defenses` refuses weights."""
        row = payload.dense().to(self._result)
        self._rows.append(row if factor == 1 else row * factor)

    def total(self) -> Tensor:
        """Not available: `resolve_defenses` refuses methods that need sums (`Method.exact_sums`)."""
        raise NotImplementedError

    def mean(self) -> Tensor | None:
        """The robust mean; None without updates."""
        if not self._rows:
            return None
        width = max(1, _BLOCK // len(self._rows))
        for start in range(0, len(self._result), width):
            block = torch.stack([row[start : start + width] for row in self._rows], dim=1)
            self._result[start : start + width] = trimmed(block, self._share)
        return self._result


def trimmed(values: Tensor, share: float) -> Tensor:
    """The mean of each row without its floor(share n) lowest and highest values. A share of 0.5 gives the median."""
    count = values.shape[1]
    # NumPy sorts many short rows 19 times as fast as torch does on a CPU.
    on_cpu = values.device.type == "cpu"
    ordered = torch.from_numpy(np.sort(values.numpy(), axis=1)) if on_cpu else values.sort(dim=1).values
    left_out = min(int(share * count + 1e-9), (count - 1) // 2)
    # Divide before summing: the sum of finite values may overflow.
    kept = ordered[:, left_out : count - left_out]
    return (kept / kept.shape[1]).sum(dim=1)
