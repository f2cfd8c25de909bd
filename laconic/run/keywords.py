"""The keywords of `simulate` and `server_app`, for editors and type checkers. A test compares them with the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from laconic.core.task import Metric, Metrics
from laconic.engine.settings import Faults, Network, RaySettings
from laconic.federation.settings import Defenses, Sampling, Weighting
from laconic.gradients.numerics import Numerics

Table = Mapping[str, Any]


class SettingsKeywords(TypedDict, total=False):
    """The settings of a run: see `laconic.Settings`."""

    rounds: int
    participants: int | None
    seed: int
    subspace: float | str | None
    subspace_every: int | None
    eval_every: int
    metrics: str | Sequence[str] | Metrics | Metric | None
    sampling: Sampling | str | Sequence[float]
    weighting: Weighting | None
    buffers: Literal["mean", "frozen"]
    diagnostics: bool
    full_gradient: bool
    client_eval: float | None
    personalize: int | None
    defense: Defenses | Table
    max_violations: int
    faults: Faults | Table
    network: Network | Table
    numerics: Numerics | Table
    device: str
    threads: int | None
    chunk: int | None
    store: Literal["memory", "disk"]
    store_cache: int | str
    engine: Literal["inline", "processes", "ray", "auto"]
    ray: RaySettings | Table
