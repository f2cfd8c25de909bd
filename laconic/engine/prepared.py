"""Preparation of a task for training: it moves to its device, is tried on an example, and gets a gradient strategy.

Simulations, Flower servers and Flower nodes all use `prepare`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.subspace import Subspace
from laconic.core.task import Batch, Task, has_own_logits, own_loss, predicts_classes
from laconic.data.federated import ClientData
from laconic.engine.doubts import doubt_task
from laconic.gradients.choose import resolve_numerics
from laconic.gradients.named_rng import Stochastic, stochastic
from laconic.gradients.numerics import Numerics
from laconic.gradients.precision import in_bfloat16

Example = Callable[[torch.dtype], Batch]
"""A function that returns a batch of two examples in a given floating-point type."""


@dataclass(frozen=True)
class PreparedTask:
    """A checked task, its layout and its numerics."""

    task: Task
    layout: Layout
    numerics: Numerics
    stochastic: Stochastic
    device: torch.device
    batch: Batch | None
    """The example batch on the task's device, if there was one."""

    @cached_property
    def initial_model(self) -> Tensor:
        """The initial vector that is trained and sent. Server and clients of one process share it."""
        return self.layout.flatten(self.task.module)

    def __getstate__(self) -> dict[str, Any]:
        # Another process flattens its own module.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def initial_weights(self) -> Tensor:
        """All initial parameters as one vector, also those of layers that are trained in a subspace."""
        return self.layout.full.flatten(self.task.module)

    @property
    def initial_buffers(self) -> Tensor:
        """The initial floating-point buffers as one vector."""
        return self.layout.flatten_buffers(self.task.module).to(self.device)


def prepare(
    task: Task,
    numerics: Numerics,
    device: torch.device,
    example: Example | None,
    classes: int | None,
    subspace: float | None = None,
    seed: int = 0,
    every: int | None = None,
) -> PreparedTask:
    """Check a task on an example. Without one the strategy `auto` becomes `loop`, which works for every model.

    Args:
        subspace: The share of the numbers that are trained, in a random subspace that follows from `seed`. None: all.
        every: The number of rounds after which the subspace is redrawn. None: never.
    """
    dtype: torch.dtype = getattr(torch, numerics.state_dtype)
    task = task.to(device, dtype)
    layout = Layout.of(task.module) if subspace is None else Subspace.within(task.module, subspace, seed, every)
    trained = in_bfloat16(task, device) if numerics.dtype == "bfloat16" else task
    if example is None:
        chosen = numerics.model_copy(update={"strategy": "loop"}) if numerics.strategy == "auto" else numerics
        return PreparedTask(trained, layout, chosen, "no", device, None)
    batch = tuple(part.to(device) for part in example(dtype))
    _check_labels(task, classes, batch)
    task.check(batch)
    doubt_task(task, batch)
    if trained is not task:
        trained.check(batch)
    draws = stochastic(trained, batch)
    chosen = resolve_numerics(numerics, trained, layout.full, draws, batch)
    return PreparedTask(trained, layout, chosen, draws, device, batch)


def client_example(data: ClientData, client: int) -> Example:
    """Two examples of a client, since batch norm fails on one. A single example is repeated."""
    return lambda dtype: data.batch(client, np.arange(2) % data.size(client), dtype)


def _check_labels(task: Task, classes: int | None, batch: Batch) -> None:
    """Refuse a classifier with fewer outputs than classes. `Task.check` reports a module that fails."""
    own = has_own_logits(task)
    if classes is None or not (predicts_classes(task) or own):
        return
    try:
        with torch.no_grad():
            outputs = task.outputs(task.module.eval(), batch)[0].shape[-1]
    except Exception:
        return
    if outputs < classes and not (own and _takes_label(task, classes - 1, batch)):
        hint = "; one output for two classes needs a Task with binary_cross_entropy_with_logits" if outputs == 1 else ""
        raise ConfigError(f"model has {outputs} outputs, but the labels go from 0 to {classes - 1}{hint}")


def _takes_label(task: Task, label: int, batch: Batch) -> bool:
    """Whether a module's own loss works with this label: squared errors and contrastive losses need no output per class."""
    # On a CPU, since an index out of range ends the use of a GPU.
    module, inputs = copy.deepcopy(task.module).cpu().eval(), [part.cpu() for part in batch[:-1]]
    try:
        with torch.no_grad():
            own_loss(module, (*inputs, torch.full_like(batch[-1], label, device="cpu")))
    except IndexError:
        return False
    except Exception:  # of another cause, which `Task.check` reports
        return True
    return True


def usable_device(name: str) -> torch.device:
    """The torch device `name`. Raises `ConfigError` if it does not work on this machine."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ConfigError(f"device = '{name}': not usable here; allowed: {usable}") from error
    return device
