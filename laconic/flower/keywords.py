"""The keywords of `server_app`, for editors and type checkers. A test compares them with the settings that it takes."""

from __future__ import annotations

from typing import Literal, TypedDict

from laconic.algorithms.parameters import Changes
from laconic.run.keywords import SettingsKeywords


class DeploymentKeywords(TypedDict, total=False):
    """The settings that only a real federation has: see `laconic.flower.deployment.Deployment`."""

    out: str | None
    from_round: int
    deadline: float
    adaptive_deadline: bool
    quorum: float
    first: int | None
    minimum: int
    replace_nodes: bool
    most_examples: int
    largest_weight: float
    client_eval_every: int


class ServerKeywords(SettingsKeywords, DeploymentKeywords, Changes, total=False):
    """Settings of the run and of the deployment, changes of the algorithm, and short names of keys within tables."""

    clients: int | None
    partition: str | None
    augment: str | None
    skip_empty: bool
    dtype: Literal["float32", "float64", "bfloat16"]
    strategy: Literal["auto", "compiled", "stacked", "vmap", "loop"]
    vmap_width: int
    aggregate: str
    clip_updates: float | str | None
    refuse_updates: float | Literal["auto", "none"] | None
    dp_noise: float
    dp_delta: float
