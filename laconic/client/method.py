"""What a client computes from the model and its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field
from torch import Tensor

from laconic.client.batches import BatchOrder, nominal_examples, positions
from laconic.client.cohort import Cohort, Step
from laconic.errors import ConfigError
from laconic.parts import Part, checked

DEFAULT_STEPS = 10
Count = Annotated[int, Field(ge=1)]


class Method(Part):
    """A client's work in one round."""

    one_at_a_time: ClassVar[bool] = False
    """True for work that cannot share the process: it then runs alone, with all the operator threads."""

    def local(self, cohort: Cohort) -> Tensor:
        """The updates [C, d]: each client's end minus its start."""
        raise NotImplementedError

    def nominal_gradients(self, size: int) -> int:
        """How many gradients of single examples the papers count for a client with `size` examples."""
        raise NotImplementedError


@checked
class LocalMethod(Method):
    """A method that takes local steps on small batches: K steps, or whole passes over the client's data."""

    local_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    """a, the local learning rate."""
    local_steps: Count | None = None
    """K; 10 when neither steps nor epochs are given."""
    local_epochs: Count | None = None
    batch_size: Count = 32
    batch_order: BatchOrder = "shuffled"
    """`fixed` is the order of the client's data, the same in every round."""

    def __post_init__(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            given = f"local_steps = {self.local_steps}, local_epochs = {self.local_epochs}"
            raise ConfigError(f"method: {given}: only one of the two is allowed")
        if self.local_epochs is None and self.local_steps is None:
            object.__setattr__(self, "local_steps", DEFAULT_STEPS)

    def replace(self, **changes: Any) -> Self:
        """Choosing steps puts epochs aside, and the other way round."""
        for one, other in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
            if changes.get(one) is not None and other not in changes:
                changes[other] = None
        return super().replace(**changes)

    def steps(self, cohort: Cohort) -> Iterator[Step]:
        """The cohort's local steps in this round."""

        def plan(size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
            counts = (self.batch_size, self.local_steps, self.local_epochs)
            return positions(size, *counts, self.batch_order, generator)

        return cohort.steps(plan)

    def nominal_gradients(self, size: int) -> int:
        """K b', or the examples of the passes."""
        return nominal_examples(size, self.batch_size, self.local_steps, self.local_epochs)
