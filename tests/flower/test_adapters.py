"""LoRA adapters on nodes: only the adapter travels, and the model is that of a simulation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.compression import HEADER_BYTES
from laconic.core.user_code import import_file

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("peft", reason="the extra `lora` is not installed")
pytest.importorskip("transformers", reason="the extra `lora` is not installed")

from laconic.flower import client_app
from laconic.flower.server import serve
from tests.flower.loopback import LoopbackGrid
from tests.flower.small_federation import CLIENTS, SETTINGS, data

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.py"


class Digits(nn.Module):
    """The example's Llama on images: the pixels are its tokens."""

    def __init__(self, freeze_a: bool) -> None:
        super().__init__()
        torch.manual_seed(0)  # a pretrained backbone is the same everywhere
        self.classifier = import_file(EXAMPLE).Classifier(rank=2, freeze_a=freeze_a)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier((images.flatten(1) > 0.5).long())


METHODS = {"FedIT": ("fed_avg", False), "FFA-LoRA": ("fed_avg", True), "FLASC": ("flasc", False)}


@pytest.mark.parametrize(("name", "freeze_a"), METHODS.values(), ids=METHODS)
def test_adapters_train_on_nodes_as_in_a_simulation(tmp_path: Path, name: str, freeze_a: bool) -> None:
    build = partial(Digits, freeze_a)
    start, grid = build(), LoopbackGrid()
    for client in range(CLIENTS):
        app = partial(client_app, build, "digits")
        grid.add(100 + client, app, partition_id=client, state=str(tmp_path / "nodes"))
    given = SETTINGS | {"rounds": 2, "eval_every": 2, "local_lr": 0.05, "batch_size": 4}
    own = {"clients": CLIENTS, "out": str(tmp_path / "run"), "deadline": 30.0, "strategy": "loop"}
    federated = serve(grid, name, build, "digits", own | given)
    expected = laconic.simulate(name, build, data(), numerics={"strategy": "loop"}, **given)
    assert federated.model_sha256 == expected.model_sha256
    assert federated.ledger.state_dict() == expected.ledger.state_dict()
    adapter = {key: each for key, each in start.named_parameters() if each.requires_grad}
    assert any("lora_B" in key for key in adapter) and any("lora_A" in key for key in adapter) != freeze_a
    moved = {k for k, each in start.named_parameters() if not torch.equal(federated.model.get_parameter(k), each)}
    # In two rounds, FLASC need not have sent an entry of every matrix.
    assert (
        moved == set(adapter) if name == "fed_avg" else moved < set(adapter) and any("lora_B" in key for key in moved)
    )
    dense = given["rounds"] * CLIENTS * (4 * sum(each.numel() for each in adapter.values()) + HEADER_BYTES)
    for way in ("up", "down"):
        sent = federated.ledger.bytes(way)
        assert sent == dense if name == "fed_avg" else sent < 0.4 * dense
