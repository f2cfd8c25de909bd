"""A node: Laconic's client as a Flower ClientApp.

Flower starts a process for every message, so the plan and the client's state are stored in the node's file. In Flower's
simulation a process handles several messages, and the `Trainer` is cached between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Literal

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from pydantic import ValidationError
from torch import Tensor

from laconic import data as data_sets
from laconic.algorithms.algorithm import Algorithm
from laconic.compression import decode_dense
from laconic.compression.packet import CoreStream, Packet
from laconic.core.counts import counted
from laconic.core.errors import ConfigError, LaconicError, PacketError
from laconic.core.layout import Layout
from laconic.data.federated import ClientData, Examples
from laconic.data.owned import OwnData
from laconic.engine.inline import ClientSpec, InlineEngine
from laconic.engine.prepared import client_example, prepare
from laconic.federation.store import ClientStore
from laconic.flower import wire
from laconic.flower.node_store import KEEP_DAYS, node_file
from laconic.flower.plan import Plan, allowed_name, initial_hash, make_model
from laconic.run.evaluate import ClientExamples, evaluate_counted
from laconic.run.simulation import Model

LOG = getLogger("flwr.laconic")

Data = str | ClientData | Callable[[Context], ClientData]
"""The name of a data set that the server's settings partition, or the node's own examples: a `ClientData` of one client."""


def client_app(
    model: Model,
    data: Data,
    *,
    algorithm: Algorithm | None = None,
    state: str | Path | None = None,
    device: str = "cpu",
) -> ClientApp:
    """Build the ClientApp of a node.

    Args:
        model: The same model as the server's.
        data: The node's own examples, `laconic.data.from_arrays([(inputs, targets)])`, or a function of Flower's `Context`
            that loads them. For experiments, the name of a data set, of which each node takes its own partition.
        algorithm: The server's algorithm. Needed only if it has your own code, as `OwnTraining` does: code is never sent.
        state: The folder of the node's file. `state = "…"` in the node's config takes precedence.
        device: The PyTorch device.
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
    """Handles the three kinds of messages: join, train and evaluate."""

    def __init__(
        self, model: Model, data: Data, algorithm: Algorithm | None, state: Path | None, device: torch.device
    ) -> None:
        self._model, self._data, self._algorithm, self._state, self._device = model, data, algorithm, state, device
        self._cached: tuple[tuple[str, int], Trainer] | None = None

    def answer(
        self, action: Callable[[ConfigRecord, Context], RecordDict], message: Message, context: Context
    ) -> Message:
        """Handle a message. An error becomes a refusal with its reason, which the server logs."""
        try:
            reply = action(wire.read_record(message), context)
        except PacketError as error:
            reply = wire.refusal(error.reason, str(error))
        except (LaconicError, ValidationError) as error:
            LOG.error("laconic: %s", error)
            reply = wire.refusal("failed", str(error))
        return Message(reply, reply_to=message)

    def join(self, record: ConfigRecord, context: Context) -> RecordDict:
        """Join a run: check that model and data fit, then store the plan."""
        plan = Plan.model_validate_json(wire.text(record, "plan"))
        file = node_file(context, self._state)
        number = context.node_config.get("partition-id")
        # The server assigns a number to a node without partition-id. Any number will do to check the data.
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
        """Evaluate the server's model on this node's test examples, or on its training examples if it has none."""
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
        vectors = (model.to(self._device), buffers.to(self._device))
        metrics, counted = evaluate_counted(trainer.engine.map, task, layout, *vectors, examples)
        values = [*map(float, metrics.values())]
        return wire.content(examples=len(examples), names=[*metrics], values=values, **wire.counted_share(counted))

    def _known(self, record: ConfigRecord, context: Context, client: int) -> Trainer:
        plan = node_file(context, self._state).plan(wire.text(record, "run"))
        if plan is None:
            raise PacketError(wire.UNKNOWN_RUN, "this node has not joined the run, or has lost its file")
        return self._trainer(plan, context, client)

    def _trainer(self, plan: Plan, context: Context, client: int) -> Trainer:
        key = (plan.run, client)
        if self._cached is None or self._cached[0] != key:
            if self._cached is not None:
                self._cached[1].engine.close()
                self._cached = None
            store = node_file(context, self._state).store(plan.run)
            self._cached = key, self._build(plan, context, client, store)
        return self._cached[1]

    def _build(self, plan: Plan, context: Context, client: int, store: ClientStore) -> Trainer:
        """Build the engine for one client with the server's settings, as a simulation does."""
        data = self._examples(plan, context, client)
        model = self._model
        if isinstance(model, str):
            model = _named(context, "model", model)
        task = make_model(model, plan.seed, plan.shape)
        example, space = client_example(data, client), (plan.subspace, plan.seed, plan.subspace_every)
        prepared = prepare(task, plan.numerics, self._device, example, data.classes, *space)
        layout, buffers = prepared.layout, prepared.initial_buffers.cpu()
        if layout.full.fingerprint != plan.fingerprint:
            raise ConfigError(f"model: its {layout.full.size} parameters do not have the shapes of the server's model")
        if initial_hash(prepared.initial_weights, buffers) != plan.initial:
            raise ConfigError(
                "model: its initial weights are not the server's; give both sides a function that builds it"
            )
        algorithm = plan.algorithm() if self._algorithm is None else self._algorithm.resolve()
        spec = ClientSpec(algorithm, prepared, data, plan.seed, frozen_buffers=plan.buffers == "frozen", chunk=1)
        # Where subspaces are redrawn, models to evaluate arrive whole.
        evaluated = layout if plan.subspace_every is None else layout.full
        return Trainer(spec.engine(store, threads=1), data, client, evaluated, buffers)

    def _examples(self, plan: Plan, context: Context, client: int) -> ClientData:
        if client >= plan.clients:
            raise ConfigError(f"partition-id = {client}: 0 to {plan.clients - 1} is allowed")
        if isinstance(self._data, str):
            name = _named(context, "dataset", self._data)
            keys = ("clients", "partition", "seed", "augment", "skip_empty")
            data = data_sets.load(name, **{key: getattr(plan, key) for key in keys})
        else:
            data = self._data if isinstance(self._data, ClientData) else self._data(context)
        if len(data) == plan.clients:
            return data
        if getattr(data, "labels_found", False):
            raise ConfigError(
                "labels are text, and other nodes may number them differently; "
                "list all of them: from_arrays([(inputs, targets)], labels=[…])"
            )
        if len(data) != 1:
            raise ConfigError(
                f"data has {counted(len(data), 'client')}; all {plan.clients} of the run, or 1 (this node) is allowed"
            )
        return OwnData(data, plan.clients, {client: 0})


def _named(context: Context, key: Literal["model", "dataset"], own: str) -> str:
    """A name of the run config, or the app's own."""
    return allowed_name(key, str(context.run_config.get(key, own)), own)


@dataclass(frozen=True)
class Trainer:
    """A client that is ready to train."""

    engine: InlineEngine
    data: ClientData
    client: int
    layout: Layout
    buffers: Tensor
    """The initial buffers."""

    def examples(self) -> Examples | ClientExamples:
        """The examples for an evaluation on this node."""
        # The server already evaluates on the test examples of a shared data set.
        test = self.data.test if isinstance(self.data, OwnData) else None
        return ClientExamples(self.data, self.client) if test is None else test
