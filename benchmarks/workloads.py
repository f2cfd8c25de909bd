"""The workloads of benchmarks/simulation.py, their data, and the plain PyTorch loop that is the baseline.

W1 is FedAMD's setting: LeNet-5 on Fashion-MNIST, 100 clients x 600 samples, 20 per round, 10 steps of 64. W2 is an MLP of
784-200-200-10, 1000 clients x 60 samples, 100 per round, 5 steps of 32. W3 is Fed-EF's CNN, 200 clients x 300 samples, 20
per round, 10 steps of 32. If a data set is missing, random images of the same shape replace it: the computation is the
same.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import laconic
from laconic import models
from laconic.data import Examples, FederatedData
from laconic.run.simulation import Simulation, initial_module


@dataclass(frozen=True)
class Work:
    """One workload."""

    model: str
    clients: int
    size: int
    participants: int
    steps: int
    batch: int
    local_lr: float = 0.02

    @property
    def samples_per_round(self) -> int:
        return self.participants * self.steps * self.batch

    def build(self) -> nn.Module:
        """Return the initial model, the same for all implementations."""
        return initial_module(lambda: models.build(self.model, (1, 28, 28), 10), 0)

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """Return the clients of a round."""
        return generator.choice(self.clients, self.participants, replace=False)

    def order(self, indices: Tensor) -> Tensor:
        """Return the indices of a client's batches: its examples, shuffled, then repeated as often as needed."""
        needed = self.steps * self.batch
        return indices[torch.randperm(len(indices))].repeat(1 + needed // len(indices))[:needed]


WORKS = {
    "W1": Work("lenet5", clients=100, size=600, participants=20, steps=10, batch=64),
    "W2": Work("mlp:200,200", clients=1000, size=60, participants=100, steps=5, batch=32),
    "W3": Work("cnn", clients=200, size=300, participants=20, steps=10, batch=32),
}
THREADS = 2


def load_data(work: Work) -> FederatedData:
    try:
        data = laconic.data.load("fashion-mnist", clients=work.clients, partition="iid", download=False)
        assert isinstance(data, FederatedData)
        return data
    except laconic.DataError:
        generator = np.random.default_rng(0)
        count = work.clients * work.size
        images = torch.from_numpy(generator.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8))
        labels = torch.from_numpy(generator.integers(0, 10, count))
        split = list(np.arange(count).reshape(work.clients, work.size))
        return FederatedData("random", "classification", Examples(images, labels, ((0.5,), (0.5,))), split, None, 10)


def make_simulation(work: Work, data: FederatedData, rounds: int) -> Simulation:
    """Return a Laconic simulation of a workload."""
    algorithm = laconic.fed_avg(local_lr=work.local_lr, local_steps=work.steps, batch_size=work.batch)
    # The plain loop does not evaluate, so evaluate after more rounds than the run has.
    settings = laconic.Settings(
        rounds=rounds + 1, participants=work.participants, eval_every=rounds + 1, threads=THREADS
    )
    return Simulation(algorithm, laconic.classification(work.build()), data, settings)


def train(work: Work, model: nn.Module, inputs: Tensor, targets: Tensor, order: Tensor) -> None:
    """Local steps in plain PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=work.local_lr)
    for batch in order.split(work.batch):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()


class BareLoop:
    """FedAvg without a framework: deepcopy, torch.optim.SGD, batches by index, the average of state dicts."""

    def __init__(self, work: Work, data: FederatedData, model: nn.Module) -> None:
        self.phase, self.model = work, model
        self.inputs, self.targets = data.examples.batch(torch.arange(len(data.examples)))
        self.clients = [torch.from_numpy(indices) for indices in data.clients]
        self.generator = np.random.default_rng(0)

    def round(self) -> None:
        """One round of FedAvg."""
        states = []
        for client in self.phase.draw(self.generator):
            local = copy.deepcopy(self.model)
            train(self.phase, local, self.inputs, self.targets, self.phase.order(self.clients[client]))
            states.append(local.state_dict())
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        self.model.load_state_dict(mean)


class HandWritten:
    """An upper bound of speed for W2: its MLP, batched over clients by hand, with weights updated in place.

    It has no autograd, packets, checksums, state or shuffling: it uses the first batches of every client, gathered in
    advance.
    """

    SIZES = (784, 200, 200, 10)
    CHUNK = 4
    """The number of clients whose data fit into a core's caches."""

    def __init__(self, work: Work, data: FederatedData, model: nn.Module) -> None:
        self.phase = work
        self.model = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        indices = torch.from_numpy(np.stack([client[: work.batch] for client in data.clients[: self.CHUNK]]))
        inputs, targets = data.examples.batch(indices.flatten())
        self.inputs = inputs.reshape(self.CHUNK, work.batch, -1)
        self.signs = F.one_hot(targets, self.SIZES[-1]).view(self.CHUNK, work.batch, -1).to(torch.float32)
        self.pool = ThreadPoolExecutor(THREADS, initializer=lambda: torch.set_num_threads(1))

    def round(self) -> None:
        """One round of FedAvg."""
        chunks = range(self.phase.participants // self.CHUNK)
        self.model = self.model + sum(self.pool.map(self._chunk, chunks)) / self.phase.participants

    def _chunk(self, _: int) -> Tensor:
        models = self.model.expand(self.CHUNK, -1).clone()
        layers, at = [], 0
        for inner, outer in zip(self.SIZES, self.SIZES[1:], strict=False):
            weight = models[:, at : at + inner * outer].view(-1, outer, inner)
            layers.append((weight, models[:, at + inner * outer : at + (inner + 1) * outer]))
            at += (inner + 1) * outer
        for _ in range(self.phase.steps):
            self._step(layers)
        return models.sub_(self.model).sum(0)

    def _step(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        seen = [self.inputs]
        for weight, bias in layers:
            seen.append(torch.baddbmm(bias[:, None], seen[-1], weight.transpose(1, 2)))
            if weight is not layers[-1][0]:
                seen[-1].relu_()
        gradient = torch.softmax(seen.pop(), -1).sub_(self.signs).div_(self.phase.batch)
        for (weight, bias), values in zip(reversed(layers), reversed(seen), strict=True):
            back = torch.bmm(gradient, weight).mul_(values > 0) if values is not self.inputs else gradient
            weight.baddbmm_(gradient.transpose(1, 2), values, alpha=-self.phase.local_lr)
            bias.sub_(gradient.sum(1), alpha=self.phase.local_lr)
            gradient = back
