"""What `auto` means for a run: signs are trimmed, other updates clipped, and methods that need exact sums left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import laconic
from laconic.algorithms.recipes import make
from laconic.federation.defenses import resolve_auto
from laconic.federation.settings import Defenses
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
        ("fed_avg", {"send_buffers": True}, NEITHER),
        ("scafcom:compressor=sign", {}, NEITHER),
    ],
)
def test_auto(algorithm: str, given: dict[str, Any], expected: tuple[str, str | None]) -> None:
    rest = {"participants": 10, "weighting": "uniform", "send_buffers": False} | given
    defenses = Defenses(**AUTO | {"memory": rest.pop("memory", 10**9)})
    name, _, compressor = algorithm.partition(":compressor=")
    built = make(name, **({"compressor": compressor} if compressor else {}))
    found = resolve_auto(defenses, built, layout_of(4), **rest)
    assert (found.aggregate, found.clip, found.refuse) == (*expected, "auto")


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
    weightings = [weighting_of(fed_avg, laconic.Settings(defense={"aggregate": each})) for each in ("auto", "median")]
    assert weightings == [fed_avg.weighting, "uniform"] == ["size", "uniform"]
