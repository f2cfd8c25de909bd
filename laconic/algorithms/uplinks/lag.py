"""LAG as an uplink: an update is skipped if it has changed less than the model has moved in the last rounds.

[L] is Chen, Giannakis, Sun and Yin, "LAG: Lazily aggregated gradient for communication-efficient distributed learning",
NeurIPS 2018, as FedBNLACA's paper [B] prints it in equations (1) and (2).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PlainValidator
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.uplinks.base import Encoded
from laconic.algorithms.uplinks.lazy import SkippingUplink
from laconic.compression import Payload
from laconic.core.errors import ConfigError
from laconic.core.part import STATEFUL, State, part


class LagWeights(tuple[float, ...]):
    """One weight for each lag, spelled `0.4,0.2,0.1` in a config."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(f"{weight:g}" for weight in self)


def parse_weights(value: Any) -> LagWeights:
    """Read a list of weights, or its spelling.

    >>> print(parse_weights("0.4, 0.2,0.1"))
    0.4,0.2,0.1
    """
    try:
        weights = LagWeights(float(weight) for weight in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        weights = LagWeights()
    if not weights or not all(0 <= weight < math.inf for weight in weights):
        raise ValueError("a number, or a list such as 0.4,0.2,0.1, one for each of `window` steps")
    return weights


@part("uplink", "lag")
class LAG(SkippingUplink):
    """An update y is skipped if ||y - r||^2 <= 1 / (alpha N)^2 sum_{k=1..R} xi_k ||w^{t+1-k} - w^{t-k}||^2 [B, (1)].

    r is the last update sent. LAG's rule is for gradients, and its alpha is the step size. With one local step, y is the
    gradient times minus the local rate, so alpha is in units of that rate, and alpha = 1 is LAG's rule. w^t, w^{t-1}, …
    are the models that the client has received: with full participation those of the last rounds.

    A client keeps the last model and R numbers. On failure: a client that has lost its state sends its next update.
    """

    window: Annotated[int, Field(ge=1)] = 10
    """R, the number of earlier steps of the model."""
    weight: Annotated[float, Field(ge=0)] | Annotated[LagWeights, PlainValidator(parse_weights)] = 0.1
    """xi_k, the weight of every step, or a list of `window` weights, that of the last step first."""
    alpha: Annotated[float, Field(gt=0)] = 1.0
    """The step size of LAG's rule, in units of the local learning rate."""
    rule: Literal["update", "model"] = "update"
    """`model` replaces ||y - r|| by smoothness ||w - w'||, with w' the model of the last update sent [B, (2)]."""
    smoothness: Annotated[float, Field(gt=0)] | None = None
    """For `rule="model"`: a bound on ||y(w) - y(w')|| / ||w - w'||; with one local step the local rate times L."""
    sensitivity = STATEFUL

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rule == "model") != (self.smoothness is not None):
            raise ConfigError(f"uplink.rule = '{self.rule}', smoothness = {self.smoothness}: use both, or neither")
        if isinstance(self.weight, LagWeights) and len(self.weight) != self.window:
            raise ConfigError(f"uplink.weight = {self.weight}: needs as many numbers as uplink.window = {self.window}")

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        assert context.model is not None  # encoding happens on a client
        model = context.model.to(update.device)
        steps = state.get("steps", torch.zeros(0, dtype=torch.float64))
        if "model" in state:
            steps = torch.cat([_squared(model - state["model"])[None], steps])[: self.window]
        encoded = super().encode(update, state | {"steps": steps}, context)
        new = encoded.state | {"model": model.clone(), "steps": steps}
        if self.rule == "model":
            new["sent_at"] = model.clone() if encoded.similar is None else state["sent_at"]
        return Encoded(encoded.body, new, encoded.used, remembered=encoded.remembered, similar=encoded.similar)

    def is_similar(self, payload: Payload, state: State, context: RoundContext) -> bool:
        steps = state["steps"]
        weight = self.weight if isinstance(self.weight, float) else torch.tensor(self.weight[: len(steps)]).to(steps)
        limit = float((weight * steps).sum()) / (self.alpha * context.population) ** 2
        if self.smoothness is None:
            return float(_squared(payload.dense() - self.reference(state, context.layout).dense())) <= limit
        assert context.model is not None
        return self.smoothness**2 * float(_squared(context.model.cpu() - state["sent_at"])) <= limit


def _squared(vector: Tensor) -> Tensor:
    """The squared norm, in double precision."""
    norm: Tensor = torch.linalg.vector_norm(vector.double())
    return norm.square().cpu()
