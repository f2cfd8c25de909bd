"""Run the workloads of workloads.py in other frameworks, each in its own processes. Prints the seconds per round.

    python benchmarks/peers.py flower W1 --rounds 8
    torchrun --nproc-per-node 2 benchmarks/peers.py pfl W1 --rounds 8

The other frameworks use the local steps of the plain loop, in two processes with one intra-op thread each. On two cores
this is the fastest configuration of both.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import WORKS, Work, load_data, make_simulation

PROCESSES = 2
WORK = "LACONIC_BENCHMARK_WORK"
"""The environment variable that tells the frameworks' worker processes which workload to run."""


def laconic(work: Work, rounds: int) -> list[float]:
    """Laconic's inline engine: two threads with one intra-op thread each."""
    simulation = make_simulation(work, load_data(work), rounds + 1)
    times = [time.perf_counter()]
    for _ in zip(range(rounds), simulation.rounds(), strict=False):
        times.append(time.perf_counter())
    simulation.close()
    return np.diff(times).tolist()


def pfl(work: Work, rounds: int) -> list[float]:
    """Apple's pfl: FedAvg on its simulated backend."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = work.build()

        def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
            return F.cross_entropy(self.inner(inputs), targets)

        def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, Any]:
            return {"loss": Weighted(0.0, len(inputs))}

    torch.manual_seed(0)
    np.random.seed(0)
    data = load_data(work)
    inputs, targets = data.examples.batch(torch.arange(len(data.examples)))
    clients = [torch.from_numpy(indices) for indices in data.clients]

    def dataset(client: int) -> Any:
        order = work.order(clients[client])
        return PyTorchTensorDataset([inputs[order], targets[order]])

    users = FederatedDataset(dataset, get_user_sampler("random", range(work.clients)))
    module = Model()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    times = [time.perf_counter()]

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Any]:
            from pfl.metrics import Metrics

            times.append(time.perf_counter())
            return False, Metrics()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, rounds + 1, work.participants, None),
        backend=SimulatedBackend(users, users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.local_lr, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    return np.diff(times).tolist()


def flower(work: Work, rounds: int) -> list[float]:
    """Flower's simulation on Ray: FedAvg, a client app with the plain loop."""
    import flower_peer
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    times: list[float] = []

    class Timed(FedAvg):
        def configure_train(self, *given: Any, **named: Any) -> Any:
            times.append(time.perf_counter())
            return super().configure_train(*given, **named)

    server_app = ServerApp()

    @server_app.main()
    def main(grid: Any, context: Any) -> None:
        strategy = Timed(
            fraction_train=work.participants / work.clients, fraction_evaluate=0.0, min_available_nodes=work.clients
        )
        strategy.start(grid, ArrayRecord(work.build().state_dict()), num_rounds=rounds)
        times.append(time.perf_counter())

    run_simulation(
        server_app,
        flower_peer.client_app,
        num_supernodes=work.clients,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": PROCESSES}},
    )
    return np.diff(times).tolist()


PEERS = {"laconic": laconic, "pfl": pfl, "flower": flower}
NEEDED = {"laconic": ("laconic",), "pfl": ("pfl",), "flower": ("flwr", "ray")}


def measure(name: str, work: str, rounds: int) -> dict[str, Any]:
    """Return one framework's median seconds per round, without the first two rounds."""
    if any(importlib.util.find_spec(package) is None for package in NEEDED[name]):
        return {"skipped": f"{' and '.join(NEEDED[name])} not installed"}
    command = [sys.executable]
    if name == "pfl":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = ["--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1])]
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(PROCESSES), *place]
    command += [__file__, name, work, "--rounds", str(rounds)]
    paths = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    # All processes are on this machine, so the loopback interface is enough.
    alone = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    done = subprocess.run(
        command,
        env=os.environ | alone | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), WORK: work},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        said = [line for line in done.stderr.splitlines() if "Error" in line] or ["no output"]
        return {"failed": said[-1].strip()}
    version = importlib.metadata.version(NEEDED[name][0])
    return {"seconds_per_round": median(json.loads(lines[0])["seconds"][2:]), "version": version}


def main() -> None:
    """Run one framework in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("phase", choices=WORKS)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds = PEERS[options.peer](WORKS[options.phase], options.rounds)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
