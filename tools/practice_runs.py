"""Trains a GPT and a BERT with LoRA under three algorithms, and checks that runs repeat: the table of docs/results.md.

python tools/practice_runs.py

It prints the table: bytes, loss, seconds, and whether a second run and a resumed run end with the same model. It needs the
extras `lora` and `datasets`, and the data set tinyshakespeare. It takes a few minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

import laconic

ALGORITHMS = ("fed_avg", "fed_cams:compressor=sign,server_lr=0.01", "fed_laconic")
ROUNDS = 8
SETTINGS: dict[str, Any] = {"local_optimizer": "adamw", "local_lr": 0.003, "local_steps": 8, "batch_size": 8}


def gpt() -> tuple[Any, Any]:
    """A transformer of two layers on ten roles of Shakespeare."""
    return "gpt:2x64", laconic.data.load("tinyshakespeare", partition="natural", clients=10)


def bert() -> tuple[Any, Any]:
    """A Bert of two layers with LoRA. It finds out which of two words a sentence contains more often."""
    from datasets import Dataset  # an extra
    from peft import LoraConfig, get_peft_model  # an extra
    from transformers import BertConfig, BertForSequenceClassification  # an extra

    def build() -> nn.Module:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        config = BertConfig(vocab_size=50, max_position_embeddings=16, num_labels=2, **sizes)
        adapter = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
        return get_peft_model(BertForSequenceClassification(config), adapter)  # type: ignore[return-value]

    words = np.random.default_rng(0).integers(2, 50, (1200, 15))
    words[:, ::2] = np.random.default_rng(1).integers(0, 2, (1200, 8))
    labels = ((words == 1).sum(1) > (words == 0).sum(1)).astype(np.int64)
    columns = {"input_ids": words, "attention_mask": np.ones_like(words), "label": labels}
    texts = Dataset.from_dict(columns).train_test_split(200, seed=0)
    return build, laconic.data.from_hugging_face(texts, clients=10)


def row(title: str, algorithm: str, model: Any, data: Any, folder: Path) -> str:
    """Train three times: as a whole, again, and with an interruption at half of the rounds."""

    def train(rounds: int = ROUNDS, **more: Any) -> laconic.Result:
        return laconic.simulate(algorithm, model, data, rounds=rounds, participants=5, **SETTINGS, **more)

    first, second = train(), train()
    train(rounds=ROUNDS // 2, out=folder)
    resumed = train(out=folder, resume=True)
    same = ["yes" if other.model_sha256 == first.model_sha256 else "NO" for other in (second, resumed)]
    up, down = (first.ledger.bytes(way) / 1e6 for way in ("up", "down"))
    name = algorithm.partition(":")[0]
    return (
        f"| {title} | {name} | {up:.3f} | {down:.3f} | {first.loss:.3f} | {first.seconds:.0f} | {same[0]} | {same[1]} |"
    )


def main() -> None:
    makers: dict[str, Callable[[], tuple[Any, Any]]] = {"gpt:2x64": gpt, "BERT with LoRA": bert}
    same = "same model in a second run | same model after a resume"
    print(f"| model | algorithm | MB up | MB down | test loss | seconds | {same} |")
    print("|---|---|---|---|---|---|---|---|")
    for title, make in makers.items():
        model, data = make()
        for algorithm in ALGORITHMS:
            with TemporaryDirectory() as folder:
                print(row(title, algorithm, model, data, Path(folder) / "run"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
