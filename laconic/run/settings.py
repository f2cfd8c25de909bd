"""Settings of a run. This module does not import torch: the command line derives its options from it."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from laconic.core.counts import counted
from laconic.core.errors import ConfigError
from laconic.core.validation import explain
from laconic.engine.settings import Faults, Network, RaySettings
from laconic.federation.settings import AnySampling, Defenses, Weighting
from laconic.gradients.numerics import Numerics


def _fraction(value: Any) -> Any:
    try:
        return float(Fraction(value)) if isinstance(value, str) else value
    except (ValueError, ZeroDivisionError):
        return value


Share = Annotated[float, BeforeValidator(_fraction), Field(gt=0, lt=1)]
"""A share, which may be written as a fraction: 1/10."""


class Settings(BaseModel):
    """The settings of a run that do not belong to the algorithm. Those from `threads` on do not change the result."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rounds: int = Field(100, ge=1)
    """Number of rounds."""
    participants: int | None = Field(None, ge=1)
    """Clients per round. Default: all clients."""
    seed: int = Field(0, ge=0)
    """Random seed."""
    subspace: Share | None = None
    """Train large layers in a random subspace of this share of their size, such as 1/10. Default: the whole space."""
    subspace_every: int | None = Field(None, ge=1)
    """With subspace: rounds after which another subspace is drawn around the current model. Default: never."""
    eval_every: int = Field(5, ge=1)
    """Rounds between evaluations; the last round is always evaluated."""
    metrics: str | None = None
    """Further metrics of every evaluation, such as f1,class_accuracy or r2 (extra `metrics`)."""
    sampling: AnySampling = "uniform"
    """How participants are drawn: uniform, weighted by size, poisson (each independently), or probabilities 0.1,0.5,…"""
    weighting: Weighting | None = None
    """Weight of an update in the mean: equal (uniform), or the client's size (size). Default: the paper's; uniform with
    weighted sampling."""
    buffers: Literal["mean", "frozen"] = "mean"
    """Batch-norm statistics: sent with every update and averaged (mean), or kept at their initial values (frozen)."""
    diagnostics: bool = False
    """Measure the compression errors that the papers call q_C, q_A, gamma and lambda, and the norm of error memories; record
    who took part."""
    full_gradient: bool = False
    """Measure loss and gradient over all clients, and how similar their gradients are."""
    client_eval: float | None = Field(None, gt=0, lt=1)
    """Share of each client's examples, such as 0.2, to hold out and evaluate by client."""
    personalize: int | None = Field(None, ge=1)
    """With client_eval: also evaluate each client's model after this many local steps of its own."""
    defense: Defenses = Defenses()
    """Robust aggregation, clipping and differential privacy."""
    max_violations: int = Field(3, ge=1)
    """Number of refused replies after which a client is blocked. Late replies and failed processes do not count."""
    faults: Faults = Faults()
    """Injected faults and attacks."""
    network: Network = Network()
    """The simulated network."""
    numerics: Numerics = Numerics()
    """How gradients are computed."""
    device: str = "cpu"
    """PyTorch device: cpu, cuda, cuda:1, …"""
    threads: int | None = Field(None, ge=1)
    """Number of threads, or of worker processes, that run clients; affects speed only. Default: one per core."""
    chunk: int | None = Field(None, ge=1)
    """Number of clients that a thread trains together; affects speed only. Default: chosen automatically."""
    store: Literal["memory", "disk"] = "memory"
    """Where client states are stored between rounds; use disk if they do not fit in memory."""
    store_cache: ByteSize = ByteSize(500_000_000)
    """Size of the disk store's in-memory cache, such as 200MB."""
    engine: Literal["inline", "processes", "ray", "auto"] = "inline"
    """What runs the clients: inline (threads), processes, ray, or auto: inline or processes, by model and rounds."""
    ray: RaySettings = Field(default_factory=RaySettings)
    """The Ray engine."""

    def expected_participants(self, clients: int) -> int:
        """The number of participants in a round; with given probabilities the expected number."""
        if isinstance(self.sampling, str):
            return self.participants or clients
        if len(self.sampling) != clients:
            given = f"{counted(len(self.sampling), 'probability')}, {counted(clients, 'client')}"
            raise ConfigError(f"sampling: {given}: one for each is needed")
        expected = max(1, round(sum(self.sampling)))
        if self.participants not in (None, expected):
            raise ConfigError(f"participants = {self.participants}: the probabilities of sampling add up to {expected}")
        return expected

    def draws_unequally(self, clients: int) -> bool:
        """Whether some clients take part in more rounds than others."""
        if isinstance(self.sampling, str):
            return self.sampling == "weighted" and self.expected_participants(clients) < clients
        return len({*self.sampling}) > 1

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_are_names(cls, value: Any) -> Any:
        names = [value] if value is None or isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(name is None or isinstance(name, str) for name in names):
            raise ValueError(
                "names are allowed, such as 'f1,auroc' or ['f1', 'auroc']; in Python also a dict of metrics"
            )
        return value if value is None else ",".join(names)

    @model_validator(mode="after")
    def _there_is_a_subspace(self) -> Settings:
        if self.subspace_every is not None and self.subspace is None:
            raise ValueError(f"subspace_every = {self.subspace_every}: needs subspace, such as 1/10")
        return self

    @model_validator(mode="after")
    def _personalize_is_evaluated(self) -> Settings:
        if self.personalize is not None and self.client_eval is None:
            raise ValueError(f"personalize = {self.personalize}: needs client_eval, the share of examples to hold out")
        return self

    @model_validator(mode="after")
    def _engine_has_workers(self) -> Settings:
        if self.engine != "ray" and self.ray != RaySettings():
            given = ", ".join(
                f"ray.{key} = {value!r}" for key, value in self.ray.model_dump(exclude_defaults=True).items()
            )
            raise ValueError(f"{given}: only with engine = 'ray'")
        return self

    # The last validator contains the ones above it.
    @model_validator(mode="wrap")
    @classmethod
    def _errors_are_one_line(cls, table: Any, validate: ModelWrapValidatorHandler[Settings]) -> Settings:
        try:
            return validate(table)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None


def flattened(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables into one, with keys such as `method.local_lr`."""
    flat_table: dict[str, Any] = {}
    for key, value in table.items():
        flat_table |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat_table


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """Flatten the settings of a run, without those of the network, faults and defenses that have their default."""
    defaults = flattened(
        Settings.model_validate({}).model_dump(include={"network", "faults", "defense", "max_violations"})
    )
    return {key: value for key, value in flattened(table).items() if key not in defaults or defaults[key] != value}
