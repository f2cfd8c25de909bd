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


def test_the_mean_of_adapters_is_exact_if_a_is_frozen() -> None:
    """FFA-LoRA (Sun et al., 2024): the mean of B_i A is (mean of B_i) A. In FedIT, where A_i differ, it is not."""
    example = import_file(Path(__file__).parents[2] / "examples" / "lora.py")
    data, apart = example.tokens(clients=2), {}
    for frozen in (False, True):
        # The mean of two clients, and each of them alone, after one round from the same model.
        products = []
        for clients in ([0, 1], [0], [1]):
            torch.manual_seed(0)
            task = laconic.Task(example.Classifier(rank=2, freeze_a=frozen), example.loss, means=example.metrics)
            pairs = [
                (data.examples.inputs[rows], data.examples.targets[rows])
                for rows in map(data.clients.__getitem__, clients)
            ]
            held = laconic.data.from_arrays(
                pairs, test=(pairs[0][0][:8], pairs[0][1][:8]), classes=10, kind="classification"
            )
            settings = {"local_lr": 0.5, "local_steps": 4, "batch_size": 4, "batch_order": "fixed"}
            algorithm = laconic.fed_avg(**settings)
            result = laconic.simulate(algorithm, task, held, rounds=1, weighting="uniform", eval_every=1)
            layer = result.model.model.base_model.model.model.layers[0].self_attn.q_proj
            products.append((layer.lora_B["default"].weight @ layer.lora_A["default"].weight).detach())
            assert layer.lora_A["default"].weight.requires_grad != frozen
        mean, first, second = products
        apart[frozen] = float((mean - (first + second) / 2).norm() / mean.norm())
    assert apart[True] < 1e-5 < 1e-3 < apart[False]


def test_compressed_with_error_feedback_it_is_a_bit_for_each_of_its_numbers() -> None:
    example = import_file(Path(__file__).parents[2] / "examples" / "lora.py")
    task = laconic.Task(example.Classifier(rank=2), example.loss, means=example.metrics)
    size = Layout.of(task.module).size
    algorithm = laconic.fed_cams(compressor="sign", local_lr=0.5, local_steps=1, batch_size=2)
    result = laconic.simulate(algorithm, task, example.tokens(clients=4), rounds=1, participants=2, eval_every=1)
    assert result.ledger.bytes("up") == 2 * (HEADER + 4 + -(-size // 8))
