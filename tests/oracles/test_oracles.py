"""Identities that the oracles must satisfy by themselves, on small least-squares problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from . import methods, optimizers, rounds
from .compressors import Compress, dense, drawn, fixed, qsgd, sign, top_k
from .links import Accelerated, ErrorFeedback, Lazy, Mirrored, Plain
from .local_sgd import local_sgd
from .problem import History, Indices, Problem, Vector, local_update

CLIENTS, SIZE, SAMPLES, ROUNDS = 5, 8, 12, 20
EVERYBODY = list(range(CLIENTS))
FULL = {client: np.arange(SAMPLES) for client in EVERYBODY}
LAYERS = [(0, 5), (5, 3)]
TOP = fixed(lambda x: top_k(x, 0.25))
SIGN = fixed(sign, LAYERS)
DENSE = fixed(dense)


def uniform_draws(round: int, client: int) -> Vector:
    return np.random.default_rng((7, round, client + 1)).random(SIZE)


QSGD = drawn(lambda x, r: qsgd(x, 4, "max", r), uniform_draws)


def problem(steps: int = 3, participants: int = 3, seed: int = 1, rate: float = 0.05) -> Problem:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(CLIENTS, SAMPLES, SIZE))
    targets = generator.normal(size=(CLIENTS, SAMPLES)) + np.arange(CLIENTS)[:, None]

    def gradient(client: int, w: Vector, indices: Indices) -> Vector:
        rows = features[client][indices]
        return np.asarray(rows.T @ (rows @ w - targets[client][indices]) / len(indices))

    chosen = [sorted(generator.permutation(CLIENTS)[:participants].tolist()) for _ in range(ROUNDS)]
    batches = [
        {client: [generator.integers(0, SAMPLES, 4) for _ in range(steps)] for client in EVERYBODY}
        for _ in range(ROUNDS)
    ]
    return Problem(CLIENTS, generator.normal(size=SIZE), gradient, chosen, batches, rate)


def large_batches(seed: int = 5) -> methods.LargeBatches:
    generator = np.random.default_rng(seed)
    return [{client: generator.integers(0, SAMPLES, 9) for client in EVERYBODY} for _ in range(ROUNDS)]


def same(left: History, right: History) -> None:
    for one, other in zip(left.models, right.models, strict=True):
        np.testing.assert_array_equal(one, other)


def close(left: list[Vector], right: list[Vector]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def total(vectors: list[dict[int, Vector]], client: int) -> Vector:
    return np.asarray(sum((each[client] for each in vectors if client in each), np.zeros(SIZE)))


# --- links ---


def test_full_participation_and_one_step_is_minibatch_sgd() -> None:
    given = problem(steps=1, participants=CLIENTS)
    close(local_sgd(given, optimizers.SGD()).models, methods.minibatch_sgd(given, 0.05).models)


def test_equal_sizes_are_the_uniform_mean() -> None:
    given = problem()
    weighted = replace(given, sizes=[12] * CLIENTS)
    close(local_sgd(given, optimizers.AMS()).models, local_sgd(weighted, optimizers.AMS()).models)


def test_a_dense_compressor_changes_nothing() -> None:
    given = problem()
    same(rounds.fed_cams(given, DENSE), local_sgd(given, optimizers.AMS()))
    same(rounds.fed_ef_sgd(given, DENSE), local_sgd(given, optimizers.SGD()))
    same(rounds.fed_ef_ams(given, DENSE), local_sgd(given, optimizers.FedEFAMSGrad()))
    same(rounds.fed_com(given, DENSE), local_sgd(given, optimizers.SGD()))
    same(rounds.fed_ef_sgd(given, TOP, broadcast=DENSE), rounds.fed_ef_sgd(given, TOP))
    mirrored = rounds.fed_bnlaca(given, TOP, 0.3, DENSE)
    close(mirrored.models, rounds.fed_nlaca(given, TOP, 0.3).models)
    close(rounds.fed_baca(given, TOP, 0.9, DENSE).models, rounds.fed_aca(given, TOP, 0.9).models)


@pytest.mark.parametrize("compress", [TOP, SIGN, QSGD])
def test_threshold_zero_is_the_inner_link(compress: Compress) -> None:
    given = problem()
    same(rounds.fed_nlaca(given, compress, 0.0), rounds.fed_cams(given, compress))
    same(rounds.fed_aca(given, compress, 0.0), rounds.fed_cams(given, compress))
    same(rounds.fed_nlaa(given, 0.0), local_sgd(given, optimizers.AMS()))
    same(rounds.fed_aa(given, 0.0), local_sgd(given, optimizers.AMS()))


def test_the_threshold_may_depend_on_the_round() -> None:
    given = problem()
    late = rounds.fed_nlaca(given, TOP, lambda t: 0.0 if t < 10 else 5.0)
    assert not any(late.skips[:10]) and any(late.skips[10:])
    assert late.skips == rounds.fed_nlaca(given, TOP, lambda t: 5.0 * (t >= 10)).skips


@pytest.mark.parametrize("compress", [TOP, SIGN])
@pytest.mark.parametrize("threshold", [0.0, 0.7, 2.0])
def test_what_was_used_and_what_is_remembered_is_all_that_was_made(compress: Compress, threshold: float) -> None:
    given = problem()
    plain = rounds.fed_ef_sgd(given, compress)
    lazy = rounds.fed_nlaca(given, compress, threshold)
    used_feedback = rounds.fed_aca(given, compress, threshold, feedback="used")
    for history in (plain, lazy, used_feedback):
        for client in EVERYBODY:
            kept = total(history.used, client) + history.memories[-1][client]
            np.testing.assert_allclose(kept, total(history.updates, client), atol=1e-10)
    if threshold == 2.0:
        assert any(lazy.skips) and any(used_feedback.skips)


def test_acceleration_remembers_what_was_sent() -> None:
    link = Accelerated(ErrorFeedback(TOP), 5.0)
    plain = ErrorFeedback(TOP)
    generator = np.random.default_rng(8)
    before = np.zeros(SIZE)
    for t in range(ROUNDS):
        update = generator.normal(size=SIZE)
        used, y = link.send(t, 0, update), plain.send(t, 0, update)
        np.testing.assert_array_equal(link.memory[0], plain.memory[0])
        np.testing.assert_array_equal(link.reference[0], y)
        np.testing.assert_array_equal(used, y + before if (t, 0) in link.fired else y)
        before = y
    assert link.fired


def test_lazy_without_memory_repeats_the_reference() -> None:
    link = Lazy(Plain(), 0.5)
    first, near, far = np.array([2.0, 0.0]), np.array([2.5, 0.0]), np.array([3.5, 0.0])
    np.testing.assert_array_equal(link.send(0, 3, first), first)
    np.testing.assert_array_equal(link.send(1, 3, near), first)
    # 3.5 is far from 2 but not from 2.5: the reference is what was transmitted, not what was computed.
    np.testing.assert_array_equal(link.send(2, 3, far), far)
    assert link.fired == [(1, 3)]


def test_restarting_discards_only_old_memory() -> None:
    link = ErrorFeedback(TOP, restart_after=2, restart_from=5)
    updates, used = np.zeros(SIZE), np.zeros(SIZE)
    generator = np.random.default_rng(9)
    discarded = []
    for t in (0, 3, 5, 7, 10, 11):
        update = generator.normal(size=SIZE)
        before = link.discarded.get(0, np.zeros(SIZE)).copy()
        used = used + link.send(t, 0, update)
        updates = updates + update
        discarded.append(not np.array_equal(before, link.discarded.get(0, np.zeros(SIZE))))
    # The gap 0 to 3 is before restart_from; 3 to 5 and 5 to 7 are not more than 2; 7 to 10 is.
    assert discarded == [False, False, False, False, True, False]
    np.testing.assert_allclose(used + link.memory[0] + link.discarded[0], updates, atol=1e-12)


def test_two_way_compression_conserves_the_steps() -> None:
    given = problem()
    history = rounds.fed_ef_sgd(given, TOP, broadcast=SIGN)
    steps = sum(np.mean(list(used.values()), axis=0) for used in history.used)
    moved = history.models[-1] - given.initial
    np.testing.assert_allclose(moved + history.server_memory[-1], steps, atol=1e-10)
    assert len(rounds.fed_ef_ams(given, TOP, broadcast=TOP).server_memory) == ROUNDS


def test_a_mirror_follows_the_model() -> None:
    generator = np.random.default_rng(10)
    start, w = np.zeros(SIZE), generator.normal(size=SIZE)
    mirror = Mirrored(start, TOP)
    for t in range(4):
        mirror.start(t, 0, w)
    np.testing.assert_array_equal(mirror.mirrors[0], w)
    lazy = Mirrored(w, TOP, threshold=0.1)
    np.testing.assert_array_equal(lazy.start(0, 0, w * 1.01), w)
    np.testing.assert_array_equal(lazy.start(1, 0, w * 3) != w, top_k(w, 0.25) != 0)
    literal = Mirrored(w, DENSE, literal=True)
    np.testing.assert_array_equal(literal.start(0, 0, 2 * w), 2 * w)
    printed = Mirrored(start, TOP, literal=True)
    received = [printed.start(t, 0, w) for t in range(6)]
    np.testing.assert_allclose(np.sum(received, axis=0) + printed.errors[0], 6 * w)


def test_a_round_without_replies_changes_nothing() -> None:
    given = problem()
    given.participants[4] = []
    for history in (
        rounds.fed_cams(given, TOP),
        local_sgd(given, optimizers.Adam()),
        methods.gradient_tracking(given),
        methods.control_variates(given),
        methods.bvr_l_sgd(given, large_batches()),
        methods.fed_page(given, [False] * ROUNDS, large_batches()),
    ):
        np.testing.assert_array_equal(history.models[4], history.models[3])
        assert not np.array_equal(history.models[5], history.models[4])


# --- methods ---


@pytest.mark.parametrize("compress", [DENSE, TOP, SIGN, QSGD])
@pytest.mark.parametrize("memory", [None, "standard", "global"])
def test_trackers_sum_to_zero(compress: Compress, memory: str | None) -> None:
    history = methods.gradient_tracking(problem(), compress, memory, tracker_rate=0.1)
    for trackers in history.trackers:
        np.testing.assert_allclose(sum(trackers.values()), np.zeros(SIZE), atol=1e-8)
    assert any(np.abs(tracker).max() > 0 for tracker in history.trackers[-1].values())


def test_memories_of_both_readings() -> None:
    given = problem(participants=CLIENTS)
    standard = methods.gradient_tracking(given, TOP, "standard", tracker_rate=0.25)
    shared = methods.gradient_tracking(given, TOP, "global", tracker_rate=0.25)
    for client in EVERYBODY:
        kept = total(standard.used, client) + standard.memories[-1][client]
        np.testing.assert_allclose(kept, total(standard.updates, client), atol=1e-9)
    # After one round, from equal memories, only the mean of the memories agrees.
    first = [np.mean(list(history.memories[0].values()), axis=0) for history in (standard, shared)]
    np.testing.assert_allclose(first[0], first[1], atol=1e-12)
    assert not np.allclose(standard.memories[0][0], shared.memories[0][0])


def test_one_participant_makes_gradient_tracking_fed_avg() -> None:
    given = problem(participants=1)
    same(methods.gradient_tracking(given), local_sgd(given, optimizers.SGD()))


def test_gradient_tracking_settles_where_fed_avg_cannot() -> None:
    given = problem(steps=6, participants=CLIENTS, rate=0.03)
    full = [{client: [np.arange(SAMPLES)] * 6 for client in EVERYBODY}] * 400
    given = replace(given, participants=[EVERYBODY] * 400, batches=full)

    def remaining(history: History) -> float:
        gradients = [given.gradient(client, history.models[-1], FULL[client]) for client in EVERYBODY]
        return float(np.linalg.norm(np.mean(gradients, axis=0)))

    drifted = remaining(local_sgd(given, optimizers.SGD()))
    assert drifted > 1e-3
    assert remaining(methods.gradient_tracking(given)) < 1e-4 * drifted
    assert remaining(methods.control_variates(given)) < 1e-4 * drifted


@pytest.mark.parametrize("compress", [None, TOP, SIGN])
@pytest.mark.parametrize("warm", [False, True])
def test_the_control_variate_is_the_mean_of_the_clients(compress: Compress | None, warm: bool) -> None:
    history = methods.control_variates(
        problem(), FULL if warm else None, ErrorFeedback(TOP), compress_difference=compress
    )
    for c, c_i in zip(history.server_state, history.client_states, strict=True):
        np.testing.assert_allclose(c, np.mean(list(c_i.values()), axis=0), atol=1e-9)


def test_a_dense_control_variate_is_the_mean_of_the_raw_gradients() -> None:
    given = problem()
    history = methods.control_variates(given, FULL)
    client = given.participants[0][0]
    c = np.mean([given.gradient(each, given.initial, FULL[each]) for each in EVERYBODY], axis=0)
    c_i = given.gradient(client, given.initial, FULL[client])
    W, raw = given.initial.copy(), []
    for batch in given.batches[0][client]:
        raw.append(given.gradient(client, W, batch))
        W = W - 0.05 * (raw[-1] - c_i + c)
    np.testing.assert_allclose(history.client_states[0][client], np.mean(raw, axis=0))


def test_a_miner_with_its_exact_gradient_and_full_batches_descends_it() -> None:
    given = problem(steps=4)
    given.batches[0][2] = [FULL[2]] * 4
    exact = given.gradient(2, given.initial, FULL[2])
    np.testing.assert_allclose(
        methods.miner(given, 0, 2, given.initial, exact), local_update(given, 0, 2, given.initial), atol=1e-12
    )


def roles(given: Problem, probability: float) -> list[set[int]]:
    generator = np.random.default_rng(11)
    return [{client for client in chosen if generator.random() < probability} for chosen in given.participants]


@pytest.mark.parametrize("compress", [None, TOP, SIGN])
def test_the_two_servers_of_fed_amd_agree(compress: Compress | None) -> None:
    given, large = problem(), large_batches()
    anchors = roles(given, 0.6)
    runs = [
        methods.anchor_sampling(given, anchors, FULL, large, form, compress_difference=compress)
        for form in ("all", "mean")
    ]
    close(runs[0].models, runs[1].models)
    close(runs[0].server_state, runs[1].server_state)
    for vbar, v in zip(runs[1].server_state, runs[1].client_states, strict=True):
        np.testing.assert_allclose(vbar, np.mean(list(v.values()), axis=0), atol=1e-10)


def test_anchors_do_not_move_the_model() -> None:
    given = problem()
    optimizer = optimizers.AMS()
    everybody = [set(chosen) for chosen in given.participants]
    history = methods.anchor_sampling(given, everybody, FULL, large_batches(), optimizer=optimizer)
    np.testing.assert_array_equal(history.models[-1], given.initial)
    assert optimizer.t == 0


@pytest.mark.parametrize("steps", [1, 3])
def test_alternating_fed_amd_is_minibatch_sgd_or_bvr_l_sgd(steps: int) -> None:
    given, large = problem(steps=steps, participants=CLIENTS), large_batches()
    anchors: list[set[int]] = [set(EVERYBODY) if t % 2 == 0 else set() for t in range(ROUNDS)]
    history = methods.anchor_sampling(given, anchors, FULL, large)
    # Two rounds of FedAMD are one of the others: large batches of the even rounds, small ones of the odd.
    half = replace(given, participants=given.participants[::2], batches=given.batches[1::2])
    close(history.models[1::2], methods.bvr_l_sgd(half, large[::2]).models)
    if steps == 1:
        as_batches = [{client: [batch] for client, batch in each.items()} for each in large[::2]]
        minibatch = methods.minibatch_sgd(replace(half, batches=as_batches), 0.05)
        close(history.models[1::2], minibatch.models)


def test_fed_page_that_always_renews_is_bvr_l_sgd() -> None:
    given, large = problem(participants=CLIENTS), large_batches()
    always = methods.fed_page(given, [True] * ROUNDS, large)
    close(always.models, methods.bvr_l_sgd(given, large).models)


def test_fed_page_with_full_batches_and_everybody_needs_no_coin() -> None:
    given, large = problem(participants=CLIENTS), [FULL] * ROUNDS
    never = methods.fed_page(given, [False] * ROUNDS, large)
    close(never.models, methods.fed_page(given, [True] * ROUNDS, large).models)


def test_anchor_probabilities() -> None:
    assert [round(methods.optimal_probability(n), 3) for n in (20, 40, 100)] == [0.887, 0.927, 0.961]
    assert 0 < methods.optimal_probability_pl(20, mu=0.5) < 1


def test_unequal_steps_are_refused() -> None:
    given = problem()
    first = given.participants[0][0]
    given.batches[0][first] = given.batches[0][first][:1]
    with pytest.raises(ValueError, match="one K"):
        methods.gradient_tracking(given)
