"""A federation of three nodes that learn digits, and what a bad node may send."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from flwr.app import Message

import laconic
from laconic.compression import encode_dense
from laconic.compression.packet import Body, Packet
from laconic.flower import client_app, wire
from laconic.flower.server import serve
from laconic.run.labels import split_label
from tests.flower.loopback import LoopbackGrid

CLIENTS = 3
SETTINGS = {"rounds": 3, "eval_every": 3, "seed": 5, "local_steps": 2}


class PowerCut(Exception):
    """The server stops here."""


def federation(folder: Path, nodes=range(CLIENTS), model="logistic") -> LoopbackGrid:
    grid = LoopbackGrid()
    for client in nodes:
        add(grid, folder, client, model)
    return grid


def add(grid: LoopbackGrid, folder: Path, client: int, model="logistic") -> None:
    grid.add(100 + client, partial(client_app, model, "digits"), partition_id=client, state=str(folder / "nodes"))


def data():
    return laconic.data.load("digits", clients=CLIENTS, seed=SETTINGS["seed"])


def run(grid: LoopbackGrid, folder: Path, algorithm="fed_cams", model="logistic", **settings):
    own = {"clients": CLIENTS, "out": str(folder / "run"), "deadline": 0.5, "strategy": "loop"}
    return serve(grid, algorithm, model, "digits", own | SETTINGS | settings)


def simulated(label: str, dtype="float32", **settings):
    said = split_label(label)
    numerics = laconic.gradients.numerics.Numerics(strategy="loop", dtype=dtype)
    changes = {key: value for key, value in (SETTINGS | settings).items() if key != "local_steps"}
    algorithm = laconic.algorithms.recipes.make(said.pop("algorithm"), **said)
    if "local_steps" in algorithm.method.parameters():
        algorithm = algorithm.replace(local_steps=SETTINGS["local_steps"])
    return laconic.simulate(algorithm, "logistic", data(), numerics=numerics, **changes)


def replaced(reply: Message, body: Body) -> Message:
    """The reply with another body in its packets, labeled as the client would."""
    record = reply.content.config_records[wire.RECORD]
    layout = laconic.Layout.of(laconic.models.build("logistic", (1, 8, 8), 10))
    packets = [Packet.parse(each, layout) for each in record["packets"]]
    record["packets"] = [
        Packet(body, p.stream, p.fingerprint, p.sequence, p.round, p.flags, p.incarnation, p.exchange).to_bytes()
        for p in packets
    ]
    return reply


def not_a_number(reply: Message) -> Message:
    return replaced(reply, Body(encode_dense(torch.zeros(650)).codec, torch.full((650,), torch.nan).numpy().tobytes()))
