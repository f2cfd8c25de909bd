"""Mixed precision: gradients in bfloat16, state in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.core.layout import Layout
from laconic.engine.prepared import prepare
from laconic.gradients.numerics import Numerics
from laconic.gradients.precision import in_bfloat16
from laconic.gradients.strategies import make_gradients
from laconic.models import build
from laconic.run.config import RunConfig, load_config
from laconic.run.driver import run_config

OPTIONS = {"algorithm": "fed_cams", "compressor": "sign", "participants": 3, "local_steps": 3, "threads": 2}


def configured(model: str, rounds: int = 4, **changes: Any) -> RunConfig:
    return load_config(None, OPTIONS | {"model": model, "dtype": "bfloat16", "rounds": rounds} | changes)


@pytest.mark.parametrize("model", ["mlp:16", "vit:1x16,4"])
def test_bfloat16_trains_repeats_and_resumes_with_float32_state(model: str, tmp_path: Path) -> None:
    simulation = configured(model).build()
    *_, last = simulation.rounds()
    kinds = {tensor.dtype for tensor in simulation.state_dict().values() if isinstance(tensor, Tensor)}
    assert torch.float32 in kinds and torch.bfloat16 not in kinds
    run_config(configured(model, 2), tmp_path / "run")
    resumed = run_config(load_config(None, {"rounds": 4}), tmp_path / "run", resume=True).result
    assert resumed.model_sha256 == simulation.model_sha256()
    plain = configured(model, dtype="float32").build()
    *_, expected = plain.rounds()
    assert plain.model_sha256() != simulation.model_sha256(), "bfloat16 changes the gradients"
    assert last["loss"] == pytest.approx(expected["loss"], rel=0.05)
    for each in (simulation, plain):
        each.close()


class Records(nn.Module):
    """Remembers the type of its product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.seen: list[torch.dtype] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        self.seen.append(outputs.dtype)
        return outputs


def test_training_is_in_bfloat16_and_evaluation_in_float32() -> None:
    batch = (torch.randn(4, 8), torch.tensor([0, 1, 2, 0]))
    task = in_bfloat16(laconic.classification(Records()), torch.device("cpu"))
    loss = task.loss(task.module, batch)
    means = task.measure(task.module, batch)
    assert task.module.seen == [torch.bfloat16, torch.float32]
    assert loss.dtype == means["loss"].dtype == torch.float32
    assert loss.item() == pytest.approx(means["loss"].item(), rel=0.02)


@pytest.mark.parametrize("name", ["lenet5", "vit:1x16", "cnn_fashion"])
def test_the_gradient_is_close_to_that_in_float32(name: str) -> None:
    torch.manual_seed(0)
    task = laconic.classification(build(name, (1, 28, 28), 10))
    batch = (torch.randn(16, 1, 28, 28), torch.arange(16) % 10)
    layout = Layout.of(task.module)
    results = []
    for dtype in ("float32", "bfloat16"):
        prepared = prepare(task, Numerics(dtype=dtype), torch.device("cpu"), lambda _: batch, 10)
        function = make_gradients(prepared.task, layout, prepared.numerics, prepared.stochastic, frozen=False)
        buffers = prepared.initial_buffers[None].clone()
        results.append(function(prepared.initial_model[None], buffers, [batch], lambda row: 5)[0][0])
    assert results[1].dtype == torch.float32
    assert torch.cosine_similarity(*results, dim=0) > 0.99
    assert not torch.equal(*results)


def test_masks_of_dropout_are_those_of_float32() -> None:
    module = nn.Sequential(nn.Linear(8, 512, bias=False), nn.Dropout(0.1), nn.Linear(512, 3))
    task = laconic.classification(module)
    batch = (torch.randn(1, 8), torch.tensor([0]))
    dropped = []
    for dtype in ("float32", "bfloat16"):
        prepared = prepare(task, Numerics(dtype=dtype, strategy="loop"), torch.device("cpu"), lambda _: batch, 3)
        function = make_gradients(prepared.task, prepared.layout, prepared.numerics, "named", frozen=False)
        gradient = function(prepared.initial_model[None], torch.empty(1, 0), [batch], lambda row: 1)[0][0]
        dropped.append(prepared.layout.views(gradient)["0.weight"].abs().sum(1) == 0)
    assert torch.equal(*dropped) and 0 < int(dropped[0].sum()) < 512


def test_vmap_in_bfloat16_is_close_to_the_loop() -> None:
    torch.manual_seed(0)
    task = in_bfloat16(laconic.classification(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))), CPU)
    batches = [(torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])) for _ in range(3)]
    layout = Layout.of(task.module)
    models = layout.flatten(task.module).repeat(3, 1)
    loop, vmap = (
        make_gradients(task, layout, Numerics(strategy=each, dtype="bfloat16", vmap_width=4), "no", frozen=False)(
            models, torch.empty(3, 0), batches, lambda row: row
        )[0]
        for each in ("loop", "vmap")
    )
    torch.testing.assert_close(loop, vmap, rtol=0.05, atol=0.01)


CPU = torch.device("cpu")


def test_what_cannot_be_in_bfloat16_says_so(tmp_path: Path) -> None:
    with pytest.raises(laconic.ConfigError, match="'stacked': not with dtype = 'bfloat16'"):
        configured("mlp:16", strategy="stacked").build()
    with pytest.raises(laconic.ConfigError, match="function computes its own gradients"):
        laconic.simulate(
            laconic.fed_avg(method=laconic.OwnTraining(lambda module, dataset: None)),
            "logistic",
            "digits",
            rounds=1,
            numerics={"dtype": "bfloat16"},
        )
    with pytest.raises(laconic.ConfigError, match="no autocast for device 'meta'"):
        in_bfloat16(laconic.classification(nn.Linear(2, 2)), torch.device("meta"))
