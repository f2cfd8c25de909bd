"""Warnings about tasks that train but probably not as the user meant. Each is one line, found on an example batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laconic.core.errors import warn
from laconic.core.randomness import seeded
from laconic.core.task import Batch, Task, is_squared_error, own_loss, predicts_classes

MOST_LABELS = 10
"""Labels that are tried to find class weights."""


def doubt_task(task: Task, batch: Batch) -> None:
    """Warn once if the loss does not suit the model's outputs, mixes up examples, or is not a mean over examples."""
    module = copy.deepcopy(task.module).eval()
    for find in (_unsuitable, _no_mean):
        try:
            # Seeded, so that a random loss does not change what is drawn later.
            with torch.no_grad(), seeded(0):
                doubt = find(task, module, batch)
        except Exception:
            continue  # a task that needs batches of another form
        if doubt:
            warn(doubt)
            return


def doubt_outputs(task: Task, classes: int | None, batch: Batch) -> None:
    """Warn if a classifier has more outputs than the data has classes."""
    if classes is None or not predicts_classes(task):
        return
    try:
        with torch.no_grad(), seeded(0):
            outputs = task.outputs(copy.deepcopy(task.module).eval(), batch)[0].shape[-1]
    except Exception:
        return  # a task that needs batches of another form
    if outputs > classes:
        warn(f"model has {outputs} outputs, but the data has {classes} classes, with labels from 0 to {classes - 1}")


def _unsuitable(task: Task, module: nn.Module, batch: Batch) -> str:
    outputs, targets = task.outputs(module, batch)
    loss = task.loss(module, batch)
    if outputs.ndim == 2 and outputs.shape[1] > 1 and targets.ndim == 1 and not targets.is_floating_point():
        return _loss_of_classes(outputs, targets, loss)
    if outputs.shape == targets.shape and targets.is_floating_point():
        return _loss_of_numbers(module, outputs, targets, loss)
    return _shifted_twice(batch, outputs, loss) or _mixed_up(task, module, batch, outputs, loss)


def _loss_of_classes(outputs: Tensor, targets: Tensor, loss: Tensor) -> str:
    # Outputs of 0 and 1 alone are not those of a softmax.
    if _equal(loss, F.cross_entropy(outputs, targets)) and _are_probabilities(outputs) and (outputs % 1).any():
        return (
            "model returns probabilities, which are nonnegative and sum to 1, but cross-entropy applies softmax to them "
            "once more; return logits: leave out the last softmax"
        )
    if _equal(loss, F.nll_loss(outputs, targets)) and not _are_probabilities(outputs.exp()):
        return "loss is nll_loss, but the model does not return log-probabilities; use F.cross_entropy for logits"
    return ""


def _loss_of_numbers(module: nn.Module, outputs: Tensor, targets: Tensor, loss: Tensor) -> str:
    if _ends_in_sigmoid(module) and _equal(loss, F.binary_cross_entropy_with_logits(outputs, targets)):
        return (
            "model ends in a sigmoid, and binary_cross_entropy_with_logits applies it once more; return logits: leave out "
            "the last sigmoid"
        )
    if outputs.ndim == 2 and _equal(loss, F.mse_loss(outputs, targets)) and _are_tags(targets):
        return (
            "the targets are several labels of 0 or 1 per example, but the loss is the squared error; pass a Task with "
            "F.binary_cross_entropy_with_logits as its loss"
        )
    return ""


def _shifted_twice(batch: Batch, outputs: Tensor, loss: Tensor) -> str:
    """Targets that are the next tokens are those of each position. Models of Hugging Face shift their labels themselves."""
    tokens, targets = batch[0], batch[-1]
    if outputs.ndim != 3 or outputs.shape[:-1] != targets.shape or tokens.shape != targets.shape:
        return ""
    next_tokens = bool((targets[:, :-1] == tokens[:, 1:]).all())
    if next_tokens and _equal(loss, F.cross_entropy(outputs[:, :-1].flatten(0, 1), targets[:, 1:].flatten())):
        return (
            "loss shifts the targets, but they are already the next tokens, so the model learns the token after the next; "
            "pass the module without a Task"
        )
    return ""


def _mixed_up(task: Task, module: nn.Module, batch: Batch, outputs: Tensor, loss: Tensor) -> str:
    """A loss of outputs [N, 1] and targets [N] compares each output with each target: it ignores the targets' order."""
    targets = batch[-1]
    if outputs.shape == targets.shape or outputs.numel() != targets.numel():
        return ""
    different = all(len({*values.flatten().tolist()}) == values.numel() > 1 for values in (outputs, targets))
    if different and _equal(loss, task.loss(module, (*batch[:-1], targets.flip(0)))):
        return (
            f"loss compares each output with each target: outputs have shape {tuple(outputs.shape)}, targets "
            f"{tuple(targets.shape)}; write module(inputs).squeeze(-1)"
        )
    return ""


