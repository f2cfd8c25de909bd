"""Tasks: a module, its loss and its metrics.

The loss is any function of module and batch, so a custom task needs one small function. A batch is a tuple of tensors,
usually (inputs, targets).
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laconic.core.counts import counted
from laconic.core.errors import ConfigError, LaconicError, suggestion, warn
from laconic.core.user_code import blamed

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]
Means = Callable[[nn.Module, Batch], dict[str, Tensor]]
Predict = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]
Share = Callable[[Batch], Tensor]


@runtime_checkable
class Metric(Protocol):
    """A metric that accumulates, as those of torchmetrics do."""

    def update(self, outputs: Tensor, targets: Tensor) -> Any:
        """Add the model's outputs on a batch, and the targets."""

    def compute(self) -> Any:
        """The value over all batches since the last reset."""

    def reset(self) -> Any:
        """Forget all batches."""


Metrics = Mapping[str, Metric | Callable[[Tensor, Tensor], Any]]
"""Metrics by name."""


def own_loss(module: nn.Module, batch: Batch) -> Tensor:
    """The loss that the module itself computes from the targets, its `labels`: the `loss` of its output."""
    output = module(*batch[:-1], labels=batch[-1])
    loss = _entry(output, "loss")
    if not isinstance(loss, Tensor):
        raise ConfigError(
            f"model, called with labels, returns {type(output).__name__}: an object or dict with a loss is needed; or pass "
            "laconic.Task(module, loss)"
        )
    return loss


