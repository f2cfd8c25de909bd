"""Mixed precision: forward and backward passes in bfloat16, with parameters, gradients and all other state in float32."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from laconic.core.errors import ConfigError
from laconic.core.task import Batch, Loss, Task


@dataclass(frozen=True)
class Autocast:
    """A loss that torch's autocast computes in bfloat16 where it is safe. Autograd then uses the same types backward."""

    loss: Loss
    device_type: str

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        # Threads share the cache of cast weights: with it, the bits of a layer that is used twice would depend on timing.
        with torch.autocast(self.device_type, torch.bfloat16, cache_enabled=False):
            return self.loss(module, batch).float()


def in_bfloat16(task: Task, device: torch.device) -> Task:
    """The task with the losses for training in bfloat16. Evaluation stays in float32."""
    if not torch.amp.is_autocast_available(device.type):
        raise ConfigError(f"dtype = 'bfloat16': torch has no autocast for device '{device}'; use float32")
    losses = None if task.losses is None else Autocast(task.losses, device.type)
    return replace(task, loss=Autocast(task.loss, device.type), losses=losses, means=task.measure)
