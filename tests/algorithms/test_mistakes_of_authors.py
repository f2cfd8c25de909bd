"""Mistakes in parts of one's own: one line that names the part and what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import laconic
from laconic.core.errors import ConfigError


def run(method: object = None, optimizer: object = None) -> laconic.Result:
    algorithm = laconic.Algorithm(method or laconic.LocalSGD(), laconic.Compressed("dense"), optimizer or laconic.SGD())
    return laconic.simulate(algorithm, "logistic", laconic.data.load("digits", clients=3), rounds=2)


def update(cohort: laconic.Cohort) -> Tensor:
    return torch.zeros_like(cohort.models)


ANSWERS: dict[str, tuple[Callable[[laconic.Cohort], object], str]] = {
    "nothing": (lambda cohort: None, "'model' is NoneType, but must be a torch.float32 tensor"),
    "an array": (lambda cohort: np.zeros(3), "'model' is ndarray"),
    "another type": (lambda cohort: update(cohort).double(), "'model' is torch.float64, but must be a torch.float32"),
    "two updates": (lambda cohort: laconic.Answer(update(cohort), model=update(cohort)), "two vectors 'model'"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_wrong_answers_of_a_method(answer: str) -> None:
    function, message = ANSWERS[answer]

    @laconic.method("wrong_answer")
    class WrongAnswer(laconic.LocalMethod):
        def local(self, cohort: laconic.Cohort) -> Tensor:
            return function(cohort)  # type: ignore[return-value]

    with pytest.raises(ConfigError, match=re.escape(message)):
        run(WrongAnswer())


def test_a_method_without_local() -> None:
    @laconic.method("empty_method")
    class EmptyMethod(laconic.LocalMethod):
        pass

    with pytest.raises(ConfigError, match=r"method 'empty_method': define `local\(self, cohort\)`"):
        run(EmptyMethod())


def test_a_stream_with_the_name_of_the_update() -> None:
    @laconic.method("second_model")
    class SecondModel(laconic.LocalSGD):
        def phases(self, uplink: laconic.Uplink) -> tuple[laconic.Phase, ...]:
            return (laconic.Phase("train", self.local, up=(laconic.Stream("model", "sign"),)),)

    with pytest.raises(ConfigError, match="stream = 'model': this is the name of the update"):
        run(SecondModel())


@pytest.mark.parametrize("where", ["init", "gather"])
def test_a_method_whose_state_is_no_dict_of_tensors(where: str) -> None:
    @laconic.method("counting")
    class Counting(laconic.LocalSGD):
        def init(self, model: Tensor) -> dict[str, Tensor]:
            return {"count": 0} if where == "init" else {}  # type: ignore[dict-item]

        def gather(self, *arguments: object) -> dict[str, Tensor]:
            return None  # type: ignore[return-value]

    message = "`init`: 'count' is 0, but a state has tensors" if where == "init" else "`gather` returned a NoneType"
    with pytest.raises(ConfigError, match=f"method 'counting': {message}"):
        run(Counting())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"t": 0}, "optimizer 'own_optimizer': `step`: 't' is 0, but a state has tensors only"),
        (None, "optimizer 'own_optimizer': `step` returned a NoneType; a state is a dict of tensors"),
    ],
)
def test_an_optimizer_whose_state_is_no_dict_of_tensors(state: object, message: str) -> None:
    @laconic.part("optimizer", "own_optimizer")
    class OwnOptimizer(laconic.Optimizer):
        server_lr: float = 1.0

        def step(self, mean: Tensor, state_before: dict[str, Tensor]) -> tuple[Tensor, object]:  # type: ignore[override]
            return mean, state

    with pytest.raises(ConfigError, match=re.escape(message)):
        run(optimizer=OwnOptimizer())


def test_an_optimizer_needs_a_step_of_the_models_shape_and_no_init() -> None:
    @laconic.part("optimizer", "own_optimizer")
    class OwnOptimizer(laconic.Optimizer):
        server_lr: float = 1.0

    with pytest.raises(ConfigError, match=r"optimizer 'own_optimizer': define `step\(self, mean, state\)`"):
        run(optimizer=OwnOptimizer())

    @laconic.part("optimizer", "short_step")
    class ShortStep(OwnOptimizer):
        def step(self, mean: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return mean[:-1], state

    with pytest.raises(ConfigError, match=r"optimizer 'short_step': `step` returned a step of shape \[649\], but"):
        run(optimizer=ShortStep())
