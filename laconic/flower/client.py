"""A node: Laconic's client as a Flower ClientApp.

Flower starts a process for every message, so nothing that matters is kept in memory: the plan and the client's state are in
the node's file. What a process has built is kept for the next message, where there is one (in Flower's simulation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from platformdirs import user_state_path
from pydantic import ValidationError
from torch import Tensor

from laconic import data as data_sets
from laconic.algorithms.algorithm import Algorithm
from laconic.compression import decode_dense
from laconic.compression.packet import CoreStream, Packet
from laconic.core.errors import ConfigError, LaconicError, PacketError
from laconic.core.layout import Layout
from laconic.data.federated import ClientData, Examples
from laconic.data.owned import OwnData
from laconic.engine.client_spec import ClientSpec
from laconic.engine.inline import InlineEngine
from laconic.engine.prepared import client_example, prepare
from laconic.federation.store import ClientStore
from laconic.flower import wire
from laconic.flower.node_store import KEEP_DAYS, NodeFile
from laconic.flower.plan import Model, Plan, initial_hash, make_model
from laconic.run.evaluate import evaluate

LOG = getLogger("flwr.laconic")

Data = str | ClientData | Callable[[Context], ClientData]
"""A data set's name, split as the server says; or the node's own examples, as the one client of a `ClientData`."""


def client_app(
    model: Model,
    data: Data,
    *,
    algorithm: Algorithm | None = None,
    state: str | Path | None = None,
    device: str = "cpu",
) -> ClientApp:
    """The ClientApp of a node.

    `model` must be the server's. `data` is the node's own (`laconic.data.from_arrays([(inputs, targets)])`), a function of
    Flower's `Context` that loads it, or for a trial a data set that all nodes share, of which each takes its own part.
    `algorithm` is needed only where it cannot be sent: a training loop of one's own. `state` is the folder of the node's
    file; `state = "…"` in the node's config says the same.
    """
    node = Node(model, data, algorithm, None if state is None else Path(state), torch.device(device))
    app = ClientApp()

    @app.query()
    def join(message: Message, context: Context) -> Message:
        return node.answer(node.join, message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return node.answer(node.train, message, context)

    @app.evaluate()
    def measure(message: Message, context: Context) -> Message:
        return node.answer(node.measure, message, context)

    return app


class Node:
    """What a node does with the three kinds of messages."""

    def __init__(
        self, model: Model, data: Data, algorithm: Algorithm | None, state: Path | None, device: torch.device
    ) -> None:
        self._model, self._data, self._algorithm, self._state, self._device = model, data, algorithm, state, device
        self._built: tuple[tuple[str, int], Trainer] | None = None

    def answer(
        self, action: Callable[[ConfigRecord, Context], RecordDict], message: Message, context: Context
    ) -> Message:
        """Do it, or say why not: the server goes on either way, and its log names the reason."""
        try:
            reply = action(wire.said(message), context)
        except PacketError as error:
            reply = wire.refusal(error.reason, str(error))
        except (LaconicError, ValidationError) as error:
            LOG.error("laconic: %s", error)
            reply = wire.refusal("node", str(error))
        return Message(reply, reply_to=message)

    def join(self, record: ConfigRecord, context: Context) -> RecordDict:
        """Hear about a run: check that model and data fit, and only then keep the plan."""
        plan = Plan.model_validate_json(wire.text(record, "plan"))
        file = self._file(context)
        number = context.node_config.get("partition-id")
        # Whoever has no number of its own gets one from the server; until then any will do to look at the data.
        trainer = self._trainer(plan, context, int(number) if number is not None else 0)
        file.enter(plan, float(context.node_config.get("keep-days", KEEP_DAYS)))
        size = trainer.data.size(trainer.client)
        return wire.content(name=file.name(), client=-1 if number is None else int(number), examples=size)

    def train(self, record: ConfigRecord, context: Context) -> RecordDict:
        """One exchange of a round."""
        instruction = wire.unpack_instruction(record)
        trainer = self._known(record, context, instruction.client)
        (reply,) = trainer.engine.run([instruction])
        return wire.pack_reply(reply)

    def measure(self, record: ConfigRecord, context: Context) -> RecordDict:
        """The server's model on this node's examples: those it holds out if it has any, else those it trains on."""
        trainer = self._known(record, context, wire.count(record, "client"))
        layout, examples = trainer.layout, trainer.examples()
        packets = {packet.stream: packet for packet in (Packet.parse(p, layout) for p in wire.packets_of(record))}
        if CoreStream.MODEL not in packets:
            raise PacketError("stream", "an evaluation without a model")
        model = decode_dense(packets[CoreStream.MODEL].body, layout.size, layout.dtype).dense()
        buffers = trainer.buffers
        if CoreStream.BUFFERS in packets:
            buffers = decode_dense(packets[CoreStream.BUFFERS].body, layout.buffer_size, layout.dtype).dense()
        task = trainer.engine.runtime.task
        found = evaluate(trainer.engine.map, task, layout, model.to(self._device), buffers.to(self._device), examples)
        return wire.content(examples=len(examples), names=[*found], values=[float(value) for value in found.values()])

    def _known(self, record: ConfigRecord, context: Context, client: int) -> Trainer:
        plan = self._file(context).plan(wire.text(record, "run"))
        if plan is None:
            raise PacketError(wire.NOT_KNOWN, "this node was not told about the run, or has lost its file")
        return self._trainer(plan, context, client)

    def _file(self, context: Context) -> NodeFile:
        number = context.node_config.get("partition-id")
        folder = context.node_config.get("state", self._state)
        place = user_state_path("laconic") / "nodes" if folder is None else Path(str(folder))
        return NodeFile(place / ("node.sqlite" if number is None else f"node-{number}.sqlite"))

    def _trainer(self, plan: Plan, context: Context, client: int) -> Trainer:
        key = (plan.run, client)
        if self._built is None or self._built[0] != key:
            if self._built is not None:
                self._built[1].engine.close()
                self._built = None
            store = self._file(context).store(plan.run)
            self._built = key, self._build(plan, context, client, store)
        return self._built[1]

    def _build(self, plan: Plan, context: Context, client: int, store: ClientStore) -> Trainer:
        """As a simulation is built, for one client and with the server's choices."""
        data = self._examples(plan, context, client)
        model = self._model
        if isinstance(model, str):
            model = str(context.run_config.get("model", model))
        task = make_model(model, plan.seed, plan.shape)
        prepared = prepare(task, plan.numerics, self._device, client_example(data, client), data.classes)
        layout, buffers = prepared.layout, prepared.initial_buffers.cpu()
        if layout.fingerprint != plan.fingerprint:
            raise ConfigError(f"model: its {layout.size} parameters have another form than the server's")
        if initial_hash(prepared.initial_model, buffers) != plan.initial:
            raise ConfigError(
                "model: its initial weights are not the server's; give both sides a function that builds it"
            )
        algorithm = plan.algorithm() if self._algorithm is None else self._algorithm.fitted()
        spec = ClientSpec(algorithm, prepared, data, plan.seed, frozen_buffers=plan.buffers == "frozen", chunk=1)
        return Trainer(spec.engine(store, threads=1), data, client, layout, buffers)

    def _examples(self, plan: Plan, context: Context, client: int) -> ClientData:
        if client >= plan.clients:
            raise ConfigError(f"partition-id = {client}: 0 to {plan.clients - 1} is allowed")
        if isinstance(self._data, str):
            name = str(context.run_config.get("dataset", self._data))
            data = data_sets.load(name, clients=plan.clients, partition=plan.partition, seed=plan.seed)
        else:
            data = self._data if isinstance(self._data, ClientData) else self._data(context)
        if len(data) == plan.clients:
            return data
        if getattr(data, "labels_found", False):
            raise ConfigError(
                "labels are text, and were numbered as they occur on this node, which others may do otherwise; "
                "give all of them: from_arrays([(inputs, targets)], labels=[…])"
            )
        if len(data) != 1:
            raise ConfigError(
                f"data has {len(data)} clients; the run's {plan.clients} or one, the node's own, is allowed"
            )
        return OwnData(data, plan.clients, {client: 0})


@dataclass(frozen=True)
class Trainer:
    """A client that is ready to work."""

    engine: InlineEngine
    data: ClientData
    client: int
    layout: Layout
    buffers: Tensor
    """The initial ones."""

    def examples(self) -> Examples | OwnExamples:
        """What an evaluation on this node uses."""
        own = isinstance(self.data, OwnData) and self.data.test is not None
        # The test examples of a shared data set are the server's to evaluate on.
        return self.data.test if own and self.data.test is not None else OwnExamples(self.data, self.client)


@dataclass(frozen=True)
class OwnExamples:
    """A client's own examples, to be measured on."""

    data: ClientData
    client: int

    def __len__(self) -> int:
        return self.data.size(self.client)

    def batch(self, indices: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The examples at `indices`."""
        return self.data.batch(self.client, indices.numpy(), dtype)
