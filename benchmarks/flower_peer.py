"""The Flower client app of benchmarks/peers.py. It is a module because Ray would pickle code in __main__ on every call."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peers import WORK
from torch import Tensor, nn
from workloads import WORKS, Work, load_data, train

client_app = ClientApp()


@cache
def prepared() -> tuple[Work, nn.Module, tuple[Tensor, ...], list[Tensor]]:
    """The state of a worker process: the workload, a model, all examples, and the indices of each client's examples."""
    torch.set_num_threads(1)
    work = WORKS[os.environ[WORK]]
    data = load_data(work)
    examples = data.examples.batch(torch.arange(len(data.examples)))
    return work, work.build(), examples, [torch.from_numpy(indices) for indices in data.clients]


@client_app.train()
def local(message: Message, context: Context) -> Message:
    """The local steps of the plain loop."""
    work, model, examples, clients = prepared()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    train(work, model, *examples, work.order(clients[client]))
    metrics: Any = MetricRecord({"num-examples": work.size})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
