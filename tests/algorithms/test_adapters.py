"""LoRA through peft as it stands: what travels is the adapter, byte for byte, and nothing of the backbone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import laconic
from laconic.core.layout import Layout
from laconic.core.user_code import import_file

pytest.importorskip("peft", reason="the extra `lora` is not installed")
pytest.importorskip("transformers", reason="the extra `lora` is not installed")
HEADER = 15


def test_only_the_adapter_travels_and_only_the_adapter_changes() -> None:
    example = import_file(Path(__file__).parents[2] / "examples" / "lora.py")
    torch.manual_seed(0)
    task = laconic.Task(example.Classifier(rank=2), example.loss, means=example.metrics)
    before = {name: value.clone() for name, value in task.module.state_dict().items()}
    data = example.tokens(clients=4)
    rounds, clients = 2, 3
    settings = {"rounds": rounds, "participants": clients, "eval_every": rounds, "seed": 1}
    result = laconic.simulate(laconic.fed_avg(local_lr=0.5, local_steps=2, batch_size=4), task, data, **settings)
    adapter = [name for name, each in task.module.named_parameters() if each.requires_grad]
    size = sum(before[name].numel() for name in adapter)
    # Two matrices of rank 2 for two projections of 64 x 64 in each of two layers, and the layer on top.
    assert size == 2 * 2 * (64 * 2 + 2 * 64) + 64 * 10
    assert size < 0.1 * sum(value.numel() for value in before.values())
    assert all("lora_" in name or "score" in name for name in adapter)
    # The tables of rotary angles are floating buffers, but no state: they do not travel either.
    assert any("inv_freq" in name for name, _ in task.module.named_buffers())
    assert Layout.of(task.module).buffer_size == 0
    for way in ("up", "down"):
        assert result.ledger.bytes(way) == rounds * clients * (4 * size + HEADER)
    after = result.model.state_dict()
    for name, value in before.items():
        assert torch.equal(after[name], value) != (name in adapter), name


def test_compressed_with_error_feedback_it_is_a_bit_for_each_of_its_numbers() -> None:
    example = import_file(Path(__file__).parents[2] / "examples" / "lora.py")
    task = laconic.Task(example.Classifier(rank=2), example.loss, means=example.metrics)
    size = Layout.of(task.module).size
    algorithm = laconic.fed_cams(compressor="sign", local_lr=0.5, local_steps=1, batch_size=2)
    result = laconic.simulate(algorithm, task, example.tokens(clients=4), rounds=1, participants=2, eval_every=1)
    assert result.ledger.bytes("up") == 2 * (HEADER + 4 + -(-size // 8))
