"""The settings of a run that belong to no part of the algorithm."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from laconic.core.units import parse_bytes
from laconic.engine.settings import Faults, Network, RaySettings
from laconic.federation.settings import Defenses, Sampling, Weighting
from laconic.gradients.numerics import Numerics


class Settings(BaseModel):
    """How long, how many, on what. The last six change nothing in the result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(100, ge=1)
    participants: int | None = Field(None, ge=1)
    """Clients per round; all of them when not given."""
    seed: int = Field(0, ge=0)
    eval_every: int = Field(5, ge=1)
    """Rounds between two evaluations; the last round is always evaluated."""
    sampling: Sampling = "uniform"
    weighting: Weighting = "uniform"
    """A client's weight in the mean: 1, or its number of examples."""
    buffers: Literal["mean", "frozen"] = "mean"
    """Batch-norm statistics: averaged and sent with every update, or left as they are and never sent."""
    diagnostics: bool = False
    """Measure in every round what the papers assume of a compressor: q_C, q_A, gamma, the norm of the memories."""
    full_gradient: bool = False
    """Measure with every evaluation the objective over all clients, its gradient, and how alike clients' gradients are."""
    defense: Defenses = Defenses()
    max_violations: int = Field(3, ge=1)
    """Refused replies after which a client is not asked any more; late ones do not count."""
    faults: Faults = Faults()
    network: Network = Network()
    numerics: Numerics = Numerics()
    device: str = "cpu"
    threads: int | None = Field(None, ge=1)
    """Python threads over clients; one per core when not given."""
    chunk: int | None = Field(None, ge=1)
    """Clients handled together by one thread."""
    store: Literal["memory", "disk"] = "memory"
    """Where clients' states are kept between rounds."""
    store_cache: Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)] = 500_000_000
    """With the store on disk: the bytes of states that are kept in memory, too."""
    engine: Literal["inline", "ray"] = "inline"
    """Who runs the clients: this process, or Ray's workers, which keep clients' states on disk."""
    ray: RaySettings = Field(default_factory=RaySettings)

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
