"""What `auto` means for a run: signs are trimmed, other updates clipped, and methods that need exact sums left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import laconic
from laconic.algorithms.recipes import make
from laconic.federation.defenses import resolve_defenses
from laconic.federation.settings import Defenses
from laconic.federation.store import Question
from laconic.run.simulation import Simulation, initial_module, make_task
from laconic.run.training import weighting_of
from tests.compression.test_compressors import layout_of

AUTO: dict[str, Any] = {"aggregate": "auto", "clip": "auto", "refuse": "auto"}
TRIMMED, CLIPPED, NEITHER = ("trimmed_mean:0.2", None), ("mean", "median:2"), ("mean", None)


@pytest.mark.parametrize(
    ("algorithm", "given", "expected"),
    [
        ("fed_cams:compressor=sign", {}, TRIMMED),
        ("fed_ef_sgd:compressor=sign@layer", {"participants": 5}, TRIMMED),
        ("fed_cams:compressor=sign", {"send_buffers": True}, TRIMMED),
        ("fed_cams:compressor=sign", {"participants": 4}, CLIPPED),
        ("fed_cams:compressor=sign", {"weighting": "size"}, CLIPPED),
        ("fed_cams:compressor=sign", {"memory": 10 * 4 * 4 - 1}, CLIPPED),
        # It costs honest runs accuracy if the model is compressed too.
        ("fed_cams_two_way:compressor=sign", {}, CLIPPED),
        ("fed_cams:compressor=heavy_sign:0.1", {}, CLIPPED),
        ("fed_avg", {}, CLIPPED),
        ("fed_avg", {"send_buffers": True}, CLIPPED),
        ("fed_avg", {"send_buffers": True, "refuse": None}, NEITHER),
        ("scafcom:compressor=sign", {}, NEITHER),
    ],
)
def test_auto(algorithm: str, given: dict[str, Any], expected: tuple[str, str | None]) -> None:
    rest = {"participants": 10, "weighting": "uniform", "send_buffers": False} | given
    defenses = Defenses(**AUTO | {"memory": rest.pop("memory", 10**9), "refuse": rest.pop("refuse", "auto")})
    name, _, compressor = algorithm.partition(":compressor=")
    built = make(name, **({"compressor": compressor} if compressor else {}))
    found = resolve_defenses(defenses, built, layout_of(4), **rest)
    assert (found.aggregate, found.clip, found.refuse) == (*expected, defenses.refuse)


def test_a_deployment_trims_signs_as_if_asked_to() -> None:
    data = laconic.data.load("digits", clients=10, partition="shards:2")

    def model(**defense: Any) -> torch.Tensor:
        found = laconic.simulate("fed_cams:compressor=sign", "logistic", data, rounds=3, eval_every=3, defense=defense)
        return torch.cat([each.flatten() for each in found.model.parameters()])

    trimmed = model(aggregate="trimmed_mean:0.2")
    assert torch.equal(model(**AUTO), trimmed)
    assert not torch.equal(model(), trimmed)


def test_auto_keeps_the_weighting_of_the_algorithm() -> None:
    fed_avg = make("fed_avg")
    weightings = [
        weighting_of(fed_avg, laconic.Settings(defense={"aggregate": each}), 9) for each in ("auto", "median")
    ]
    assert weightings == [fed_avg.weighting, "uniform"] == ["size", "uniform"]


def test_where_nothing_is_clipped_or_refused_the_model_is_that_of_the_plain_mean() -> None:
    data = laconic.data.load("digits", clients=10, partition="iid")
    for algorithm in ("fed_avg", "fed_cams", "scaffold"):
        plain, deployed = (
            laconic.simulate(algorithm, "logistic", data, rounds=6, eval_every=6, defense=defense)
            for defense in ({}, AUTO)
        )
        assert not any("clipped" in record or "refused" in record for record in deployed.history)
        assert deployed.model_sha256 == plain.model_sha256


LINKS = {
    "compressed": laconic.Compressed("top_k:1/8", memory=False),
    "error feedback": laconic.Compressed("top_k:1/8", memory=True),
    "lazy": laconic.Lazy("sign", memory=True, alpha=0.01),
    "accelerated": laconic.Accelerated("sign", memory=True, alpha=0.01),
    "shifted": laconic.Shifted("top_k:1/8"),
}


@pytest.mark.parametrize("name", LINKS)
def test_clipping_bounds_the_whole_vector_and_leaves_both_sides_state_as_it_is(name: str) -> None:
    """docs/defenses.md, Limits. The model does not move, so that updates are the same with and without clipping."""
    data = laconic.data.load("digits", clients=1, partition="iid")
    states, longest = [], []
    for clip in (None, 1e-3):
        algorithm = make("fed_avg").replace(uplink=LINKS[name])
        settings = laconic.Settings(rounds=5, eval_every=5, defense={"clip": clip})
        module = initial_module(lambda: laconic.models.build("logistic", data.input_shape, 10), 0)
        found = Simulation(algorithm, make_task(module, data), data, settings)
        start, steps = found.server.model.clone(), []
        for _ in found.rounds():
            steps.append(float((found.server.model - start).norm()))
            found.server.model = start.clone()
        question = Question(0, 10**6, 0, int(found.server.clients.sequences[0]))
        client = found.store.settle(0, question).state or {}
        states.append(client | {f"server/{key}": value for key, value in found.server.clients.uplink_state(0).items()})
        longest.append(max(steps))
        found.close()
    assert longest[0] > 0.01 and longest[1] == pytest.approx(1e-3, rel=1e-3)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert bool(states[0]) == (name != "compressed")
