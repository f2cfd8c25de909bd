"""Evaluation of the server's model on examples."""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from laconic.core.errors import ConfigError, LaconicError
from laconic.core.layout import Layout
from laconic.core.task import Batch, Metric, Task, output_of
from laconic.core.user_code import blamed, failure
from laconic.data.federated import ClientData, Indices
from laconic.run.inference import accelerate

BATCH = 500


AnyMetric = Metric | Callable[[Tensor, Tensor], Any]


@runtime_checkable
class ByBatch(Metric, Protocol):
    """The capability of a metric to get outputs and targets batch by batch, so that they need not be kept."""

    by_batch: bool


@dataclass(frozen=True)
class Measured:
    """One evaluated batch."""

    weight: float
    """The number of examples, times the share of their targets that count."""
    means: dict[str, Tensor]
    outputs: tuple[Tensor, Tensor] | None
    """Outputs and targets, if the task has metrics of all examples."""


Mapper = Callable[[Callable[[int], Measured], Iterable[int]], Iterable[Measured]]
"""Maps a function over batches, in order: `map`, or an engine's threads."""


class Measurable(Protocol):
    """Examples that a model can be evaluated on."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Inputs and targets at `indices`."""
        ...


@dataclass(frozen=True)
class ClientExamples:
    """The examples of one client, or those at some positions, as input of `evaluate`."""

    data: ClientData
    client: int
    positions: Indices | None = None

    def __len__(self) -> int:
        return self.data.size(self.client) if self.positions is None else len(self.positions)

    def batch(self, indices: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Inputs and targets at `indices`."""
        chosen = indices.numpy() if self.positions is None else self.positions[indices.numpy()]
        return self.data.batch(self.client, chosen, dtype)


def evaluate(
    mapper: Mapper, task: Task, layout: Layout, model: Tensor, buffers: Tensor, examples: Measurable
) -> dict[str, float]:
    """Compute every metric of the task over all examples, for the model that is given as vectors."""
    return evaluate_counted(mapper, task, layout, model, buffers, examples)[0]


def evaluate_counted(
    mapper: Mapper, task: Task, layout: Layout, model: Tensor, buffers: Tensor, examples: Measurable
) -> tuple[dict[str, float], float]:
    """The metrics as of `evaluate`, and the share of the targets that count."""
    module = copy.deepcopy(task.module).eval()
    layout.write(module, model, buffers)
    return evaluate_module(mapper, task, accelerate(module, model.device), examples, model.device, layout.dtype)


def evaluate_module(
    mapper: Mapper,
    task: Task,
    module: nn.Module,
    examples: Measurable,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[dict[str, float], float]:
    """The metrics over all examples, and the share of the targets that count. The module is in evaluation mode."""

    def measure(start: int) -> Measured:
        indices = torch.arange(start, min(start + BATCH, len(examples)))
        batch = tuple(tensor.to(device) for tensor in examples.batch(indices, dtype))
        weight = len(indices) * task.share(batch)
        if not weight:
            return Measured(0.0, {}, None)
        with torch.inference_mode():
            outputs = task.outputs(module, batch) if task.metrics else None
            return Measured(weight, task.measure(module, batch), outputs)

    sums: dict[str, float] = defaultdict(float)
    total_weight = 0.0
    metrics = {name: _fresh(metric, device) for name, metric in task.named_metrics().items()}
    by_batch = {name: metric for name, metric in metrics.items() if isinstance(metric, ByBatch)}
    collected: list[tuple[Tensor, Tensor]] = []
    for measured in mapper(measure, range(0, len(examples), BATCH)):
        total_weight += measured.weight
        for name, value in measured.means.items():
            sums[name] += float(value) * measured.weight
        if measured.outputs is not None:
            for name, streamed in by_batch.items():
                with _naming(name):
                    streamed.update(*measured.outputs)
            if len(by_batch) < len(metrics):
                outputs, targets = measured.outputs
                collected.append((outputs.cpu(), targets.cpu()))
    if not total_weight:
        return {}, 0.0
    values = {name: total / total_weight for name, total in sums.items()}
    whole = [torch.cat(parts) for parts in zip(*collected, strict=True)]
    collected.clear()
    for name, metric in metrics.items():
        with _naming(name):
            values |= _numbers(name, by_batch[name].compute() if name in by_batch else _of_all(metric, whole, device))
    return values, total_weight / len(examples)


def try_metrics(task: Task, batch: Batch) -> set[str]:
    """The names of all metrics. A metric that does not fit the outputs on this batch is a `ConfigError`.

    Functions are not called: they may need all examples.
    """
    if not task.share(batch):
        return {"loss", "accuracy", *task.named_metrics()}
    module = copy.deepcopy(task.module).eval()
    with torch.inference_mode():
        names = {*task.measure(module, batch)}
        outputs = task.outputs(module, batch) if task.metrics else ()
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in outputs)
    if outputs and outputs[0].shape == (*outputs[1].shape, 1):
        shapes += " (squeeze the model's outputs, as in squeeze(-1), or pass predict= to the Task)"
    found: set[str] = set()
    for name, metric in task.named_metrics().items():
        if not isinstance(metric, Metric):
            found.add(name)
            continue
        tried = _fresh(metric, batch[0].device)
        with _naming(name, f" on outputs and targets of shapes {shapes}"), warnings.catch_warnings():
            # Two examples have few classes, of which torchmetrics warns.
            warnings.simplefilter("ignore")
            found |= _numbers(name, _of_all(tried, outputs, batch[0].device)).keys()
    for name in sorted(names & found):
        raise ConfigError(f"metrics: '{name}' is the name of a mean that the task has already; choose another name")
    names |= found
    if "" in names:
        raise ConfigError("metrics: a metric has no name; pass a dict, as in metrics={'f1': MulticlassF1Score(3)}")
    return names


@contextmanager
def _naming(name: str, where: str = "") -> Iterator[None]:
    """Name the metric in an error of its code."""
    try:
        yield
    except LaconicError:
        raise
    except Exception as error:
        own = blamed(error)
        title = f"metric '{name}'" if name else "metrics"
        raise failure(f"{title}: failed{where}{f' at {own[0]}' if own else ''}", error) from error


def predict(module: nn.Module, examples: Measurable, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The module's outputs for the inputs of all examples, in host memory."""
    outputs: list[Tensor] = []
    # At least one batch, so that no examples give an empty tensor.
    for start in range(0, max(len(examples), 1), BATCH):
        indices = torch.arange(start, min(start + BATCH, len(examples)))
        batch = tuple(tensor.to(device) for tensor in examples.batch(indices, dtype))
        with torch.inference_mode():
            outputs.append(output_of(module, batch).cpu())
    return torch.cat(outputs)


def _fresh(metric: AnyMetric, device: torch.device) -> AnyMetric:
    """A copy of a metric without earlier batches. A function is unchanged."""
    if not isinstance(metric, Metric):
        return metric
    metric = copy.deepcopy(metric)
    metric.reset()
    return metric.to(device) if isinstance(metric, nn.Module) else metric


def _of_all(metric: AnyMetric, whole: Sequence[Tensor], device: torch.device) -> Any:
    """The value of a metric on the outputs and targets of all examples.

    A metric of torchmetrics gets them in one update: at each it decides whether outputs are logits or probabilities.
    """
    if not isinstance(metric, Metric):
        return metric(*whole)
    metric.update(*(part.to(device) for part in whole))
    return metric.compute()


def _numbers(name: str, value: Any) -> dict[str, float]:
    """The numbers of a computed metric by name: one per class if it is a vector, or those of a dict."""
    if isinstance(value, Mapping):
        inner = [_numbers(f"{name}_{part}" if name else part, number) for part, number in value.items()]
        return {key: number for numbers in inner for key, number in numbers.items()}
    try:
        numbers = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        title = f"metric '{name}'" if name else "metrics"
        what = "a number, an array or a dict of numbers"
        raise ConfigError(f"{title} must return {what}; it returned {type(value).__name__}") from None
    if numbers.ndim == 0:
        return {name: float(numbers)}
    return {f"{name}_{index}": float(number) for index, number in enumerate(numbers.flatten())}
