"""The keywords of recipes and of `Algorithm.replace`, for editors and type checkers.

Every parameter of every part in the box is listed here; a test compares this list with the parts. A recipe refuses
parameters that none of its parts has. Parameters of your own parts go through their slot: `uplink={"name": "mine", …}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from torch import nn

from laconic.algorithms.downlinks.base import Downlink
from laconic.algorithms.methods.base import Method
from laconic.algorithms.methods.batches import BatchOrder
from laconic.algorithms.methods.local_optimizers import LocalOptimizer
from laconic.algorithms.optimizers.base import Optimizer
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import Compressor, GroupedCompressor
from laconic.core.schedules import RateSchedule

Table = Mapping[str, Any]


class Changes(TypedDict, total=False):
    """Changes of an algorithm: whole parts by slot, and parameters of its parts."""

    method: Method | str | Table
    uplink: Uplink | str | Table
    optimizer: Optimizer | str | Table
    downlink: Downlink | str | Table

    aggregation: Literal["lazy", "accelerated"]
    alpha: float
    anchor_batch: int | Literal["full"]
    average: float
    batch_order: BatchOrder
    batch_size: int | Literal["full"]
    beta1: float
    beta2: float
    bias_correction: bool
    clip_norm: float | None
    compressor: Compressor | str
    constant: float | Literal["suggested"] | None
    epsilon: float
    epsilon_inside: bool
    feedback: Literal["sent", "used"]
    first_pass: Literal["exact", "compressed"]
    function: Callable[..., nn.Module | None] | str
    gradient_compressor: GroupedCompressor | str | None
    granularity: str
    literal: bool
    local_epochs: int | None
    local_lr: float
    local_optimizer: LocalOptimizer | str
    local_optimizer_state: Literal["reset", "kept", "averaged"]
    local_schedule: RateSchedule | str
    local_steps: int | None
    mean_compressor: GroupedCompressor | str | None
    memory: bool | Literal["auto", "standard", "global", "printed"]
    memory_decay: float
    mirror_start: Literal["model", "zero"]
    momentum: float
    momentum_rate: float
    nesterov: bool
    noise_limit: float | None
    period: int | None
    pl_constant: float
    probability: float | Literal["optimal", "optimal_pl"] | str | Sequence[float] | Callable[[int], float]
    probability_divisor: float
    proximal: float
    quantizer: GroupedCompressor | str | None
    random_steps: bool
    restart_after: int | None
    restart_from: int
    rule: Literal["update", "model"]
    server_lr: float
    server_schedule: RateSchedule | str
    shift_rate: float | None
    skip_feedback: Literal["used", "computed"]
    smoothness: float | None
    sparsifier: GroupedCompressor | str | None
    step_schedule: RateSchedule | str
    steps_from: Literal["mean", "own"]
    stretch: float
    threshold: float | None
    tracker_rate: float | None
    trainers: Literal["all", "one"]
    warm_start: bool
    weight: float | Sequence[float] | str
    weight_decay: float
    window: int