def _no_mean(task: Task, module: nn.Module, batch: Batch) -> str:
    return _sum(task, module, batch) or _weighted(task, module, batch)


def _sum(task: Task, module: nn.Module, batch: Batch) -> str:
    """A mean does not change if the examples are repeated; a sum doubles."""
    twice = tuple(torch.cat([part, part]) for part in batch)
    if _doubles(task.loss(module, batch), task.loss(module, twice)):
        return (
            "loss is a sum: it doubles if the examples are repeated, so rates and reported losses depend on the batch size; "
            "return the mean over the batch, as with reduction='mean'"
        )
    once, again = task.measure(module, batch), task.measure(module, twice)
    for name, value in once.items():
        if _doubles(torch.as_tensor(value), torch.as_tensor(again[name])):
            return f"means: '{name}' is a sum: it doubles if the examples are repeated; return the mean over the batch"
    return ""


def _weighted(task: Task, module: nn.Module, batch: Batch) -> str:
    """A mean over two parts is the mean of the parts' means. With class weights, torch divides by the sum of the weights."""
    targets = batch[-1]
    known = predicts_classes(task) or is_squared_error(task) or (task.loss is own_loss and targets.ndim > 1)
    if known or not _equal(task.loss(module, batch), task.loss(module, batch)):
        return ""
    # Each example twice, since some modules fail on one.
    pairs = [tuple(part[[row, row]] for part in batch) for row in (0, 1)]
    outputs = task.outputs(module, batch)[0]
    trials = [(pairs[0], pairs[1])]
    if outputs.ndim == 2 and outputs.shape[1] > 1 and targets.ndim == 1 and not targets.is_floating_point():
        trials.append(_one_label_and_others(batch, min(outputs.shape[1], MOST_LABELS)))
    return next(filter(None, (_unlike_its_parts(task, module, *trial) for trial in trials)), "")


def _one_label_and_others(batch: Batch, classes: int) -> tuple[Batch, Batch]:
    """The first example twice with label 0, and with every other label."""
    labels = [batch[-1].new_tensor([label, label]) for label in range(classes)]
    first, *others = [(*(part[[0, 0]] for part in batch[:-1]), label) for label in labels]
    return first, _joined(others)


def _unlike_its_parts(task: Task, module: nn.Module, one: Batch, other: Batch) -> str:
    both = _joined([one, other])
    parts = [(len(part[-1]) * task.share(part), part) for part in (one, other)]
    measured = [(weight, task.measure(module, part)) for weight, part in parts if weight]
    total = sum(weight for weight, _ in measured)
    for name, value in task.measure(module, both).items() if total else ():
        mean = sum(weight * torch.as_tensor(values[name]).double() for weight, values in measured) / total
        if not _equal(torch.as_tensor(value).double(), torch.as_tensor(mean)):
            return _advice(task, name, one[-1])
    return ""


def _advice(task: Task, name: str, targets: Tensor) -> str:
    what = f"means: '{name}'" if task.means else "loss"
    doubt = f"{what} is not a mean over examples, so its value over all test examples is wrong"
    if task.means and name != "loss":
        return f"{doubt}; pass a function of all outputs and targets: metrics={{'{name}': …}}"
    if targets.ndim > 1:
        return f"{doubt}; if only some targets count, pass the share of those that do: counted=…"
    return f"{doubt}; with class weights write (weight[targets] * F.cross_entropy(…, reduction='none')).mean()"


def _joined(batches: Sequence[Batch]) -> Batch:
    return tuple(map(torch.cat, zip(*batches, strict=True)))


def _doubles(once: Tensor, twice: Tensor) -> bool:
    return bool(once != 0) and _equal(2 * once, twice)


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(torch.isclose(one, other, rtol=1e-4, atol=1e-6))


def _are_probabilities(outputs: Tensor) -> bool:
    return bool((outputs >= 0).all()) and bool(torch.isclose(outputs.sum(-1), outputs.new_ones(()), atol=1e-4).all())


def _are_tags(targets: Tensor) -> bool:
    """Whether these are labels that exclude none of each other. Data warns of one-hot targets."""
    return (
        bool(((targets == 0) | (targets == 1)).all()) and not bool((targets.sum(-1) == 1).all()) and bool(targets.any())
    )


def _ends_in_sigmoid(module: nn.Module) -> bool:
    return isinstance([*module.modules()][-1], nn.Sigmoid)