def _entry(output: Any, name: str) -> Any:
    """An entry of an object or a dict, as Hugging Face's models return; None if there is none."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


@dataclass(frozen=True)
class Task:
    """A module, its loss and its metrics.

    A batch is a tuple of tensors, usually (inputs, targets).

    Args:
        loss: `loss(module, batch)` is the mean loss over the batch, a scalar tensor. Default: the loss that the module
            computes itself, as the models of Hugging Face do. It gets the targets as `labels`; its output has a `loss`.
        metrics: Metrics by name. Each is a metric of torchmetrics, or a function of the outputs and targets of all examples.
            torchmetrics treats outputs as probabilities if all of them are between 0 and 1, which the logits of few
            examples may be by chance. To avoid this, let `predict` return probabilities.
        losses: The per-example losses, 0 for targets that do not count. Their mean, divided by `counted`, is `loss`. Models
            of linear, embedding and GRU layers train faster with it.
        means: `means(module, batch)` returns metrics that are means over examples, such as {"loss": …, "accuracy": …}. An
            evaluation averages them over batches, weighted by batch size and `counted`. Default: the loss.
        predict: `predict(module, batch)` returns the outputs and targets that `metrics` compares. Default: the module is
            called with all tensors of the batch but the last, which is the target.
        counted: `counted(batch)` is the share of the batch's targets that count. Default: all of them.
    """

    module: nn.Module
    loss: Loss = own_loss
    metrics: Metrics | Metric | None = None
    losses: Loss | None = None
    means: Means | None = None
    predict: Predict | None = None
    counted: Share | None = None

    def __post_init__(self) -> None:
        module: object = self.module
        if not isinstance(module, nn.Module):
            name = getattr(module, "__name__", type(module).__name__)
            hint = f"; pass {name}(…), not the class" if isinstance(module, type) else ""
            raise ConfigError(f"Task: module = {name}: a torch.nn.Module is needed{hint}")
        if isinstance(self.loss, nn.Module) or _is_torch_loss(self.loss):
            name = getattr(self.loss, "__name__", f"{type(self.loss).__name__}(…)")
            raise ConfigError(
                f"Task: loss = {name}: a function of module and batch is needed, as in "
                "lambda module, batch: F.cross_entropy(module(batch[0]), batch[1])"
            )
        given = self.metrics.values() if isinstance(self.metrics, Mapping) else [self.metrics]
        for metric in (metric for metric in given if isinstance(metric, type)):
            raise ConfigError(f"metrics: {metric.__name__} is a class; pass {metric.__name__}(…)")
        if isinstance(self.metrics, Metric):
            # A MetricCollection of torchmetrics, whose value is a dict.
            object.__setattr__(self, "metrics", {"": self.metrics})
        elif self.metrics is not None and not isinstance(self.metrics, Mapping):
            raise ConfigError(
                "metrics: a dict of torchmetrics objects, or of functions of all outputs and targets, is allowed; "
                "a function of module and batch that returns means over the batch is passed as means="
            )

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Task:
        """A copy on a device, with parameters and floating-point buffers of one type."""
        return replace(self, module=copy.deepcopy(self.module).to(device=device, dtype=dtype))

    def measure(self, module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The means over one batch."""
        return self.means(module, batch) if self.means else {"loss": self.loss(module, batch)}

    def share(self, batch: Batch) -> float:
        """The share of the batch's targets that count. If it is 0, the batch has no means and no outputs to compare."""
        return float(self.counted(batch)) if self.counted else 1.0

    def named_metrics(self) -> Metrics:
        """The metrics by name."""
        assert not isinstance(self.metrics, Metric)
        return self.metrics or {}

    def with_metrics(self, metrics: Metrics | Metric) -> Task:
        """A copy with further metrics."""
        more = replace(self, metrics=metrics).named_metrics()
        return replace(self, metrics={**self.named_metrics(), **more})

    def outputs(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The outputs and targets that `metrics` compares."""
        return self.predict(module, batch) if self.predict else (output_of(module, batch), batch[-1])

    def fingerprint(self) -> str:
        """A hash of the module's structure, its frozen parameters and the name of its loss, without trained parameters."""
        # Some layers print a function with its address, which differs between processes.
        structure = re.sub(r" at 0x[0-9a-f]+", "", repr(self.module))
        digest = sha256(f"{structure}/{getattr(self.loss, '__qualname__', type(self.loss).__qualname__)}".encode())
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:
                digest.update(name.encode() + parameter.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def check(self, batch: Batch) -> None:
        """Run loss and metrics once. A model that does not fit the data is a `ConfigError` before the run starts."""
        module = copy.deepcopy(self.module)
        try:
            # In evaluation mode, since batch norm in training mode needs more than one example.
            with torch.no_grad():
                module.eval()
                value: object = self.loss(module, batch)
                values = self.measure(module, batch)
                if self.metrics:
                    self.outputs(module, batch)
        except LaconicError:
            raise
        except Exception as error:
            raise _misfit(error, batch) from error
        _check_results(value, values)


def _misfit(error: Exception, batch: Batch) -> ConfigError:
    """The error of a model that fails on a batch: where, the first line of the cause, and a hint."""
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in batch)
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    location = blamed(error)
    at = f" at {location[0]}" if location else ""
    hint = _hint(line, batch)
    return ConfigError(f"model does not fit the data (a batch has shapes {shapes}){at}: {line}{hint}")


def _hint(line: str, batch: Batch) -> str:
    """What to do about an error of PyTorch or Python; empty if nothing is known."""
    if line.endswith("unexpected keyword argument 'labels'"):
        return "; the module computes no loss: pass laconic.Task(module, loss)"
    if line.endswith("argument: 'labels'"):
        return "; for a module that computes its own loss pass laconic.Task(module)"
    if line.startswith("Target ") and "out of bounds" in line:
        return "; labels are numbered from 0"
    if len(batch) > 2 and re.search(r"takes .* positional argument", line):
        return f"; of the {len(batch)} entries of a sample, the last is the target and the others are inputs"
    if not batch[0].is_floating_point() and "dtype" in line:
        pixels, numbers = "for pixels pass normalize=(means, deviations) to from_arrays", "convert them to floats"
        return f"; the inputs are integers: {pixels if batch[0].ndim > 2 else f'{numbers}, unless they are tokens'}"
    return ""


def _check_results(value: object, values: object) -> None:
    """Check what the loss and the means returned."""
    if not isinstance(values, dict):
        raise ConfigError(f"means must return a dict of numbers by name; it returned {type(values).__name__}")
    if not isinstance(value, Tensor):
        which = "; return its loss" if isinstance(_entry(value, "loss"), Tensor) else ""
        raise ConfigError(f"loss must return a tensor; it returned {type(value).__name__}{which}")
    if value.ndim != 0:
        raise ConfigError(f"loss must be one number, the mean over the batch; it has shape {tuple(value.shape)}")


def _is_torch_loss(loss: Loss) -> bool:
    """Whether it is a function of outputs and targets, as those of torch.nn.functional are."""
    return getattr(loss, "__module__", None) == F.__name__


def classification(module: nn.Module) -> Task:
    """Cross-entropy loss; the metrics are loss and accuracy."""
    losses, means = _classification_losses, _classification_means
    return Task(module, _classification_loss, losses=losses, means=means, predict=_counted_logits)


def is_cross_entropy(task: Task) -> bool:
    """Whether the loss is that of `classification`, which has specialized gradients."""
    return task.loss is _classification_loss and task.losses is _classification_losses


def is_squared_error(task: Task) -> bool:
    """Whether the loss is that of `regression`, which has specialized gradients."""
    return task.loss is _regression_loss and task.losses is _regression_losses


def predicts_classes(task: Task) -> bool:
    """Whether the loss is that of `classification` or `next_token`: outputs are logits of classes."""
    return task.loss in (_classification_loss, _token_loss)


def has_own_logits(task: Task) -> bool:
    """Whether the module computes its own loss, and its outputs, which may be logits of classes, are those of `predict`."""
    return task.loss is own_loss and task.predict in (None, _counted_logits)


def next_token(module: nn.Module) -> Task:
    """Next-token prediction: the module returns logits [batch, time, vocabulary] for tokens [batch, time].

    Targets of -100 do not count. The loss of a batch without any other target is 0.
    """
    losses, means = _classification_losses, _classification_means
    return Task(module, _token_loss, losses=losses, means=means, predict=_counted_logits, counted=_counted_share)


def per_position(module: nn.Module) -> Task:
    """One class per position: the tokens of a text, or the pixels of an image. Targets of -100 do not count.

    Logits are [batch, time, classes] for labels [batch, time], or [batch, classes, height, width] for labels [batch, height,
    width].
    """
    return next_token(module)


def regression(module: nn.Module) -> Task:
    """Mean squared error; the metrics are loss and mean absolute error."""
    losses, means = _regression_losses, _regression_means
    return Task(module, _regression_loss, losses=losses, means=means, predict=_predictions)


TASKS: dict[str, Callable[[nn.Module], Task]] = {
    "classification": classification,
    "next_token": next_token,
    "per_position": per_position,
    "regression": regression,
}


IGNORED = -100
"""The target of a token that does not count, such as padding: torch's and Hugging Face's `ignore_index`."""


def called_by_name(module: nn.Module, names: Sequence[str], optional: Sequence[str] = ()) -> nn.Module:
    """A copy of a module that gets its inputs, in the order of `names`, as those keyword arguments of its `forward`.

    A module without any of these parameters gets them in order. Other modules do not get inputs that they have no parameter
    for: a warning names these, unless they are `optional`.
    """
    accepted = _accepted_names(module, names)
    if not accepted:
        return module
    parameters = inspect.signature(module.forward).parameters
    for name in names:
        if name not in accepted and name not in optional:
            near = suggestion(name, [other for other in parameters if other not in names])
            warn(f"model: forward has no parameter '{name}': it does not get this input{near and f'; {near}'}")

    def by_name(_: nn.Module, inputs: tuple[Any, ...], more: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = dict(zip(names, inputs, strict=False))
        return (), more | {name: value for name, value in given.items() if name in accepted}

    module = copy.deepcopy(module)
    module.register_forward_pre_hook(by_name, with_kwargs=True)
    return module


def _accepted_names(module: nn.Module, names: Sequence[str]) -> list[str]:
    """The names that `forward` takes as keyword arguments; empty if inputs are passed in order."""
    parameters = inspect.signature(module.forward).parameters
    named = [name for name in names if name in parameters]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return named
    required = [p for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return [] if required and not named else list(names)


def output_of(module: nn.Module, batch: Batch) -> Tensor:
    """The module's output tensor, also from an object or dict with `logits`, as Hugging Face's models return."""
    output = module(*batch[:-1])
    if isinstance(output, Tensor):
        return output
    logits = _entry(output, "logits")
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"model returns {type(output).__name__}: a tensor, or an object or dict with logits, is allowed"
        )
    return logits


def _logits(module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    targets, outputs = batch[-1], output_of(module, batch)
    logits = _classes_last(outputs, targets)
    if logits.shape[:-1] != targets.shape:
        raise ConfigError(
            f"model's output has shape {tuple(outputs.shape)}, which does not fit labels of shape {tuple(targets.shape)}: "
            "it must have one more dimension, the classes"
        )
    return logits.flatten(0, -2), targets.flatten()


def _classes_last(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits whose classes are the last dimension. Those of images are in dimension 1, those of texts usually the last."""
    second = logits.shape[:1] + logits.shape[2:] == targets.shape
    return logits.movedim(1, -1) if second and (targets.ndim > 2 or logits.shape[:-1] != targets.shape) else logits


def _counted_logits(module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and targets without ignored targets."""
    logits, targets = _logits(module, batch)
    counted = targets != IGNORED
    return logits[counted], targets[counted]


def _classification_loss(module: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(*_logits(module, batch))


def _token_loss(module: nn.Module, batch: Batch) -> Tensor:
    logits, targets = _logits(module, batch)
    # If no target counts, cross-entropy is 0/0, and its gradient 0.
    return torch.where((targets != IGNORED).any(), F.cross_entropy(logits, targets), 0.0)


def _counted_share(batch: Batch) -> Tensor:
    return (batch[-1] != IGNORED).double().mean()


def _classification_losses(module: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(*_logits(module, batch), reduction="none")


def _classification_means(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits, targets = _counted_logits(module, batch)
    accuracy = (logits.argmax(-1) == targets).to(logits.dtype).mean()
    return {"loss": F.cross_entropy(logits, targets), "accuracy": accuracy}


def _predictions(module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    targets, outputs = batch[-1], output_of(module, batch)
    if outputs.shape != targets.shape:
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        hint = (
            "the targets are floating-point, so this is regression; for classes pass integers, or kind='classification'"
        )
        if targets.ndim > 1:
            hint = f"for {counted(targets.shape[-1], 'number')} per example the model needs as many outputs"
        shapes = f"{tuple(outputs.shape)}, which does not fit targets of shape {tuple(targets.shape)}"
        raise ConfigError(f"model's output has shape {shapes}; {hint}")
    return outputs, targets


def _regression_loss(module: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(*_predictions(module, batch))


def _regression_losses(module: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(*_predictions(module, batch), reduction="none")


def _regression_means(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    outputs, targets = _predictions(module, batch)
    return {"loss": F.mse_loss(outputs, targets), "absolute_error": F.l1_loss(outputs, targets)}
