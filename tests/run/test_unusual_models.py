"""Models that do unusual things: results still do not depend on threads or chunks, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.compression import HEADER_BYTES
from laconic.core.errors import ConfigError
from laconic.data import FederatedData, from_arrays
from laconic.run.directory import RunDirectory
from laconic.run.simulation import Simulation

FEATURES, CLASSES = 5, 3


def data(shift: float = 0.0) -> FederatedData:
    generator = np.random.default_rng(1)
    clients = [
        (generator.normal(size=(n, FEATURES)) + shift, generator.integers(CLASSES, size=n)) for n in (6, 9, 4, 7)
    ]
    return from_arrays(clients, test=clients[0], classes=CLASSES)


class MovingAverage(nn.Module):
    """Replaces its buffer instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * inputs.mean(0).detach()
        return self.layer(inputs - self.seen)


class Masked(nn.Module):
    """Has a constant with infinities, as attention masks have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, float("-inf")]))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.nan_to_num(self.layer(inputs) + self.mask, neginf=-1e4)


class Drawing(nn.Module):
    """Draws numbers that cannot be taken over."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs + 0.1 * torch.randn(inputs.shape))


class Asking(nn.Module):
    """Turns a tensor into a Python number, which a vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) * (1.0 if inputs.sum().item() > 0 else 0.5)


class Plain(nn.Module):
    """Batch norm without parameters or statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES, affine=False, track_running_stats=False)
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.norm(inputs))


def train(kind: type[nn.Module], **settings: object) -> laconic.Result:
    torch.manual_seed(0)
    algorithm = laconic.fed_avg(batch_size=4, local_steps=3)
    return laconic.simulate(algorithm, kind(), data(), rounds=4, participants=3, **settings)


@pytest.mark.parametrize("kind", [MovingAverage, Masked, Drawing, Asking, Plain])
def test_threads_and_chunks_change_nothing(kind: type[nn.Module]) -> None:
    shas = {train(kind, threads=t, chunk=c).model_sha256 for t, c in ((1, None), (2, None), (1, 3), (2, 2))}
    assert len(shas) == 1


def test_a_buffer_that_is_replaced_is_averaged_and_counted() -> None:
    result = train(MovingAverage)
    assert float(result.model.seen.abs().sum()) > 0
    assert result.ledger.streams["up/buffers"].bytes == 4 * 3 * (HEADER_BYTES + 4 * FEATURES)


def test_a_constant_with_infinities_stays_at_home() -> None:
    result = train(Masked)
    assert "up/buffers" not in result.ledger.streams
    assert result.model.mask[2] == float("-inf")


def test_metrics_of_ones_own_reach_the_result() -> None:
    def metrics(module: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"largest": module(batch[0]).abs().max()}

    loss = nn.CrossEntropyLoss()
    task = laconic.Task(nn.Linear(FEATURES, CLASSES), lambda m, b: loss(m(b[0]), b[1]), means=metrics)
    result = laconic.simulate("fed_avg", task, data(), rounds=2)
    assert set(result.metrics) == {"largest"}
    assert "largest=" in repr(result)
    alone = laconic.simulate("fed_avg", laconic.Task(task.module, task.loss), data(), rounds=2)
    assert set(alone.metrics) == {"loss"}


def test_frozen_parameters_are_saved_with_the_model(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES))
    module[0].requires_grad_(False)
    simulation = Simulation(laconic.fed_avg(), laconic.classification(module), data(), laconic.Settings(rounds=1))
    list(simulation.rounds())
    simulation.save_model(RunDirectory(tmp_path).model)
    simulation.close()
    from safetensors.torch import load_file

    module.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(simulation.trained()[1].weight, module[1].weight)


def test_other_data_or_another_model_cannot_be_resumed(tmp_path: Path) -> None:
    def simulation(shift: float, hidden: int) -> Simulation:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(FEATURES, hidden), nn.Linear(hidden, CLASSES))
        return Simulation(laconic.fed_avg(), laconic.classification(module), data(shift), laconic.Settings(rounds=3))

    first = simulation(0.0, 4)
    directory = RunDirectory(tmp_path / "run")
    directory.create(first, "")
    directory.append(next(first.rounds()))
    directory.save_checkpoint(first)
    first.close()
    for other, match in ((simulation(0.5, 4), "data"), (simulation(0.0, 6), "model")):
        with pytest.raises(ConfigError, match=f"resume: the {match}"):
            directory.resume(other, "")
        other.close()
