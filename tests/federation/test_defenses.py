"""Defenses in aggregation: against the definitions, against attackers, and where they are refused."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import laconic
from laconic.algorithms.methods.received import Aggregate
from laconic.algorithms.recipes import make
from laconic.compression import DensePayload, Payload, SparsePayload, SumPayload
from laconic.compression.packet import Flag, Packet
from laconic.core.errors import ConfigError, PacketError
from laconic.core.randomness import Randomness
from laconic.federation import defenses as module
from laconic.federation.aggregation import RunningMean
from laconic.federation.defenses import CoordinateMean, NoisyMean
from laconic.federation.messages import Instruction, Reply
from laconic.federation.replies import CodedVector
from laconic.federation.round import Round, run_round
from laconic.federation.settings import Defenses, share
from laconic.federation.update_norms import KEPT, UpdateNormFilter, kind_of
from laconic.run.simulation import Simulation, initial_module, make_task
from tests.federation.rounds import NoEngine
from tests.oracles import defenses as oracle

FORMS = ("dense", "sparse", "sum")


def payload(vector: np.ndarray, form: str) -> Payload:
    values = torch.from_numpy(vector)
    if form == "dense":
        return DensePayload(values)
    positions = values.nonzero().flatten()
    sparse = SparsePayload(positions, values[positions], len(vector))
    return sparse if form == "sparse" else SumPayload(DensePayload(values / 2), DensePayload(values / 2))


def aggregated(given: Defenses, updates: list[np.ndarray], form: str, expected: int = 0, noise=None) -> np.ndarray:
    like, trim = (len(updates[0]), torch.float64, torch.device("cpu")), share(given.aggregate)
    found: Aggregate = RunningMean(*like) if trim is None else CoordinateMean(*like, trim)
    if noise is not None:
        found = NoisyMean(*like, noise, given.noise * float(given.clip or 0), expected)
    payloads = [payload(update, form) for update in updates]
    norms = [{"train/model": each.norm()} for each in payloads]
    limits = UpdateNormFilter(given).limits(norms)
    for client, each in enumerate(payloads):
        found.add(each, 1.0, limits.factor(norms[client], client))
    mean = found.mean()
    assert mean is not None
    return mean.numpy()


def drawn(seed: int, count: int, size: int = 7) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    lengths = 10.0 ** generator.integers(-3, 4, count)
    updates = [length * generator.standard_normal(size) for length in lengths]
    for update in updates:
        update[generator.random(size) < 0.3] = 0.0
    return updates


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(FORMS))
def test_they_are_what_the_papers_define(seed: int, count: int, form: str) -> None:
    updates = drawn(seed, count)
    clip = float(10.0 ** np.random.default_rng(seed).uniform(-2, 2))
    short = [oracle.clipped(u, clip) for u in updates]
    # Updates of norm zero do not count.
    middle = float(np.median([np.linalg.norm(u) for u in updates if u.any()] or [1.0]))
    noise = Randomness(seed).numpy("privacy noise", 3)
    known = Randomness(seed).numpy("privacy noise", 3).standard_normal(7) * 0.7 * clip
    expected = {
        Defenses(aggregate="median"): oracle.median(updates),
        Defenses(aggregate="trimmed_mean:0.2"): oracle.trimmed_mean(updates, 0.2),
        Defenses(clip=clip): np.mean(short, axis=0),
        Defenses(clip="median"): np.mean([oracle.clipped(u, middle) for u in updates], axis=0),
        Defenses(clip="median:3"): np.mean([oracle.clipped(u, 3 * middle) for u in updates], axis=0),
        Defenses(aggregate="median", clip=clip): oracle.median(short),
    }
    for given_, wanted in expected.items():
        np.testing.assert_allclose(aggregated(given_, updates, form), wanted, rtol=1e-9, atol=1e-12)
    private = aggregated(Defenses(clip=clip, noise=0.7), updates, form, expected=20, noise=noise)
    np.testing.assert_allclose(private, oracle.private_mean(updates, clip, known, 20), rtol=1e-9, atol=1e-12)


def test_blocks_of_coordinates_change_nothing(monkeypatch) -> None:
    updates = drawn(1, 5, size=1000)
    whole = aggregated(Defenses(aggregate="median"), updates, "dense")
    monkeypatch.setattr(module, "_BLOCK", 64)
    assert (aggregated(Defenses(aggregate="median"), updates, "dense") == whole).all()


@pytest.mark.parametrize("aggregate", ["median", "trimmed_mean:0.3"])
def test_the_largest_finite_numbers_stay_finite(aggregate: str) -> None:
    most = torch.finfo(torch.float32).max
    found = CoordinateMean(3, torch.float32, torch.device("cpu"), share(aggregate) or 0)
    update = DensePayload(torch.full((3,), most))
    for _ in range(4):
        found.add(update, 1.0, 1.0 / update.norm())
    mean = found.mean()
    assert mean is not None
    assert torch.allclose(mean, torch.full((3,), 3**-0.5))


def simulation(algorithm="fed_avg", model="logistic", **given) -> Simulation:
    data = laconic.data.load("digits", clients=10, partition="iid")
    module = initial_module(lambda: laconic.models.build(model, data.input_shape, 10), 0)
    return Simulation(
        make(algorithm),
        make_task(module, data),
        data,
        laconic.Settings(**{"rounds": 2} | given),
    )


MEDIAN, CLIP, NOISE = {"aggregate": "median"}, {"clip": 1.0}, {"clip": 1.0, "noise": 1.0}


@pytest.mark.parametrize(
    ("algorithm", "given", "words"),
    [
        ("fed_gate", {"defense": MEDIAN}, "gradient_tracking': its trackers sum to zero"),
        ("scaffold", {"defense": CLIP}, "control_variates': its stream 'control' is sent with the updates"),
        ("fed_amd", {"defense": CLIP | {"refuse": 5.0}}, "anchor_sampling"),
        ("fed_avg", {"defense": NOISE | {"refuse": "auto"}}, "one client's update would decide whether another's"),
        ("ef21", {"defense": NOISE}, "ef21"),
        ("fed_page", {"defense": MEDIAN}, "fed_page': its stream 'gradient' is sent with the updates"),
        ("fed_cams", {"defense": MEDIAN}, "with 'top_k.*most entries of an update are zero"),
        ("fed_avg", {"defense": MEDIAN, "weighting": "size"}, "a median has no weights"),
        ("fed_avg", {"defense": MEDIAN | {"memory": 20_000}}, "10 updates of 650 parameters need .* GB;"),
        ("fed_avg", {"defense": {"noise": 1.0}}, "set clip"),
        ("fed_avg", {"defense": {"noise": 1.0, "clip": "median"}}, "set clip"),
        ("fed_avg", {"defense": NOISE | {"aggregate": "median"}}, "calibrated for the mean"),
        ("fed_avg", {"defense": NOISE, "weighting": "size"}, "gives some clients more weight"),
        ("fed_avg", {"defense": NOISE, "sampling": "weighted"}, "uniform or poisson is allowed"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_work(algorithm: str, given: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulation(algorithm, **given)


@pytest.mark.parametrize("value", ["medium", "trimmed_mean", "trimmed_mean:0.5", "trimmed_mean:x"])
def test_a_misspelled_aggregate_says_what_is_allowed(value: str) -> None:
    with pytest.raises(ConfigError, match=r"mean, median, trimmed_mean:SHARE .* or auto is allowed"):
        laconic.simulate("fed_avg", "logistic", "digits", rounds=1, defense={"aggregate": value})


def run(**given) -> laconic.Result:
    data = laconic.data.load("digits", clients=10, partition="iid")
    return laconic.simulate("fed_avg", "logistic", data, **{"rounds": 3} | given)


def test_a_client_that_sends_nan_is_refused_named_and_set_aside(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="laconic"):
        result = run(rounds=6, max_violations=2, faults={"not_finite": 1})
    attacker = int(Randomness(0).numpy("attackers").choice(10, 1, replace=False)[0])
    assert [record["participants"] for record in result.history] == [9] * 6
    assert [record.get("refused") for record in result.history] == [{"not finite": 1}] * 2 + [None] * 4
    assert f"the reply of client {attacker} was refused: not finite" in caplog.text
    assert f"client {attacker} is blocked after 2 refused replies" in caplog.text


def test_an_update_that_is_far_too_long_is_refused(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="laconic"):
        result = run(faults={"boosted": 1}, defense={"refuse": 100.0}, rounds=4)
    assert [record.get("refused") for record in result.history] == [{"exploding": 1}] * 3 + [None]
    assert "above 100" in caplog.text


def test_without_attackers_a_long_clip_changes_nothing() -> None:
    assert run(defense={"clip": 1e6}).model_sha256 == run().model_sha256


def test_noise_follows_from_the_seed_and_epsilon_grows() -> None:
    private = {"clip": 0.5, "noise": 1.0, "delta": 1e-4}
    given = {"participants": 4, "sampling": "poisson", "eval_every": 1, "defense": private}
    one, same, other = run(**given), run(**given), run(**given, seed=1)
    assert one.model_sha256 == same.model_sha256 != other.model_sha256
    epsilons = [record["epsilon"] for record in one.history]
    assert 0 < epsilons[0] < epsilons[1] < epsilons[2]
    assert one.metrics.keys() == {"loss", "accuracy"}
    # Four times the noise tells far less.
    assert run(**given | {"defense": private | {"noise": 4.0}}).history[-1]["epsilon"] < epsilons[0] / 3


def test_the_noise_on_the_model_is_as_large_as_it_should_be() -> None:
    """With a tiny clipping length the model moves by the noise alone: its deviation is z S / n in every entry."""
    private = simulation(rounds=1, defense={"clip": 1e-3, "noise": 1000.0})
    before = private.server.model.clone()
    list(private.rounds())
    private.close()
    moved = private.server.model - before
    assert float(moved.std()) == pytest.approx(1000.0 * 1e-3 / 10, rel=0.1)


def test_poisson_sampling_is_right_on_average() -> None:
    draw = laconic.federation.sampling.participants
    counts = [len(draw("poisson", 50, 10, round, Randomness(3), lambda: np.zeros(0))) for round in range(400)]
    assert np.mean(counts) == pytest.approx(10, abs=4 * np.sqrt(50 * 0.2 * 0.8 / 400))
    assert np.std(counts) == pytest.approx(np.sqrt(8), rel=0.2)


@pytest.mark.parametrize("value", ["often", -1, 0, "inf"])
def test_a_misspelled_length_says_what_is_allowed(value: object) -> None:
    with pytest.raises(ConfigError, match="a norm above 0, auto or none is allowed"):
        laconic.simulate("fed_avg", "logistic", "digits", rounds=1, defense={"refuse": value})


def refused_above(norms: UpdateNormFilter, *found: float, kind: str = "train/model") -> float:
    """The norm above which one of the replies of an exchange is refused."""
    return min((limit.norm for limit in norms.limits([{kind: norm} for norm in found]).refuse[kind]), default=np.inf)


def test_norms_are_compared_with_those_of_the_round_and_with_earlier_ones() -> None:
    norms = UpdateNormFilter(Defenses(refuse="auto"))
    # Two may be anything. Three have a median, in the first round, too. A zero is not compared.
    assert refused_above(norms, 1.0, 1e6) == refused_above(norms, 0.0, 1.0, 1e6) == np.inf
    assert refused_above(norms, 1.0, 1e6, 1.2) == 6.0
    for norm in (1.0, 2.0, 500.0, 0.0, 3.0, 2.5):
        norms.add({"train/model": norm})
    # Few norms are completed with the latest ones: 2.5, 3, 500 and 2.
    assert refused_above(norms, 1e6) == 15.0
    # If all are large, the earlier ones count: 100 times 2.5.
    assert refused_above(norms, *[1e6] * 9) == 250.0
    assert refused_above(norms, 1e9, kind="anchor/model") == np.inf
    limits = norms.limits([{"train/model": 1e6}] * 9)
    assert limits.factor({"train/model": 250.0, "anchor/model": 1e9}, 7) == 1
    with pytest.raises(PacketError, match="client 7 has norm 251, above 250, 100 times the median") as caught:
        limits.factor({"train/model": 251.0}, 7)
    assert caught.value.reason == "exploding"
    again = UpdateNormFilter(Defenses(refuse="auto"))
    again.load_state_dict(norms.state_dict())
    assert refused_above(again, *[1e6] * 9) == 250.0
    # Only late ones count.
    for _ in range(KEPT):
        again.add({"train/model": 0.01})
    assert refused_above(again, *[1e6] * 9) == 1.0


def test_with_clipping_norms_are_compared_with_the_upper_quartile_of_earlier_ones() -> None:
    """Near the optimum most updates are tiny, but honest ones may still be as large as before."""
    norms = UpdateNormFilter(Defenses(clip="median:2", refuse="auto"))
    assert refused_above(norms, *[0.01] * 5) == pytest.approx(0.05)
    for norm in [0.01] * 60 + [1.0] * 40:
        norms.add({"train/model": norm})
    assert refused_above(norms, *[0.001] * 9) == 10.0
    assert refused_above(norms, *[2.0] * 9) == 20.0
    limits = norms.limits([{"train/model": 0.001}] * 9)
    assert limits.factor({"train/model": 9.0}, 0) == pytest.approx(0.002 / 9)


def test_a_difference_may_be_as_large_as_the_state() -> None:
    """A client that was away for long, or has lost its state, is no outlier."""
    norms = UpdateNormFilter(Defenses(refuse="auto"))
    assert refused_above(norms, 1.0, 1.2, 50.0, kind="train/control") == 24.0
    assert kind_of("train", "control", first=True) == "first/control"
    for norm in (10.0, 11.0, 12.0):
        norms.add({"first/control": norm, "train/model": 1.0})
    assert refused_above(norms, 1.0, 1.2, 50.0, kind="train/control") == 55.0
    assert refused_above(norms, 1.0, 1.2, 50.0, kind="train/model") == 5.0


class Forgetful(NoEngine):
    """One client claims in every round to have lost its state."""

    def __init__(self, simulation: Simulation, client: int) -> None:
        self.engine, self.layout, self.client = simulation.engine, simulation.layout, client

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        for reply in self.engine.run(instructions):
            if reply.client == self.client:
                packets = [Packet.parse(raw, self.layout) for raw in reply.packets]
                claimed = tuple(replace(each, flags=each.flags | Flag.RESET).to_bytes() for each in packets)
                reply = replace(reply, packets=claimed)
            yield reply


def test_a_client_that_claims_again_and_again_to_start_over_does_not_raise_limits() -> None:
    """The limit for differences grows with first ones. One client must not be most of them."""
    found = simulation("scaffold", defense={"refuse": "auto"})
    engine = Forgetful(found, client=3)
    finished = [run_round(found.server, engine) for _ in range(3)]
    assert all(len(round.answered) == 10 for round in finished), "its replies are used"
    kept = {kind: len(norms) for kind, norms in found.server.norms.state_dict().items()}
    assert kept == {"first/control": 9, "train/model": 27, "train/control": 18}


def test_a_fixed_norm_bounds_every_vector_but_buffers() -> None:
    limits = UpdateNormFilter(Defenses(refuse=5.0)).limits([{"train/model": 1, "train/control": 1, "train/buffers": 1}])
    limits.factor({"train/model": 5.0, "train/control": 5.0, "train/buffers": 50.0}, 0)
    with pytest.raises(PacketError, match="the vector 'control' of client 3 has norm 6, above 5"):
        limits.factor({"train/model": 1.0, "train/control": 6.0}, 3)


@pytest.mark.parametrize("algorithm", ["fed_avg", "fed_amd", "scaffold", "fed_gate", "fed_page", "ef21", "fed_bnlaca"])
def test_refusing_goes_with_every_method_and_leaves_an_honest_run_as_it_is(algorithm: str) -> None:
    def found(**given) -> laconic.Result:
        data = laconic.data.load("digits", clients=10, partition="dirichlet:0.3")
        return laconic.simulate(algorithm, "logistic", data, rounds=10, **given)

    honest = found()
    for refuse in ("auto", 1e6):
        assert found(defense={"refuse": refuse}).model_sha256 == honest.model_sha256


def test_a_boosted_update_is_refused_as_if_it_were_lost() -> None:
    # Two thousandfold updates among ten clients: one round is enough to know better.
    result = run(rounds=6, defense={"refuse": "auto"}, faults={"boosted": 2, "boost": 1000.0}, max_violations=2)
    refused = [record.get("refused", {}).get("exploding", 0) for record in result.history]
    assert sum(refused) == 4
    assert [record["participants"] for record in result.history[-2:]] == [8, 8]


DEPLOYMENT = {"aggregate": "auto", "clip": "auto", "refuse": "auto"}


@pytest.mark.parametrize("algorithm", ["fed_avg", "fed_cams:compressor=sign", "scaffold", "fed_gate"])
def test_one_attacker_does_no_harm_to_a_deployment_from_the_first_round_on(algorithm: str) -> None:
    """A refused attacker has no more effect than one that sends NaN, which is refused in any case."""

    def found(**faults) -> laconic.Result:
        data = laconic.data.load("digits", clients=10, partition="dirichlet:0.5")
        return laconic.simulate(algorithm, "logistic", data, rounds=8, eval_every=8, defense=DEPLOYMENT, faults=faults)

    without = found(not_finite=1)
    assert without.accuracy > 0.7
    for boost in (-1e6, 3.4e38):
        assert found(boosted=1, boost=boost).model_sha256 == without.model_sha256
    assert found(boosted=1, boost=-20.0).accuracy > without.accuracy - 0.02


def test_an_outlier_is_refused_and_blocked_if_it_stays_one() -> None:
    result = run(defense=DEPLOYMENT, faults={"boosted": 1, "boost": -20.0}, max_violations=2, rounds=4)
    assert [record.get("refused") for record in result.history] == [{"outlier": 1}] * 2 + [None] * 2


def test_a_client_with_many_examples_takes_more_steps_and_is_no_outlier() -> None:
    data = laconic.data.load("digits", clients=10, partition="iid")
    order = np.concatenate(data.clients)
    data = replace(data, clients=[*np.split(order[:180], 9), order[180:]])
    given: dict[str, Any] = {"rounds": 4, "eval_every": 4, "defense": DEPLOYMENT, "max_violations": 2}
    result = laconic.simulate("fed_avg:local_epochs=2", "logistic", data, **given)
    assert not any("refused" in record for record in result.history)


def test_more_local_steps_raise_the_limit_for_outliers_only() -> None:
    limits = UpdateNormFilter(Defenses(refuse="auto")).limits([{"train/model": 1.0, "train/control": 1.0}] * 5)
    limits.factor({"train/model": 14.0}, 0, work=3.0)
    for norms in ({"train/model": 16.0}, {"train/model": 101.0}, {"train/control": 21.0}):
        with pytest.raises(PacketError):
            limits.factor(norms, 0, work=50.0 if max(norms.values()) > 16 else 3.0)
    with pytest.raises(PacketError, match="above 5, 5 times the median"):
        limits.factor({"train/model": 6.0}, 0, work=0.1)


def test_what_is_clipped_is_counted() -> None:
    result = run(defense={"clip": "median:3"}, faults={"boosted": 2, "boost": -5.0})
    assert [record["clipped"] for record in result.history] == [2, 2, 2]
    assert not any("clipped" in record for record in run(defense={"clip": "median:3"}).history)


def test_replies_wait_in_coded_form() -> None:
    """While a reply waits it takes as much memory as on the network, not a dense vector."""
    found = simulation("fed_cams", defense=DEPLOYMENT, rounds=1)
    round = Round(found.server, found.engine)
    (exchange,) = round.exchanges()
    for reply in found.engine.run(round.instructions(exchange)):
        valid = round.validate(reply)
        assert valid is not None
        (vector,) = valid.vectors.values()
        assert isinstance(vector, CodedVector)
        assert sum(len(body.data) for body in vector.bodies) < sum(map(len, reply.packets)) < 4 * 650
        assert valid.norms == {"train/model": pytest.approx(vector.payload.norm())}
    found.close()
