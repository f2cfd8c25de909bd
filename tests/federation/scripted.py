"""Clients that send what a test writes for them. One is the canary, whose presence the noise must hide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import laconic
from laconic.algorithms.methods.exchange import MODEL
from laconic.algorithms.methods.received import Received
from laconic.federation.round import run_round
from laconic.run.simulation import Simulation, initial_module, make_task

CLIP = 1.0
CLIENTS = 12
CANARY = 0


def steady(client: int, round: int, model: Tensor) -> Tensor:
    """The others send half the clip along one direction, 9 % more in every round. The canary sends far too much."""
    update = torch.zeros_like(model)
    if client == CANARY:
        return update.add_(100.0 / model.numel() ** 0.5)
    update[0] = 0.5 * CLIP * 1.09**round
    return update


def pulled(client: int, round: int, model: Tensor) -> Tensor:
    """Updates that depend on the model and differ between clients, rounds and entries."""
    generator = torch.Generator().manual_seed(1000 * round + client)
    drawn = torch.randn(model.numel(), generator=generator)
    return 0.1 * drawn - 0.3 * model + (50.0 * drawn.sign() if client == CANARY else 0.0)


@laconic.method("scripted")
class Scripted(laconic.Method):
    """Every client sends `script(client, round, model)`."""

    script: Callable[[int, int, Tensor], Tensor] = steady
    sensitivity = "bounded"

    def local(self, cohort: laconic.Cohort) -> Tensor:
        rows = enumerate(cohort.clients)
        return torch.stack([self.script(client, cohort.round, cohort.models[row]) for row, client in rows])


ACCEPTED: dict[str, dict[str, Any]] = {
    "dense": {},
    "compressed without memory": {"uplink": laconic.Compressed("qsgd:4")},
    "error feedback, top_k": {"uplink": laconic.Compressed("top_k:1/8", memory=True)},
    "error feedback, sign": {"uplink": laconic.Compressed("sign", memory=True)},
    "lazy": {"uplink": laconic.Lazy(constant=1.0)},
    "lazy with memory": {"uplink": laconic.Lazy("sign", constant=1.0, memory=True)},
    "shifted": {"uplink": laconic.Shifted("sign")},
    "lag": {"uplink": laconic.LAG(weight=100.0)},
    "lag with memory": {"uplink": laconic.LAG("sign", weight=100.0, memory=True)},
    "accelerated": {"uplink": laconic.Accelerated(constant=1.0)},
    "accelerated with memory": {"uplink": laconic.Accelerated("top_k:1/8", constant=1.0, memory=True)},
}
"""Uplinks that are accepted with noise. C / (alpha n) is 1 / n: updates that grow by 9 % are similar for 11, not for 12."""


def private(
    parts: dict[str, Any], script: Callable[..., Tensor] = steady, clients: int = CLIENTS, **settings: Any
) -> Simulation:
    """A simulation of scripted clients with noise; its model has 650 parameters."""
    data = laconic.data.load("digits", clients=clients, partition="iid")
    module = initial_module(lambda: laconic.models.build("logistic", data.input_shape, 10), 0)
    given = {"rounds": 3, "sampling": "poisson", "defense": {"clip": CLIP, "noise": 1.0}, "threads": 1}
    algorithm = laconic.Algorithm(method=Scripted(script), **parts)
    return Simulation(algorithm, make_task(module, data), data, laconic.Settings(**given | settings))


def noisy_sums(simulation: Simulation, rounds: int) -> Tensor:
    """[rounds, d]: the sum of every round, with its noise. Whatever is released is computed from it."""
    server, sums = simulation.server, []
    advance = server.advance

    def recording(received: Received) -> None:
        mean = received.mean(MODEL)
        assert mean is not None
        sums.append(mean * server.count)
        advance(received)

    with patch.object(server, "advance", recording):
        for _ in range(rounds):
            run_round(server, simulation.engine)
    return torch.stack(sums)
