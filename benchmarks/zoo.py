"""Measure a round against a plain PyTorch loop for models that people train. Rounds of the two alternate in the same run.

    python benchmarks/zoo.py [--json] [--rounds 5] [--threads 2] [--models char_gru gpt vit resnet18 …]

fed_avg, dense. Laconic has `threads` threads with one intra-op thread each, the plain loop `threads` intra-op threads. On a
busy machine use one: intra-op threads that wait for each other lose much more time than they should. Inputs are random
numbers of the right shape, since the computation is the same. Bert is made from a config, with LoRA on queries and values;
both implementations train and average only the adapter and the classifier. `outside gradients` is the share of a round's CPU
time that is not spent in gradient calls: what there is to gain without another way to compute gradients.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from timed import Timed, timed_gradients
from torch import Tensor, nn

import laconic
from laconic import models
from laconic.data import FederatedData, from_arrays
from laconic.run.simulation import Simulation, initial_module, make_task

EXAMPLES = 64
RATE = 0.01


@dataclass(frozen=True)
class Work:
    """A model, the shape of its inputs, and the size of a round."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    """The number of tokens, if inputs are tokens."""
    each: bool = False
    """Whether every token has a target."""
    participants: int = 4
    steps: int = 5
    batch: int = 16

    def data(self) -> FederatedData:
        """Random clients."""
        generator = np.random.default_rng(0)

        def inputs() -> np.ndarray:
            size = (EXAMPLES, *self.shape)
            if self.vocabulary:
                return generator.integers(0, self.vocabulary, size)
            return generator.standard_normal(size, dtype=np.float32)

        targets = (EXAMPLES, *self.shape) if self.each else (EXAMPLES,)
        clients = [(inputs(), generator.integers(0, self.classes, targets)) for _ in range(2 * self.participants)]
        return from_arrays(clients, kind="next_token" if self.each else "classification", classes=self.classes)


class LoraBert(nn.Module):
    """A small Bert for classification with an adapter: tokens in, logits out."""

    def __init__(self) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
        config = BertConfig(vocab_size=2000, max_position_embeddings=64, num_labels=4, **sizes)
        adapter = LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"])
        self.model = get_peft_model(BertForSequenceClassification(config), adapter)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens).logits
        return logits


def with_group_norm() -> nn.Module:
    """ResNet-18 with group norm, 32 channels per group, instead of batch norm."""
    model = models.build("resnet18", (3, 32, 32), 10)
    norms = [(name, norm) for name, norm in model.named_modules() if isinstance(norm, nn.BatchNorm2d)]
    for name, norm in norms:
        model.set_submodule(name, nn.GroupNorm(norm.num_features // 32, norm.num_features))
    return model


def named(name: str, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    return lambda: models.build(name, shape, classes)


WORKS = {
    "char_gru": Work(named("char_gru", (80,), 65), (80,), 65, vocabulary=65, each=True),
    "gpt": Work(named("gpt:2x64", (80,), 65), (80,), 65, vocabulary=65, each=True),
    "vit": Work(named("vit:2x64", (1, 28, 28), 10), (1, 28, 28), 10),
    "resnet18": Work(named("resnet18", (3, 32, 32), 10), (3, 32, 32), 10, participants=2, steps=2, batch=8),
    "resnet18-group": Work(with_group_norm, (3, 32, 32), 10, participants=2, steps=2, batch=8),
    "bert-lora": Work(LoraBert, (64,), 4, vocabulary=2000),
}


class PlainLoop:
    """FedAvg without a framework: deepcopy, torch.optim.SGD, the average of what is trained and of batch-norm statistics."""

    def __init__(self, work: Work, data: FederatedData, model: nn.Module) -> None:
        self.work, self.model = work, model.train()
        self.trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.trained |= {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        self.clients = [data.batch(client, np.arange(EXAMPLES), torch.float32) for client in range(len(data))]
        self.generator = np.random.default_rng(0)

    def round(self) -> None:
        """One round."""
        states = []
        for client in self.generator.choice(len(self.clients), self.work.participants, replace=False):
            local = copy.deepcopy(self.model)
            self._train(local, *self.clients[client])
            states.append(local.state_dict())
        common = self.trained & states[0].keys()
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in common}
        self.model.load_state_dict(mean, strict=False)

    def _train(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
        order = torch.randperm(EXAMPLES).repeat(1 + self.work.steps * self.work.batch // EXAMPLES)
        for batch in order[: self.work.steps * self.work.batch].split(self.work.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]).flatten(0, -2), targets[batch].flatten()).backward()
            optimizer.step()


def seconds(action: Callable[[], Any], threads: int) -> float:
    torch.set_num_threads(threads)
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def measure(work: Work, rounds: int, threads: int) -> dict[str, float]:
    """Run Laconic and the plain loop, one round of each in turn. The first round of each does not count."""
    data, module = work.data(), initial_module(work.build, 0)
    algorithm = laconic.fed_avg(local_lr=RATE, local_steps=work.steps, batch_size=work.batch)
    # The plain loop does not evaluate, so evaluate after more rounds than the run has.
    settings = laconic.Settings(
        rounds=rounds + 2, participants=work.participants, eval_every=rounds + 2, threads=threads
    )
    plain = PlainLoop(work, data, copy.deepcopy(module))
    with timed_gradients():
        simulation = Simulation(algorithm, make_task(module, data), data, settings)
    own_rounds = simulation.rounds()
    seconds(plain.round, threads), seconds(lambda: next(own_rounds), 1)
    Timed.processor, processor, times = 0.0, 0.0, []
    for _ in range(rounds):
        theirs, before = seconds(plain.round, threads), time.process_time()
        times.append((theirs, seconds(lambda: next(own_rounds), 1)))
        processor += time.process_time() - before
    own_rounds.close()
    simulation.close()
    return {
        "parameters": float(simulation.layout.size),
        "plain_seconds": statistics.median(plain for plain, _ in times),
        "seconds": statistics.median(own for _, own in times),
        "speedup": statistics.median(plain / own for plain, own in times),
        "outside_gradients": 1 - Timed.processor / processor,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of each")
    parser.add_argument("--models", nargs="*", choices=list(WORKS), default=list(WORKS), help="which models")
    options = parser.parse_args()
    results = {name: measure(WORKS[name], options.rounds, options.threads) for name in options.models}
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'model':14s} {'trained':>12s} {'plain, s':>10s} {'laconic, s':>10s} {'speedup':>8s} outside gradients")
    for name, found in results.items():
        times = f"{found['plain_seconds']:10.3f} {found['seconds']:10.3f} {found['speedup']:8.2f}"
        print(f"{name:14s} {found['parameters']:12,.0f} {times} {found['outside_gradients']:8.1%}")


if __name__ == "__main__":
    main()
