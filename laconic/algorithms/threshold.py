"""The threshold below which a link calls two vectors similar. [B] is the paper of FedBNLACA and FedBACA."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from laconic.algorithms.context import RoundContext
from laconic.core.part import Part, checked


@checked
class RelativeThreshold(Part):
    """A threshold on a relative change: a number, or C / (alpha n) [B, equations (3) and (4)] with n participants.

    `constant="suggested"` is C = sqrt(alpha ln N) / N [B, section 5]. With privacy noise, n is the expected number of
    participants.
    """

    threshold: Annotated[float, Field(ge=0)] | None = None
    """The threshold itself, instead of `constant` and `alpha`."""
    constant: Annotated[float, Field(ge=0)] | Literal["suggested"] | None = None
    """C; the paper calls it D in accelerated aggregation."""
    alpha: Annotated[float, Field(gt=0)] = 1.0
    """alpha of C / (alpha n)."""

    def limit(self, context: RoundContext) -> float | None:
        """The threshold in this round; None if neither `threshold` nor `constant` is set."""
        constant = self.constant
        if self.threshold is not None or constant is None:
            return self.threshold
        if constant == "suggested":
            constant = math.sqrt(self.alpha * math.log(context.population)) / context.population
        return constant / (self.alpha * context.invited)
