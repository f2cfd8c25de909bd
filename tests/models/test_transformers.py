"""Runs with the transformers in the box: they learn, repeat bit for bit, and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laconic.run.config import load_config
from laconic.run.driver import run_config

TEXT = """
import numpy as np
from laconic.data import from_arrays

def text():
    letters = np.tile([0, 1, 2, 1, 3], 60)
    windows = np.stack([letters[start : start + 9] for start in range(200)])
    clients = [(part[:, :-1], part[:, 1:]) for part in np.array_split(windows, 4)]
    return from_arrays(clients, test=clients[0], kind="next_token", classes=4)
"""


@pytest.mark.parametrize(("model", "accuracy"), [("gpt:1x16", 0.75), ("vit:1x16,4", 0.5)])
def test_a_transformer_learns_repeats_and_resumes(model: str, accuracy: float, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TEXT)
    data = {"dataset": f"{tmp_path}/own.py:text"} if model.startswith("gpt") else {"clients": 4}

    def options(rounds: int) -> dict[str, Any]:
        adamw = {"local_optimizer": "adamw", "local_lr": 0.01, "local_steps": 10}
        return data | adamw | {"model": model, "rounds": rounds, "participants": 2, "threads": 2}

    whole = run_config(load_config(None, options(6)), tmp_path / "whole").result
    run_config(load_config(None, options(3)), tmp_path / "part")
    resumed = run_config(load_config(None, {"rounds": 6}), tmp_path / "part", resume=True).result
    assert whole.model_sha256 == resumed.model_sha256
    assert whole.accuracy is not None and whole.accuracy > accuracy
