"""Clients whose updates have a flipped sign are refused; honest clients are not, however different their data is."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

import laconic
from laconic.core.errors import PacketError
from laconic.core.randomness import Randomness
from laconic.federation.direction import SIZE, DirectionFilter

DEPLOYMENT = {"clip": "auto", "refuse": "auto"}


def found(algorithm: str, rounds: int = 16, **faults: float) -> laconic.Result:
    data = laconic.data.load("digits", clients=12, partition="shards:2")
    given: dict[str, Any] = {"defense": DEPLOYMENT, "faults": faults, "eval_every": rounds}
    return laconic.simulate(algorithm, "mlp:16", data, rounds=rounds, participants=8, **given)


@pytest.mark.parametrize("algorithm", ["fed_avg", "fed_cams:compressor=sign", "scaffold", "fed_gate", "fed_page"])
def test_only_the_client_with_the_flipped_sign_is_refused(algorithm: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not any("refused" in record for record in found(algorithm).history)
    attacked = found(algorithm, rounds=24, boosted=1, boost=-1.0)
    refused = [record["refused"] for record in attacked.history if "refused" in record]
    assert sum(sum(each.values()) for each in refused) >= 3
    # With some methods the norms of its later updates are outliers, too.
    assert {reason for each in refused for reason in each} <= {"direction", "outlier"}
    (client,) = {*re.findall(r"the reply of (client \d+) was refused", caplog.text)}
    assert f"{client} is blocked" in caplog.text


def clients(directions: DirectionFilter, rounds: range, flipped: int) -> list[tuple[int, int]]:
    """Ten quadratic losses with different minima. Returns the refusals, by round and client."""
    minima = torch.randn(10, 2000, generator=torch.Generator().manual_seed(0))
    refused = []
    for round in rounds:
        noise = torch.randn(11, 2000, generator=torch.Generator().manual_seed(round + 1))
        model = 0.3 * noise[10]
        for client, minimum in enumerate(minima):
            update = 0.1 * (minimum - model) + 0.02 * noise[client]
            signed = -update if client == flipped else update
            try:
                directions.check("train", client, signed, model, directions.project(model))
            except PacketError as error:
                assert error.reason == "direction"
                refused.append((round, client))
    return refused


def test_a_client_is_judged_after_three_scores_and_a_resumed_run_remembers_them() -> None:
    expected = [(round, 4) for round in range(3, 8)]
    whole = DirectionFilter(Randomness(0))
    assert clients(whole, range(8), flipped=4) == expected
    first, second = DirectionFilter(Randomness(0)), DirectionFilter(Randomness(0))
    assert clients(first, range(2), flipped=4) == []
    second.load_state_dict(first.state_dict())
    assert clients(second, range(2, 8), flipped=4) == expected
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])


def test_a_client_that_recovers_is_accepted_again() -> None:
    directions = DirectionFilter(Randomness(0))
    assert clients(directions, range(6), flipped=4)[-1] == (5, 4)
    assert clients(directions, range(6, 60), flipped=-1)[-1][0] < 30


def test_projections_keep_cosines() -> None:
    directions = DirectionFilter(Randomness(0))
    a, b = torch.randn(2, 100_001, generator=torch.Generator().manual_seed(0))
    a, b = a + b, a - 3 * b
    short = directions.project(a), directions.project(b)
    assert len(short[0]) == SIZE
    assert abs(cosine_similarity(*short, dim=0) - cosine_similarity(a, b, dim=0)) < 3 / SIZE**0.5


def test_what_is_not_finite_or_does_not_move_gives_no_score() -> None:
    directions = DirectionFilter(Randomness(0))
    for value in (1.0, float("inf"), 1.0, 3e38):
        directions.check("train", 0, torch.full((5,), value), torch.ones(5), torch.zeros(SIZE))
    assert directions.state_dict()["train/rows"][0, :3].tolist() == [0, 0, 0]
