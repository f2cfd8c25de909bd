"""The threshold below which a link calls two vectors similar. [B] is the paper of FedBNLACA and FedBACA."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from laconic.algorithms.context import RoundContext
from laconic.core.part import Part, checked


@checked
class RelativeThreshold(Part):
    """A threshold on a relative change: a number, or `constant` / (alpha n) for n participants [B, (3) and (4)].

    `constant="suggested"` is sqrt(alpha ln N) / N for N clients [B, section 5]. With privacy noise, n is the expected
    number of participants.
    """

    threshold: Annotated[float, Field(ge=0)] | None = None
    """The threshold itself, instead of `constant` and `alpha`."""
    constant: Annotated[float, Field(ge=0)] | Literal["suggested"] | None = None
    """The paper calls it C, and D in accelerated aggregation. Setting it unsets a threshold that a recipe has set."""
    alpha: Annotated[float, Field(gt=0)] = 1.0
    """alpha of `constant` / (alpha n)."""

    def replace(self, **changes: Any) -> Self:
        # Setting the constant unsets the threshold, which would take precedence.
        if changes.get("constant") is not None and "threshold" not in changes:
            changes["threshold"] = None
        return super().replace(**changes)

    def limit(self, context: RoundContext) -> float | None:
        """The threshold in this round; None if neither `threshold` nor `constant` is set."""
        constant = self.constant
        if self.threshold is not None or constant is None:
            return self.threshold
        if constant == "suggested":
            constant = math.sqrt(self.alpha * math.log(context.population)) / context.population
        return constant / (self.alpha * context.invited)
