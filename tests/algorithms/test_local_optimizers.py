"""Local optimizers against torch.optim, for each treatment of their state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.core.errors import ConfigError

RATE, CLIENTS, ROUNDS = 0.05, 3, 3
SIZES = (12, 20, 8)
FEATURES, CLASSES = 6, 3
# Our spelling, and the same optimizer of torch.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd:weight_decay=0.1": lambda p, lr: torch.optim.SGD(p, lr=lr, weight_decay=0.1),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "momentum:weight_decay=0.1,momentum=0.5": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.5, weight_decay=0.1),
    "nesterov": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "adam:weight_decay=0.1,beta1=0.5,beta2=0.9,epsilon=0.001": lambda p, lr: torch.optim.Adam(
        p, lr=lr, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1
    ),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr),
    "adamw:weight_decay=0.3,beta2=0.95": lambda p, lr: torch.optim.AdamW(p, lr=lr, betas=(0.9, 0.95), weight_decay=0.3),
}


def data() -> laconic.data.FederatedData:
    random = np.random.default_rng(3)
    pairs = [(random.normal(size=(n, FEATURES)), random.integers(CLASSES, size=n)) for n in SIZES]
    return laconic.data.from_arrays(pairs, classes=CLASSES)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def ours(spelling: str, state: str = "reset", dtype: str = "float64", **settings: object) -> laconic.Result:
    options = {"local_epochs": 2, "batch_size": 4, "batch_order": "fixed", "local_lr": RATE} | settings
    algorithm = laconic.fed_avg(local_optimizer=spelling, local_optimizer_state=state, **options)
    numerics = {"dtype": dtype}
    return laconic.simulate(algorithm, model(), data(), rounds=ROUNDS, weighting="uniform", numerics=numerics)


def reference(
    make: Callable[..., torch.optim.Optimizer],
    state: str = "reset",
    dtype: torch.dtype = torch.float64,
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None,
) -> torch.Tensor:
    """The same training with torch.optim, one client at a time, in plain loops. Clients take different numbers of steps."""
    federated, server = data(), model().to(dtype)
    states: list[dict | None] = [None] * CLIENTS
    for _ in range(ROUNDS):
        ends = []
        for client in range(CLIENTS):
            module = model().to(dtype)
            module.load_state_dict(server.state_dict())
            optimizer = make(module.parameters(), lr=RATE)
            scheduler = schedule and schedule(optimizer)
            if state == "kept" and states[client] is not None:
                optimizer.load_state_dict(states[client])
            for _ in range(2):
                for start in range(0, SIZES[client], 4):
                    positions = np.arange(start, min(start + 4, SIZES[client]))
                    inputs, targets = federated.batch(client, positions, dtype)
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(module(inputs), targets).backward()
                    optimizer.step()
                    if scheduler:
                        scheduler.step()
            states[client] = optimizer.state_dict()
            ends.append(flat(module))
        nn.utils.vector_to_parameters(torch.stack(ends).mean(0), server.parameters())
    return flat(server)


@pytest.mark.parametrize("state", ["reset", "kept"])
@pytest.mark.parametrize("spelling", OPTIMIZERS)
def test_equals_torch(spelling: str, state: str) -> None:
    found, expected = flat(ours(spelling, state).model), reference(OPTIMIZERS[spelling], state)
    assert float((found - expected).abs().max()) < 1e-12
    if state == "kept" and not spelling.startswith("sgd"):
        assert float((expected - reference(OPTIMIZERS[spelling])).abs().max()) > 1e-4


@pytest.mark.parametrize("state", ["reset", "kept"])
@pytest.mark.parametrize("spelling", OPTIMIZERS)
def test_equals_torch_in_single_precision(spelling: str, state: str) -> None:
    found, expected = (
        flat(ours(spelling, state, "float32").model),
        reference(OPTIMIZERS[spelling], state, torch.float32),
    )
    assert found.dtype == torch.float32
    assert float((found - expected).abs().max()) < 1e-6


def test_averaged_momentum_by_hand() -> None:
    """Participants start from the mean of the last participants' momentum, which travels both ways and is counted."""
    federated, server = data(), model().double()
    mean = torch.zeros_like(flat(server))
    for _ in range(ROUNDS):
        ends, moments = [], []
        for client in range(CLIENTS):
            weights, moment = flat(server).clone(), mean.clone()
            for step in range(2):
                module = model().double()
                nn.utils.vector_to_parameters(weights, module.parameters())
                inputs, targets = federated.batch(client, np.arange(4 * step, 4 * step + 4), torch.float64)
                nn.functional.cross_entropy(module(inputs), targets).backward()
                gradient = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
                moment = 0.9 * moment + gradient
                weights = weights - RATE * moment
            ends.append(weights)
            moments.append(moment)
        mean = torch.stack(moments).mean(0)
        nn.utils.vector_to_parameters(torch.stack(ends).mean(0), server.parameters())
    result = ours("momentum", "averaged", local_epochs=None, local_steps=2)
    assert float((flat(result.model) - flat(server)).abs().max()) < 1e-12
    streams = result.ledger.streams
    assert streams["up/first_moment"].bytes == streams["up/model"].bytes == streams["down/first_moment"].bytes


