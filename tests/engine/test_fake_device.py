"""Rounds on a fake second device: nothing mixes its tensors with those of the host, and no local step waits for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from laconic import api
from laconic.algorithms.methods.cohort import Cohort
from tests.engine.fake_device import DEVICE, FakeDevice, fake_device

DATA = laconic.data.load("digits", clients=4)
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vmap": ("fed_avg", "mlp:8", {}),
    "loop": ("fed_prox", "mlp:8", {"numerics": {"strategy": "loop"}}),
    "dropout": ("fed_avg", "vit:1x8,4", {}),
    "batch norm": ("fed_amd", "cnn_fashion", {}),
    "state of clients": ("scaffold:warm_start=true,clip_norm=1", "mlp:8", {}),
    "state of the local optimizer": ("fed_avg:local_optimizer=adamw,local_optimizer_state=kept", "mlp:8", {}),
    "averaged state": ("fed_avg:local_optimizer=adamw,local_optimizer_state=averaged", "mlp:8", {}),
    "two exchanges": ("fed_comgate", "mlp:8", {}),
    "compressed both ways": ("fed_laconic", "mlp:8", {"diagnostics": True}),
    "broadcast": ("fed_ef_ams:downlink=broadcast,downlink.compressor=top_k:1/4", "mlp:8", {"full_gradient": True}),
    "compressed state": ("fed_amd:period=2,compressor=top_k:1/4,mean_compressor=qsgd:8", "mlp:8", {}),
    "robust": ("fed_avg", "mlp:8", {"defense": {"aggregate": "median", "clip": "median", "refuse": "auto"}}),
    "noise": ("fed_avg", "mlp:8", {"defense": {"clip": 1.0, "noise": 1.0}, "sampling": "poisson"}),
}


def simulate(name: str, **more: Any) -> laconic.Result:
    algorithm, model, settings = CASES[name]
    given = {"rounds": 2, "participants": 3, "local_steps": 2, "threads": 1, "eval_every": 2} | settings | more
    return api.simulate(algorithm, model, DATA, **given)


def on_device(name: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> tuple[FakeDevice, laconic.Result]:
    with monkeypatch.context() as patch, fake_device(patch) as device:
        return device, simulate(name, device="cuda", **more)


def test_the_fake_device_refuses_what_a_gpu_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_device(monkeypatch) as device:
        there, here = torch.zeros(3, device=DEVICE), torch.ones(3)
        assert there.device == DEVICE and (there + 1)[1:].device == DEVICE
        assert here.to(DEVICE).device == DEVICE and there.cpu().device.type == here.device.type == "cpu"
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="same device"):
            torch.stack([here, there])
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        device.waits.clear()
        float(there[0]), here.to(DEVICE, non_blocking=True), here.to(DEVICE), there.new_tensor([1.0])
        assert device.waits == {"__float__": 1, "to": 1, "new_tensor": 1}


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_the_device_is_that_on_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, result = on_device(name, monkeypatch)
    numerics = {"strategy": "vmap" if CASES[name][1] == "mlp:8" else "loop"} | CASES[name][2].get("numerics", {})
    assert result.model_sha256 == simulate(name, numerics=numerics).model_sha256


@pytest.mark.parametrize("name", ["vmap", "loop", "dropout", "batch norm", "state of clients", "averaged state"])
def test_local_steps_do_not_wait_for_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (on_device(name, monkeypatch, local_steps=steps)[0] for steps in (2, 5))
    assert few.waits == many.waits


def test_a_forgotten_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_host(cohort: Cohort, name: str) -> Tensor:
        return torch.stack([state.get(name, cohort.zeros()) for state in cohort.states])

    monkeypatch.setattr(Cohort, "stacked", on_host)
    with pytest.raises(RuntimeError, match="same device"):
        on_device("state of clients", monkeypatch)


def test_a_step_that_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Cohort._record

    def waiting(cohort: Cohort, losses: Tensor, *arguments: Any) -> None:
        losses[0].item()
        record(cohort, losses, *arguments)

    monkeypatch.setattr(Cohort, "_record", waiting)
    few, many = (on_device("vmap", monkeypatch, local_steps=steps)[0] for steps in (2, 5))
    assert few.waits["item"] < many.waits["item"]
