"""Settings of a run. Importable without torch: the command line reads its options from them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator

from laconic.engine.settings import Faults, Network, RaySettings
from laconic.federation.settings import Defenses, Sampling, Weighting
from laconic.gradients.numerics import Numerics


class Settings(BaseModel):
    """The settings of a run that belong to no part of the algorithm. The last six do not change the result."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rounds: int = Field(100, ge=1)
    """Rounds of training."""
    participants: int | None = Field(None, ge=1)
    """Clients per round; all when not given."""
    seed: int = Field(0, ge=0)
    """Seed of every random draw."""
    eval_every: int = Field(5, ge=1)
    """Rounds between evaluations; the last round is always evaluated."""
    sampling: Sampling = "uniform"
    """How participants are drawn: uniformly, weighted by examples, or each by an independent coin flip (poisson)."""
    weighting: Weighting = "uniform"
    """Weight of a client in the mean: the same for all, or its number of examples (size)."""
    buffers: Literal["mean", "frozen"] = "mean"
    """Batch-norm statistics: averaged and sent with every update (mean), or never changed and never sent (frozen)."""
    diagnostics: bool = False
    """Measure in every round what the papers assume of a compressor: q_C, q_A, gamma and the norm of the error memories."""
    full_gradient: bool = False
    """Measure at every evaluation the objective over all clients, its gradient, and how similar clients' gradients are."""
    defense: Defenses = Defenses()
    """Robust aggregation, clipping and differential privacy."""
    max_violations: int = Field(3, ge=1)
    """Refused replies after which a client is blocked; late replies do not count."""
    faults: Faults = Faults()
    """Injected faults and attacks."""
    network: Network = Network()
    """The simulated network."""
    numerics: Numerics = Numerics()
    """How gradients are computed."""
    device: str = "cpu"
    """PyTorch device: cpu, cuda, cuda:1, …"""
    threads: int | None = Field(None, ge=1)
    """Threads that run clients, one per core when not given; affects speed only."""
    chunk: int | None = Field(None, ge=1)
    """Clients that a thread computes together; affects speed only."""
    store: Literal["memory", "disk"] = "memory"
    """Where client states are kept between rounds; use disk when they do not fit in memory."""
    store_cache: ByteSize = ByteSize(500_000_000)
    """With the disk store: size of its cache in memory, as in 200MB."""
    engine: Literal["inline", "ray"] = "inline"
    """What runs the clients: this process (inline), or Ray on many cores or machines."""
    ray: RaySettings = Field(default_factory=RaySettings)
    """The Ray engine."""

    @model_validator(mode="after")
    def _engine_has_workers(self) -> Settings:
        if self.engine != "ray" and self.ray != RaySettings():
            given = ", ".join(
                f"ray.{key} = {value!r}" for key, value in self.ray.model_dump(exclude_defaults=True).items()
            )
            raise ValueError(f"{given}: only with engine = 'ray'")
        return self


def flattened(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one, with keys like `method.local_lr`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run as one table, without a network, faults or defenses that are as usual."""
    usual = flattened(
        Settings.model_validate({}).model_dump(include={"network", "faults", "defense", "max_violations"})
    )
    return {key: value for key, value in flattened(table).items() if key not in usual or usual[key] != value}
