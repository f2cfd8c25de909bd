"""Clients whose updates are reversed, constant or undo training are refused; honest ones are not, whatever their data."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

import laconic
from laconic.algorithms.recipes import make
from laconic.core.errors import PacketError
from laconic.core.randomness import Randomness
from laconic.federation.direction import MOMENTS, SIZE, DirectionFilter
from laconic.federation.store import Question
from laconic.run.simulation import Simulation, initial_module, make_task

DEPLOYMENT = {"aggregate": "auto", "clip": "auto", "refuse": "auto"}


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


def test_clients_that_oppose_each_other_in_every_round_are_not_refused() -> None:
    data = laconic.data.load("digits", clients=10, partition="dirichlet:0.1", seed=0)
    given: dict[str, Any] = {"defense": DEPLOYMENT, "eval_every": 40}
    result = laconic.simulate("fed_avg", "mlp:32", data, rounds=40, participants=10, **given)
    assert not any("refused" in record for record in result.history)


def clients(directions: DirectionFilter, rounds: range, flipped: int) -> list[tuple[int, int]]:
    """Ten quadratic losses with different minima. Returns the refusals, by round and client."""
    minima = torch.randn(10, 2000, generator=torch.Generator().manual_seed(0))
    refused = []
    for round in rounds:
        noise = torch.randn(11, 2000, generator=torch.Generator().manual_seed(round + 1))
        model = 0.3 * noise[10]
        directions.begin(model)
        for client, minimum in enumerate(minima):
            update = 0.1 * (minimum - model) + 0.02 * noise[client]
            signed = -update if client == flipped else update
            try:
                directions.check("train", client, signed, model)
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


def judged(growth: list[float], last: float = 1.0, work: float = 1.0) -> set[int]:
    """The clients that are refused in eight rounds, if each one's updates have this cosine with the model.

    The last client's updates have the norm `last`, after `work` times the steps of others.
    """
    lengths, works = ([1.0] * (len(growth) - 1) + [value] for value in (last, work))
    directions, refused = DirectionFilter(Randomness(0)), set()
    for round in range(8):
        draws = torch.randn(len(growth) + 1, 2000, generator=torch.Generator().manual_seed(round))
        model = torch.ones(2000) + 0.01 * draws[-1]
        directions.begin(model)
        for client, cosine in enumerate(growth):
            across = draws[client] - draws[client].mean()
            update = cosine * model / model.norm() + (1 - cosine**2) ** 0.5 * across / across.norm()
            try:
                directions.check("train", client, lengths[client] * update, model, work=works[client])
            except PacketError as error:
                assert "undo the training of the others" in str(error)
                refused.add(client)
    return refused


def test_a_long_update_that_shrinks_the_model_is_refused_if_nearly_all_others_let_it_grow() -> None:
    """As wrong labels do."""
    wrong = [0.1, 0.12, 0.08, 0.1, 0.11, 0.09, 0.1, 0.12, 0.1, -0.06]
    assert judged(wrong, last=1.5) == {9}
    assert judged(wrong, last=0.5) == set()  # rare data that the model has learned
    assert judged(wrong, last=3.0, work=6.0) == set()  # a large client
    # With weight decay, or in regression, the sign says nothing: the clients do not agree on it.
    assert judged([0.1, 0.05, 0.02, -0.03, -0.06, 0.08, 0.12, -0.02, 0.04, -0.06], last=1.5) == set()
    assert judged([-0.1] * 9 + [-0.2], last=1.5) == set()
    assert judged([0.1, 0.12, 0.08, -0.06], last=1.5) == set()  # too few clients


@pytest.mark.parametrize("score", [0, 1])
def test_many_attackers_widen_the_spread_and_do_not_switch_off_the_first_score(score: int) -> None:
    averages = torch.tensor([-0.14, -0.12, -0.1, -0.08, -0.06, -0.04, 0.2, 0.2, 0.2])
    rows = torch.zeros(9, MOMENTS + 1 + 3 * SIZE)
    rows[:, 0], rows[:, 4] = 5, 5
    if score == 0:
        rows[:, 1], rows[:, 2] = 5 * averages, 5 * averages**2
    else:
        rows[:, 3] = -5 * averages
    directions = DirectionFilter(Randomness(0))
    directions.load_state_dict({"train/clients": torch.arange(9), "train/rows": rows})
    # The model has not moved, so the moments stay as they are.
    if score == 0:
        with pytest.raises(PacketError, match="client 8 look reversed"):
            directions.check("train", 8, torch.ones(5), torch.ones(5))
    else:
        directions.check("train", 8, torch.ones(5), torch.ones(5))


@pytest.mark.parametrize(("below", "above", "refused"), [(3, 2, False), (4, 2, True), (5, 3, False), (6, 3, True)])
def test_flipped_signs_are_judged_if_two_thirds_of_the_clients_are_below_0(
    below: int, above: int, refused: bool
) -> None:
    averages = torch.tensor([-0.1] * below + [0.3] * above)
    rows = torch.zeros(len(averages), MOMENTS + 1 + 3 * SIZE)
    rows[:, 0], rows[:, 4] = 5, 5
    rows[:, 1], rows[:, 2] = 5 * averages, 5 * averages**2
    directions = DirectionFilter(Randomness(0))
    directions.load_state_dict({"train/clients": torch.arange(len(averages)), "train/rows": rows})
    with pytest.raises(PacketError, match="look reversed") if refused else nullcontext():
        directions.check("train", below, torch.ones(5), torch.ones(5))


@pytest.mark.parametrize("refused_at", [None, 3])
def test_a_shared_state_is_the_sum_of_its_accepted_differences(refused_at: int | None, monkeypatch) -> None:
    directions, total, draws = DirectionFilter(Randomness(0)), torch.zeros(3000), torch.Generator().manual_seed(1)

    def refuse(*_: object) -> None:
        raise PacketError("direction", "refused")

    model = torch.randn(3000, generator=draws)
    for round in range(8):
        difference = torch.randn(3000, generator=draws)
        model = model + 0.05 * torch.randn(3000, generator=draws)
        directions.begin(model)
        with monkeypatch.context() as patch:
            if round == refused_at:
                patch.setattr(directions, "_judge", refuse)
            else:
                total = difference if round == 5 else total + difference
            try:
                given = {"difference": difference, "started_over": round == 5}
                directions.check("train", 0, difference, model, **given)
            except PacketError:
                assert round == refused_at
    record = directions._records["train"][0]
    assert torch.allclose(record.state, -directions.project(total), atol=1e-3)
    # The part from projections is the model's movement only.
    assert abs(record.inner + total @ model) < 0.01 * total.norm() * model.norm()


def trained(directions: DirectionFilter, attack: str, kept: float) -> list[str]:
    """The refusals if a share of the entries of each update, chosen at random, moves the model. Client 3 attacks."""
    generator, refused = torch.Generator().manual_seed(0), []
    minima, model = torch.randn(10, 2000, generator=generator), torch.zeros(2000)
    for _ in range(40):
        directions.begin(model)
        updates = []
        for client, minimum in enumerate(minima):
            mask = torch.rand(2000, generator=generator) < kept
            update = 0.2 * (minimum - model) * mask / kept
            if client == 3 and attack == "constant":
                update = torch.full_like(update, float(update.norm()) / 2000**0.5)
            if client == 3 and attack == "flipped":
                update = -update
            try:
                directions.check("train", client, update, model)
                updates.append(update)
            except PacketError as error:
                refused.append(str(error))
        model = model + torch.stack(updates).mean(0)
        directions.end(model)
    return refused


@pytest.mark.parametrize(
    ("attack", "kept", "words"),
    [("constant", 1.0, "push the same way"), ("constant", 0.1, "push the same way"), ("flipped", 1.0, "look reversed")],
)
def test_a_client_that_does_not_follow_the_model_is_refused(attack: str, kept: float, words: str) -> None:
    assert trained(DirectionFilter(Randomness(0)), "none", kept) == []
    refused = trained(DirectionFilter(Randomness(0)), attack, kept)
    assert any(words in message for message in refused)
    assert all("client 3 " in message for message in refused)


def test_the_noise_of_sparse_updates_does_not_look_like_a_pull() -> None:
    """The model contains the noise of a client's last update, which u - u' contains with the other sign."""
    scores = []
    for own in (True, False):
        directions = DirectionFilter(Randomness(0))
        if not own:
            directions.end = lambda model: None  # type: ignore[method-assign]
        assert trained(directions, "none", 0.1) == []
        rows = directions.state_dict()["train/rows"]
        scores.append(float((rows[:, 1] / rows[:, 0]).mean()))
    assert abs(scores[0]) < 0.05 < 0.15 < -scores[1]


def test_how_far_an_update_moved_the_model_is_known() -> None:
    directions, model = DirectionFilter(Randomness(0)), torch.ones(3000)
    updates, weights = torch.randn(3, 3000, generator=torch.Generator().manual_seed(0)), torch.tensor([1.0, 2.0, 1.0])
    directions.begin(model)
    for client in range(3):
        directions.check("train", client, updates[client], model, weight=float(weights[client]))
    directions.end(model + 0.5 * weights @ updates / 4)
    for client in range(3):
        expected = directions.project(0.5 * weights[client] * updates[client] / 4)
        assert torch.allclose(directions._records["train"][client].own, expected, atol=1e-4)
    # A new round in which nothing passes, or that is abandoned, changes nothing.
    before = directions.state_dict()["train/rows"].clone()
    directions.begin(model)
    directions.end(2 * model)
    assert torch.equal(directions.state_dict()["train/rows"], before)


def test_lengths_that_differ_by_orders_mean_nothing() -> None:
    """As near the optimum of an adaptive optimizer."""
    rows = torch.zeros(9, MOMENTS + 1 + 3 * SIZE)
    rows[:, 0], rows[:, 3] = 5, 5 * torch.tensor([0.1] * 8 + [-0.1])
    for lengths, refused in ([1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.1, 0.9], True), ([0.1, 10, 0.2, 5, 1, 3, 0.3, 1], False):
        rows[:, 4] = 5 * torch.tensor([*lengths, 3.0])
        directions = DirectionFilter(Randomness(0))
        directions.load_state_dict({"train/clients": torch.arange(9), "train/rows": rows})
        with pytest.raises(PacketError, match="undo the training") if refused else nullcontext():
            directions.check("train", 8, torch.ones(5), torch.ones(5))


def test_wrong_labels_are_found() -> None:
    data = laconic.data.load("digits", clients=10, partition="iid")
    targets = data.examples.targets.clone()
    wrong = torch.from_numpy(data.clients[0])
    targets[wrong] = 9 - targets[wrong]
    data = replace(data, examples=replace(data.examples, targets=targets))
    given: dict[str, Any] = {"defense": DEPLOYMENT, "eval_every": 16, "max_violations": 3}
    result = laconic.simulate("fed_avg", "mlp:16", data, rounds=16, **given)
    assert sum(record.get("refused", {}).get("direction", 0) for record in result.history) == 3
    assert result.history[-1]["participants"] == 9


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
    for value in (1.0, float("inf"), 1.0, 3e38, float("nan")):
        directions.check("train", 0, torch.full((5,), value), torch.ones(5))
    assert directions.state_dict()["train/rows"][0, :MOMENTS].tolist() == [0] * MOMENTS


def test_the_shared_state_of_a_blocked_client_is_dropped_on_both_sides() -> None:
    data = laconic.data.load("digits", clients=12, partition="shards:2")
    settings = laconic.Settings(
        rounds=24, participants=8, eval_every=24, defense=DEPLOYMENT, faults={"boosted": 1, "boost": -1.0}
    )
    module = initial_module(lambda: laconic.models.build("mlp:16", data.input_shape, 10), 0)
    run = Simulation(make("scaffold"), make_task(module, data), data, settings)
    restarted = False
    for _ in run.rounds():
        server = run.server
        if server.blocklist.blocked_count() and not restarted:
            restarted = True
            assert not server.method_state["control"].any()
            assert not server.clients.sequences.any()
    assert restarted
    # The mean of the clients' states again, over all twelve.
    states = [
        run.store.settle(client, Question(0, 10**6, 0, int(run.server.clients.sequences[client]))).state or {}
        for client in range(12)
        if run.server.clients.sequences[client]
    ]
    mean = sum(state["method/control"] for state in states) / 12
    assert torch.allclose(run.server.method_state["control"], mean, atol=1e-5)
    run.close()