def test_averaged_adam_by_hand() -> None:
    """Both moments are means over the last participants. The bias correction counts the steps of all rounds so far."""
    federated, server = data(), model().double()
    means = [torch.zeros_like(flat(server)) for _ in range(2)]
    count = 0
    for _ in range(ROUNDS):
        ends, firsts, seconds = [], [], []
        for client in range(CLIENTS):
            weights, first, second = flat(server).clone(), *means
            for step in range(2):
                module = model().double()
                nn.utils.vector_to_parameters(weights, module.parameters())
                inputs, targets = federated.batch(client, np.arange(4 * step, 4 * step + 4), torch.float64)
                nn.functional.cross_entropy(module(inputs), targets).backward()
                gradient = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
                first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
                taken = count + step + 1
                scaled = (second / (1 - 0.999**taken)).sqrt() + 1e-8
                weights = weights - RATE * first / (1 - 0.9**taken) / scaled
            ends.append(weights)
            firsts.append(first)
            seconds.append(second)
        count += 2
        means = [torch.stack(moments).mean(0) for moments in (firsts, seconds)]
        nn.utils.vector_to_parameters(torch.stack(ends).mean(0), server.parameters())
    result = ours("adam", "averaged", local_epochs=None, local_steps=2)
    assert float((flat(result.model) - flat(server)).abs().max()) < 1e-12
    streams = result.ledger.streams
    assert streams["up/second_moment"].bytes == streams["up/first_moment"].bytes == streams["up/model"].bytes


@pytest.mark.parametrize("state", ["reset", "kept", "averaged"])
def test_threads_chunks_and_resume_change_nothing(state: str, tmp_path: Path) -> None:
    algorithm = laconic.fed_cams(
        compressor="top_k:1/4", local_optimizer="adamw", local_optimizer_state=state, local_lr=0.01
    )

    def run(rounds: int = 4, **settings: object) -> str:
        return laconic.simulate(algorithm, model(), data(), rounds=rounds, participants=2, **settings).model_sha256

    speeds = ({"threads": 1}, {"threads": 2}, {"threads": 2, "chunk": 1}, {"store": "disk"})
    hashes = {run(**settings) for settings in speeds}
    for number, settings in enumerate(({}, {"store": "disk"})):
        out = tmp_path / str(number)
        half = run(2, out=out, **settings)
        assert half not in hashes
        hashes.add(run(out=out, resume=True, **settings))
    assert len(hashes) == 1


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "warmup:4": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 4, 1)),
    "cosine:10": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10),
}


@pytest.mark.parametrize("spelling", ["sgd", "sgd:weight_decay=0.1", "adamw"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_changes_within_a_round(schedule: str, spelling: str) -> None:
    make = OPTIMIZERS.get(spelling, torch.optim.SGD)
    found = flat(ours(spelling, step_schedule=schedule).model)
    assert float((found - reference(make, schedule=SCHEDULES[schedule])).abs().max()) < 1e-12
    assert float((found - reference(make)).abs().max()) > 1e-4, "a constant rate gives another model"


def test_the_l2_term_is_not_mistaken_for_the_decay_of_adamw() -> None:
    meant = r"^method.weight_decay = 0.1: .*; write local_optimizer='adamw:weight_decay=0.1,beta2=0.95'$"
    with pytest.raises(ConfigError, match=meant):
        laconic.simulate("fed_avg", model(), data(), rounds=1, local_optimizer="adamw:beta2=0.95", weight_decay=0.1)
    laconic.simulate("fed_avg", model(), data(), rounds=1, local_optimizer="adam", weight_decay=0.1)


def test_misuse_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"step_schedule = 'cosine': .*write it as cosine:STEPS$"):
        laconic.fed_avg(step_schedule="cosine")
    with pytest.raises(ConfigError, match="unknown name 'adan': did you mean 'adam'"):
        laconic.fed_avg(local_optimizer="adan")
    with pytest.raises(ConfigError, match="settings have names, and the rate is local_lr; write it as adam"):
        laconic.fed_avg(local_optimizer="adam:0.001")
    with pytest.raises(ConfigError, match="beta1"):
        laconic.fed_avg(local_optimizer="adam:beta1=2")
    with pytest.raises(ConfigError, match=r"local_optimizer: .*it takes plain SGD steps"):
        laconic.scaffold(local_optimizer="adam")
    algorithm = laconic.fed_avg(local_optimizer="adam", local_optimizer_state="averaged")
    with pytest.raises(ConfigError, match="'first_moment' is sent with the updates and would be undefended"):
        laconic.simulate(algorithm, model(), data(), rounds=1, defense={"clip": 1.0, "noise": 1.0})
