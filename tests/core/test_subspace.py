"""Training in a random subspace: w = base + P z."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import laconic
from laconic.algorithms.recipes import RECIPES
from laconic.core import subspace
from laconic.core.layout import Layout
from laconic.core.randomness import Randomness
from laconic.core.subspace import Subspace
from laconic.run.simulation import Simulation
from tests.oracles import compressors, rounds
from tests.oracles.links import Plain
from tests.oracles.optimizers import SGD
from tests.oracles.subspace import expand, within
from tests.problems import CLASSES, FEATURES, SIZES, Setting, data, module

LARGE = FEATURES * CLASSES
ROUND = {"rounds": 2, "participants": 3, "eval_every": 1}


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subspace, "SMALLEST", 12)


@given(st.floats(0.05, 0.95), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_p_is_orthonormal_and_a_module_holds_base_and_p_z(share: float, seed: int) -> None:
    subspace.SMALLEST = 12  # hypothesis does not reset fixtures between examples
    net = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    space, base = Subspace.within(net, share, seed), Layout.of(net).flatten(net)
    assert space.size == max(1, round(share * 35)) + 5 + 5 + 5 + 10 + 2
    z = torch.randn(3, space.size, dtype=torch.float64)
    start = space.flatten(net)
    torch.testing.assert_close(space.expand(start), base)
    torch.testing.assert_close(space.project(space.expand(z) - space.base), z)
    # P^T P = 1 also means that lengths stay.
    torch.testing.assert_close((space.expand(z[0]) - space.expand(z[1])).norm(), (z[0] - z[1]).norm())
    assert torch.equal(space.expand(z)[1], space.expand(z[1]))
    other = copy.deepcopy(net)
    space.write(other, z[0])
    assert torch.equal(Layout.of(other).flatten(other), space.expand(z[0]))
    torch.testing.assert_close(space.flatten(other), z[0])


def test_p_and_the_base_are_in_the_fingerprint() -> None:
    net, other = module(), module()
    with torch.no_grad():
        other[1].weight += 0.1
    prints = [Subspace.within(net, 0.5, seed).fingerprint for seed in (0, 0, 1)]
    prints += [Subspace.within(other, 0.5, 0).fingerprint, Layout.of(net).fingerprint]
    assert prints[0] == prints[1]
    assert len({*prints}) == 4


def simulation(
    algorithm: laconic.Algorithm, setting: Setting, share: float | None, every: int | None = None
) -> Simulation:
    made = setting.simulation(algorithm)
    made.close()
    chosen = made.settings.model_copy(update={"subspace": share, "subspace_every": every})
    return Simulation(made.algorithm, laconic.classification(module()), data(), chosen)


@pytest.mark.parametrize("strategy", ["stacked", "vmap", "loop"])
def test_it_equals_its_oracle(strategy: str) -> None:
    setting = Setting(strategy=strategy)
    numbers = round(LARGE / 3)
    rng = Randomness(setting.seed).numpy("subspace")
    buckets = rng.permutation(np.arange(LARGE) % numbers)
    problem = within(setting.oracle(), buckets, rng.choice([-1.0, 1.0], LARGE), numbers)
    top = compressors.fixed(lambda x: compressors.top_k(x, 0.25))
    pairs = [
        (laconic.fed_sgd(), rounds.train(problem, Plain(), SGD())),
        (laconic.fed_ef_sgd(compressor="top_k:0.25@model"), rounds.fed_ef_sgd(problem, top)),
    ]
    for algorithm, oracle in pairs:
        run = simulation(algorithm, setting, 1 / 3)
        models = [run.server.model.numpy().copy() for _ in run.rounds()]
        run.close()
        assert run.layout.size == numbers + CLASSES
        assert max(np.abs(a - b).max() for a, b in zip(models, oracle.models, strict=True)) < 1e-8


def test_subspaces_that_are_redrawn_equal_their_oracle() -> None:
    """Each period is a run of its own from the model of the one before: memories and momentum start at 0."""
    setting, every, numbers = Setting(rounds=7), 3, round(LARGE / 3)
    top = compressors.fixed(lambda x: compressors.top_k(x, 0.25))
    pairs = [
        (laconic.fed_sgd(momentum=0.9), lambda problem: rounds.train(problem, Plain(), SGD(momentum=0.9))),
        (
            laconic.fed_ef_sgd(compressor="top_k:0.25@model", downlink="broadcast"),
            lambda problem: rounds.fed_ef_sgd(problem, top, broadcast=top),
        ),
    ]
    for algorithm, oracle in pairs:
        run = simulation(algorithm, setting, 1 / 3, every)
        models = [run.layout.expand(run.server.model).numpy().copy() for _ in run.rounds()]
        run.close()
        problem, expected = setting.oracle(), []
        w = problem.initial
        for start in range(0, setting.rounds, every):
            rng = Randomness(setting.seed).numpy("subspace", start // every or -1)
            buckets, signs = rng.permutation(np.arange(LARGE) % numbers), rng.choice([-1.0, 1.0], LARGE)
            shown = slice(start, start + every)
            rest = replace(problem, initial=w, participants=problem.participants[shown], batches=problem.batches[shown])
            found = oracle(within(rest, buckets, signs, numbers)).models
            wide = [np.concatenate([expand(w[:LARGE], buckets, signs, z[:numbers]), z[numbers:]]) for z in found]
            expected, w = expected + wide, wide[-1]
        assert max(np.abs(a - b).max() for a, b in zip(models, expected, strict=True)) < 1e-8


def test_a_client_learns_the_new_base_from_the_last_z_or_from_the_whole_model() -> None:
    net = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 2)).double()
    first = Subspace.within(net, 0.5, 0, every=2)
    z = torch.randn(first.size, dtype=torch.float64)
    second, third = first.for_round(2), first.for_round(5)
    assert first.for_round(1) is first and len({each.fingerprint for each in (first, second, third)}) == 3
    located = second.located({}, z)
    assert located is not None and torch.equal(located.weights, first.expand(z)) and located.period == 1
    # z starts such that the model stays, and a client that knows the base is not sent it again.
    torch.testing.assert_close(located.expand(located.start(z)), first.expand(z))
    assert second.located(located.location(), None) is located
    assert second.located({}, None) is None and third.located({}, z) is None
    missed = third.located({}, torch.cat([z, 2 * z]))
    assert missed is not None and torch.equal(missed.weights, located.expand(2 * z))
    after = third.located(located.location(), z)
    assert after is not None and torch.equal(after.weights, located.expand(z))
    whole = third.located({}, located.expand(z))
    assert whole is not None and torch.equal(whole.base, after.base)
    assert first.located({}, None) is first and not first.location()


REDRAWN = [
    "fed_cams:compressor=sign",
    "fed_comgate",
    "fed_bnlaca",
    "fed_amd",
    "scaffold",
    "vr_diana",
    "ef21_bc",
    "fed_dyn",
]


def redrawn(label: str, **changes: object) -> laconic.Result:
    given = {"rounds": 6, "participants": 2, "subspace": 0.5, "subspace_every": 2, "seed": 4}
    return laconic.simulate(label, module, data(), **given | changes)


@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("label", REDRAWN)
def test_runs_in_subspaces_go_on_bit_for_bit_and_survive_lost_states(
    label: str, every: int | None, tmp_path: Path
) -> None:
    expected = redrawn(label, subspace_every=every)
    for rounds_before in (2, 3) if every else (3,):
        out = tmp_path / str(rounds_before)
        redrawn(label, rounds=rounds_before, out=out, subspace_every=every)
        again = redrawn(label, out=out, resume=True, subspace_every=every)
        assert again.model_sha256 == expected.model_sha256
    faults = {"lose_state": 0.3, "drop": 0.2, "crash": 0.2, "duplicate": 0.2, "late": 0.2}
    faulty = redrawn(label, rounds=12, faults=faults, subspace_every=every)
    assert any("down/base" in record["streams"] for record in faulty.history) == (every is not None)
    assert any(record.get("lost") for record in faulty.history)
    assert np.isfinite(faulty.loss)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"fed_laconic"}))
def test_every_recipe_trains_in_redrawn_subspaces(name: str) -> None:
    assert redrawn(name).model_sha256 == redrawn(name, engine="processes", threads=2).model_sha256


def test_what_a_new_subspace_costs() -> None:
    """A client is sent the last z of each period that it missed once, or the whole model where that is shorter."""
    net = Subspace.within(module(), 0.5, 0)
    everyone = len(SIZES)
    result = redrawn("fed_avg", rounds=8, participants=everyone)
    for record in result.history:
        sent = record["streams"].get("down/base", {"packets": 0, "bytes": 0})
        packets = everyone if record["round"] in (3, 5, 7) else 0
        assert sent["packets"] == packets and sent["bytes"] == packets * (15 + 4 * net.size)
    away = redrawn("fed_avg", rounds=12, participants=1)
    lengths = {sent["bytes"] for record in away.history if (sent := record["streams"].get("down/base"))}
    assert lengths == {15 + 4 * net.size, 15 + 4 * net.full.size}
    smaller = Subspace.within(module(), 0.2, 0)
    away = redrawn("fed_avg", rounds=30, participants=1, subspace=0.2)
    lengths = {sent["bytes"] for record in away.history if (sent := record["streams"].get("down/base"))}
    assert lengths >= {15 + 4 * smaller.size, 15 + 8 * smaller.size, 15 + 4 * smaller.full.size}


def test_what_cannot_go_with_redrawn_subspaces_is_refused() -> None:
    with pytest.raises(laconic.ConfigError, match=r"subspace_every = 2: not with optimizer.average = 0.125"):
        redrawn("fed_laconic")
    with pytest.raises(laconic.ConfigError, match="subspace_every = 2: needs subspace"):
        redrawn("fed_avg", subspace=None)


def test_evaluation_and_the_saved_model_are_the_full_model(tmp_path) -> None:
    given = {**ROUND, "subspace": "1/4", "seed": 3}
    result = laconic.simulate("fed_avg", module, data(), out=tmp_path / "run", **given)
    saved = laconic.load_model(tmp_path / "run/model.safetensors")
    loaded = module()
    loaded.float().load_state_dict(saved)
    assert {name: value.shape for name, value in saved.items()} == {
        name: value.shape for name, value in module().state_dict().items()
    }
    inputs = torch.randn(5, FEATURES)
    torch.testing.assert_close(loaded.eval()(inputs), result.predict(inputs.numpy()))
    again = laconic.simulate("fed_avg", module, data(), out=tmp_path / "run", resume=True, **given | {"rounds": 4})
    whole = laconic.simulate("fed_avg", module, data(), **given | {"rounds": 4})
    assert again.model_sha256 == whole.model_sha256
    with pytest.raises(laconic.ConfigError, match="subspace"):
        laconic.simulate("fed_avg", module, data(), out=tmp_path / "run", resume=True, **given | {"subspace": 0.5})


def test_own_training_moves_the_model_by_the_projection_of_what_it_learned() -> None:
    def train(net: nn.Module, dataset: object) -> None:
        with torch.no_grad():
            net[1].weight += 0.5

    run = simulation(laconic.Algorithm(laconic.OwnTraining(train)), replace(Setting(), rounds=1), 1 / 3)
    before, space = run.server.model.clone(), run.layout
    step = torch.zeros(space.full.size, dtype=torch.float64)
    step[:LARGE] = 0.5
    list(run.rounds())
    run.close()
    torch.testing.assert_close(run.server.model, before + space.project(step))


def test_a_model_of_small_layers_and_shares_that_are_none_are_refused() -> None:
    subspace.SMALLEST = 4096
    with pytest.raises(laconic.ConfigError, match="no layer of this model has 4096 entries"):
        laconic.simulate("fed_avg", module, data(), subspace=0.1, **ROUND)
    for share in ("1/0", "few", 1.0, 0, "3/2"):
        with pytest.raises(laconic.ConfigError, match="subspace"):
            laconic.simulate("fed_avg", module, data(), subspace=share, **ROUND)
