"""Federated fine-tuning with LoRA: only the adapter is sent.

    pip install -e '.[lora]'
    python examples/lora.py                # FedIT: the mean of both adapter matrices
    python examples/lora.py ffa_lora       # A is frozen, so that the mean of B A is exact
    python examples/lora.py flasc          # a quarter of the entries, each way

A tiny Llama reads the shipped digits pixel by pixel, as a sequence of 64 tokens. It is created from a config, so nothing is
downloaded. Its weights are random and frozen; only the adapter and the layer on top are trained. To use pretrained weights,
replace the config by `from_pretrained`; nothing else changes. Laconic needs no special case: it trains and sends the
parameters with requires_grad=True, and the others stay on the client.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import laconic
from laconic.data import FederatedData


class Classifier(nn.Module):
    """A peft model as an ordinary module: tokens in, logits out. With `freeze_a` only B and the layer on top are trained."""

    def __init__(self, rank: int, freeze_a: bool = False) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForSequenceClassification

        super().__init__()
        config = LlamaConfig(
            vocab_size=18,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            num_labels=10,
            pad_token_id=17,
            use_cache=False,
        )
        adapter = LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"])
        self.model = get_peft_model(LlamaForSequenceClassification(config), adapter)
        for name, parameter in self.model.named_parameters():
            if freeze_a and "lora_A" in name:
                parameter.requires_grad = False

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens).logits
        return logits


def loss(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return cross_entropy(module(batch[0]), batch[1])


def metrics(module: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
    logits = module(batch[0])
    right = (logits.argmax(-1) == batch[1]).float().mean()
    return {"loss": cross_entropy(logits, batch[1]), "accuracy": right}


def tokens(clients: int) -> FederatedData:
    """Return the digits as sequences of 64 tokens from 0 to 16, with a different mix of labels for each client."""
    digits = laconic.data.load("digits", clients=clients, partition="dirichlet:0.5")
    assert isinstance(digits, FederatedData) and digits.test is not None

    def pair(examples: laconic.data.Examples) -> tuple[Tensor, Tensor]:
        inputs = examples.inputs.flatten(1).double()
        return (inputs * 16 / inputs.max()).round().long(), examples.targets

    inputs, targets = pair(digits.examples)
    clients = [(inputs[indices], targets[indices]) for indices in digits.clients]
    return laconic.data.from_arrays(clients, test=pair(digits.test), classes=10, kind="classification")


def show(record: dict[str, Any]) -> None:
    print(f"round {record['round']:2d}: the clients' loss was {record['training_loss']:.3f}", flush=True)


def main(method: str = "fed_it") -> None:
    torch.manual_seed(0)
    task = laconic.Task(Classifier(rank=4, freeze_a=method == "ffa_lora"), loss, means=metrics)
    recipe = laconic.flasc if method == "flasc" else laconic.fed_avg
    algorithm = recipe(local_lr=0.1, local_steps=5, batch_size=16)
    data = tokens(clients=20)
    result = laconic.simulate(algorithm, task, data, rounds=20, participants=5, eval_every=20, on_round=show)
    whole = sum(each.numel() for each in task.module.parameters())
    trained = sum(each.numel() for each in task.module.parameters() if each.requires_grad)
    print(f"{method}: {trained:,} of {whole:,} parameters are trained")
    print(result)
    print(result.ledger)


if __name__ == "__main__":
    main(*sys.argv[1:])
