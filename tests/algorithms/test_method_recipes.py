"""Each method against its oracle, and the identities of algorithms.md that concern methods."""

from __future__ import annotations

import numpy as np
import pytest

import laconic
from laconic.algorithms.methods.anchor_sampling import AnchorSampling
from laconic.algorithms.recipes import make
from laconic.compression.packet import HEADER_BYTES
from laconic.core.randomness import Randomness
from tests.algorithms.test_link_recipes import FIXED, LAYERS, difference
from tests.oracles import compressors, links, methods, optimizers
from tests.oracles.problem import Indices, Problem
from tests.problems import CLASSES, FEATURES, SIZES, Setting

SETTING = Setting()
N = len(SIZES)
D = FEATURES * CLASSES + CLASSES
FULL = {client: np.arange(size) for client, size in enumerate(SIZES)}
SPELLING = "top_k:0.25@model"


def large(batch: int | None = None, purpose: str = "large batch") -> list[dict[int, Indices]]:
    """The large batches of every client in every round, as the package draws them."""
    randomness = Randomness(SETTING.seed)

    def chosen(t: int, client: int) -> Indices:
        size = SIZES[client]
        if batch is None or batch >= size:
            return np.arange(size)
        return randomness.numpy(purpose, t, client).permutation(size)[:batch]

    return [{client: chosen(t, client) for client in range(N)} for t in range(SETTING.rounds)]


def anchors(probability: float) -> list[set[int]]:
    randomness = Randomness(SETTING.seed)
    return [
        {client for client in range(N) if randomness.numpy("anchor", t, client).random() < probability}
        for t in range(SETTING.rounds)
    ]


def coins(probability: float) -> list[bool]:
    randomness = Randomness(SETTING.seed)
    return [bool(randomness.numpy("renewal", t).random() < probability) for t in range(SETTING.rounds)]


def quantize(stream: str | None = None) -> compressors.Compress:
    """A 4-bit quantizer by layer, with the draws that the package makes for a stream."""
    purpose = "uplink" if stream is None else f"uplink/{stream}"

    def draws(round: int, client: int) -> np.ndarray:
        return Randomness(SETTING.seed).numpy(purpose, round, client).random(D)

    return compressors.drawn(lambda x, drawn: compressors.uniform(x, 4, drawn), draws, LAYERS)


@pytest.mark.parametrize("setting", [SETTING, Setting(participants=N), Setting(participants=1)])
def test_fed_gate_equals_its_oracle(setting: Setting) -> None:
    assert difference(laconic.fed_gate(), methods.gradient_tracking(setting.oracle()), setting) < 1e-9


@pytest.mark.parametrize("participants", [3, N])
def test_option_one_is_the_same_training_with_less_to_send(participants: int) -> None:
    """Clients repeat the server's step (Algorithm 3, Option I): the models are the same, bit for bit."""
    setting = Setting(participants=participants)
    option_one = laconic.fed_gate(downlink=laconic.Repeated(), server_lr=0.7)
    assert apart(setting.models(option_one), setting.models(laconic.fed_gate(server_lr=0.7))) == 0
    simulation = setting.simulation(option_one)
    for _ in simulation.rounds():
        pass
    whole = sum(traffic.bytes for name, traffic in simulation.ledger.streams.items() if name == "down/model")
    simulation.close()
    vector = HEADER_BYTES + 8 * D
    if participants == N:
        assert whole == setting.rounds * N * HEADER_BYTES, "with everybody there, only headers"
    else:
        assert whole < setting.rounds * participants * vector


def test_option_one_is_refused_where_a_client_cannot_repeat_the_step() -> None:
    for algorithm in (laconic.fed_avg(), laconic.fed_gate(optimizer=laconic.fed_ams().optimizer)):
        with pytest.raises(laconic.ConfigError, match="repeated"):
            SETTING.simulation(algorithm.replace(downlink=laconic.Repeated()))


def test_fed_comgate_equals_its_oracle_with_the_same_draws() -> None:
    oracle = methods.gradient_tracking(SETTING.oracle(), quantize())
    assert difference(laconic.fed_comgate(compressor="uniform:4@layer"), oracle) < 1e-9


@pytest.mark.parametrize("memory", ["standard", "global"])
def test_fed_comgate_with_memory_equals_its_oracle_in_both_readings(memory: str) -> None:
    # The default rate is k/d: 5 of 21 entries.
    oracle = methods.gradient_tracking(SETTING.oracle(), FIXED[SPELLING], memory, tracker_rate=5 / 21)
    uplink = laconic.Compressed(SPELLING, memory=True)
    algorithm = laconic.fed_gate(uplink=uplink, method={"memory": memory})
    assert difference(algorithm, oracle) < 1e-8
    other = methods.gradient_tracking(SETTING.oracle(), FIXED[SPELLING], memory, tracker_rate=1.0)
    assert difference(algorithm.replace(tracker_rate=1.0), other) < 1e-8


def test_trackers_see_what_a_lazy_or_accelerated_server_used() -> None:
    for uplink, kind in ((laconic.Lazy(threshold=1.0), "lazy"), (laconic.Accelerated(threshold=1.0), "accelerated")):
        simulation = SETTING.simulation(laconic.fed_gate(uplink=uplink))
        fired = 0
        for _ in simulation.rounds():
            fired += simulation.last_round.costs.skipped
            trackers = [state["method/tracker"] for _, state in simulation.store.states()]
            assert np.abs(sum(tracker.numpy() for tracker in trackers)).max() < 1e-12, kind
        simulation.close()
        assert fired or kind == "accelerated"


@pytest.mark.parametrize("warm_start", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "ams"])
def test_scaffold_equals_its_oracle(warm_start: bool, optimizer: str) -> None:
    theirs = optimizers.SGD() if optimizer == "sgd" else optimizers.AMS()
    oracle = methods.control_variates(SETTING.oracle(), FULL if warm_start else None, optimizer=theirs)
    algorithm = laconic.scaffold(warm_start=warm_start)
    if optimizer == "ams":
        algorithm = algorithm.replace(optimizer=laconic.fed_ams().optimizer)
    assert difference(algorithm, oracle) < 1e-9


def test_scaffold_compressed_equals_its_oracle() -> None:
    compress = FIXED[SPELLING]
    oracle = methods.control_variates(
        SETTING.oracle(), uplink=links.ErrorFeedback(compress), compress_difference=compress
    )
    algorithm = laconic.scaffold(uplink=laconic.Compressed(SPELLING, memory=True))
    assert difference(algorithm, oracle) < 1e-8


@pytest.mark.parametrize("server_keeps", ["mean", "all"])
@pytest.mark.parametrize("batch", [None, 6])
def test_fed_amd_equals_both_forms_of_its_oracle(server_keeps: str, batch: int | None) -> None:
    first = large(batch, "first large batch")[0]
    oracle = methods.anchor_sampling(SETTING.oracle(), anchors(0.4), first, large(batch), server_keeps)
    algorithm = laconic.fed_amd(local_lr=0.05, probability=0.4, anchor_batch="full" if batch is None else batch)
    assert difference(algorithm, oracle) < 1e-9


def test_large_batches_follow_the_order_of_the_data() -> None:
    setting = Setting(rounds=4, participants=N, local_steps=1)
    problem = setting.oracle()
    first = {client: np.arange(size)[:6] for client, size in enumerate(SIZES)}
    oracle = methods.bvr_l_sgd(problem, [first] * 4)
    # With one step the recursion uses the mean of the large batches alone.
    assert difference(laconic.bvr_l_sgd(anchor_batch=6, batch_order="fixed"), oracle, setting) < 1e-9
    assert difference(laconic.fed_page(anchor_batch=6, batch_order="fixed", probability=1.0), oracle, setting) < 1e-9
    assert difference(laconic.bvr_l_sgd(anchor_batch=6), oracle, setting) > 1e-4


def test_fed_amd_sequential_equals_its_oracle() -> None:
    everybody = [set(range(N)) if t % 3 == 0 else set() for t in range(SETTING.rounds)]
    oracle = methods.anchor_sampling(SETTING.oracle(), everybody, FULL, large())
    assert difference(laconic.fed_amd(local_lr=0.05, period=3), oracle) < 1e-9


def test_fed_amd_compressed_equals_its_oracle() -> None:
    compress = FIXED[SPELLING]
    sent = {"uplink": links.ErrorFeedback(compress), "compress_difference": compress}
    oracle = methods.anchor_sampling(SETTING.oracle(), anchors(0.4), FULL, large(), **sent)
    algorithm = laconic.fed_amd(local_lr=0.05, probability=0.4, uplink=laconic.Compressed(SPELLING, memory=True))
    assert difference(algorithm, oracle) < 1e-8
    assert difference(algorithm.replace(first_pass="compressed"), oracle) > 1e-4


@pytest.mark.parametrize("n", [1, 3, 20, 40, 100])
@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_optimal_probabilities(n: int, mu: float) -> None:
    assert AnchorSampling(probability_divisor=2.0).chance(n) == pytest.approx(methods.optimal_probability(n, 2.0))
    pl = AnchorSampling(probability="optimal_pl", pl_constant=mu)
    assert pl.chance(n) == pytest.approx(methods.optimal_probability_pl(n, mu), rel=1e-6)


def test_the_optimal_probability_at_the_smallest_constants() -> None:
    """As mu goes to 0 it becomes (1 / (n + 1))^(1/n)."""
    for n, mu in ((20, 1e-8), (20, 1e-5), (3, 1e-100)):
        chance = AnchorSampling(probability="optimal_pl", pl_constant=mu).chance(n)
        assert chance == pytest.approx((1 / (n + 1)) ** (1 / n), rel=1e-9)


def test_bvr_l_sgd_equals_its_oracle() -> None:
    assert difference(laconic.bvr_l_sgd(), methods.bvr_l_sgd(SETTING.oracle(), large())) < 1e-9
    assert difference(laconic.bvr_l_sgd(anchor_batch=6), methods.bvr_l_sgd(SETTING.oracle(), large(6))) < 1e-9


def test_fed_page_equals_its_oracle() -> None:
    for batch in (None, 6):
        oracle = methods.fed_page(SETTING.oracle(), coins(0.4), large(batch))
        algorithm = laconic.fed_page(probability=0.4, anchor_batch="full" if batch is None else batch)
        assert difference(algorithm, oracle) < 1e-9


def test_minibatch_sgd_equals_its_oracle_and_fed_avg_with_one_step() -> None:
    assert difference(laconic.minibatch_sgd(), methods.minibatch_sgd(SETTING.oracle(), 0.05)) < 1e-9
    one = Setting(participants=N, local_steps=1)
    assert difference(laconic.fed_avg(), methods.minibatch_sgd(one.oracle(), 0.05), one) < 1e-9


def test_ef21_equals_its_oracle() -> None:
    oracle = methods.ef21(SETTING.oracle(), FIXED[SPELLING], FULL, 0.05)
    assert difference(laconic.ef21(compressor=SPELLING), oracle) < 1e-9


def test_diana_equals_its_oracle() -> None:
    oracle = methods.diana(SETTING.oracle(), quantize("GRADIENT"), FULL, 0.05, 0.3)
    assert difference(laconic.diana(compressor="uniform:4@layer", alpha=0.3), oracle) < 1e-9


def test_marina_equals_its_oracle() -> None:
    oracle = methods.marina(SETTING.oracle(), quantize("GRADIENT"), coins(0.3), FULL, 0.05)
    assert difference(laconic.marina(compressor="uniform:4@layer", probability=0.3), oracle) < 1e-9


def in_silence(algorithm: laconic.Algorithm, setting: Setting, silent: set[int]) -> tuple[list, list]:
    """The models and the gradient estimates after every round, if nobody answers in some of them."""
    simulation = setting.simulation(algorithm)
    server = simulation.server
    simulation.engine.is_available = lambda client: server.round not in silent
    found = ([], [])
    for _ in simulation.rounds():
        found[0].append(server.model.numpy().copy())
        found[1].append(server.method_state["gradient"].numpy().copy())
    simulation.close()
    return found


@pytest.mark.parametrize("silent", [{0}, {0, 1}, {4}, {4, 5, 9}])
@pytest.mark.parametrize("name", ["fed_page", "marina"])
def test_nothing_of_the_gradient_is_lost_in_rounds_without_answers(name: str, silent: set[int]) -> None:
    """With everybody and all data g is the full gradient at the model of every round that somebody answered in."""
    setting = Setting(participants=N, rounds=14)
    problem = setting.oracle()
    problem.participants[:] = [[] if t in silent else chosen for t, chosen in enumerate(problem.participants)]
    never = [False] * setting.rounds
    if name == "fed_page":
        oracle, algorithm = methods.fed_page(problem, never, [FULL] * setting.rounds), laconic.fed_page(probability=0.0)
    else:
        oracle = methods.marina(problem, compressors.fixed(compressors.dense), never, FULL, 0.05)
        algorithm = laconic.marina(uplink=laconic.DenseUplink(), probability=0.0)
    models, gradients = in_silence(algorithm, setting, silent)
    assert apart(models, oracle.models) < 1e-12
    assert apart(gradients, oracle.server_state) < 1e-12
    starts = [problem.initial, *models[:-1]]
    for t in set(range(setting.rounds)) - silent:
        full = np.mean([problem.gradient(client, starts[t], FULL[client]) for client in range(N)], axis=0)
        assert np.abs(gradients[t] - full).max() < 1e-12


@pytest.mark.parametrize("name", ["fed_gate", "fed_comgate", "scaffold"])
@pytest.mark.parametrize("uplink", [None, laconic.Compressed(SPELLING, memory=True)])
def test_a_rate_that_has_become_nothing_moves_no_state(name: str, uplink: laconic.Uplink | None) -> None:
    """The local rate of cosine:6 is 0 from round 6 on; with error feedback, what memories hold still arrives."""
    algorithm = make(name, local_schedule="cosine:6", **({} if uplink is None else {"uplink": uplink}))
    simulation = Setting(rounds=12, participants=N).simulation(algorithm)
    models, states = [], []
    for _ in simulation.rounds():
        models.append(simulation.server.model.numpy().copy())
        kept = ("method/tracker", "method/control")
        states.append({client: next(s[k] for k in kept if k in s) for client, s in simulation.store.states()})
        if name == "scaffold":
            mean = sum(states[-1].values()) / N
            assert float((simulation.server.method_state["control"] - mean).abs().max()) < 1e-12
    simulation.close()
    assert float(states[5][0].abs().max()) > 1e-3
    assert all(bool((states[5][client] == states[-1][client]).all()) for client in range(N))
    assert (np.abs(models[-1] - models[5]).max() > 0) == (uplink is not None)
    assert np.isfinite(models[-1]).all()


# Identities


def models(name: str, setting: Setting = SETTING, **parameters: object) -> list[np.ndarray]:
    return setting.models(make(name, **parameters))


def apart(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    return max(np.abs(a - b).max() for a, b in zip(first, second, strict=True))


def test_fed_comgate_with_a_dense_compressor_is_fed_gate_bit_for_bit() -> None:
    assert apart(models("fed_comgate", compressor="dense"), models("fed_gate")) == 0


def test_fed_gate_with_one_participant_is_fed_avg() -> None:
    one = Setting(participants=1)
    assert apart(models("fed_gate", one), models("fed_avg", one)) < 1e-12
    assert apart(models("fed_gate"), models("fed_avg")) > 1e-4


def test_fed_prox_without_a_pull_is_fed_avg_and_with_one_stays_nearer() -> None:
    assert apart(models("fed_prox", proximal=0.0), models("fed_avg")) == 0
    for setting in (SETTING, Setting(local_steps=None, local_epochs=2)):
        near = laconic.fed_prox(proximal=5.0)
        ours = setting.models(near)
        theirs = _proximal(setting.oracle(), 5.0)
        assert apart(ours, theirs) < 1e-9


def _proximal(problem: Problem, mu: float) -> list[np.ndarray]:
    """FedProx, Algorithm 2, with SGD as the local solver."""
    w, found = problem.initial.copy(), []
    for t in range(len(problem.participants)):
        updates = []
        for client in problem.participants[t]:
            W = w.copy()
            for batch in problem.batches[t][client]:
                W = W - problem.local_rate * (problem.gradient(client, W, batch) + mu * (W - w))
            updates.append(W - w)
        w = w + np.mean(updates, axis=0)
        found.append(w.copy())
    return found


def test_fed_amd_with_everybody_and_one_step_is_minibatch_sgd_every_other_round() -> None:
    """n = N, p = 1, 0, 1, 0, … and K = 1: w moves in odd rounds, by the full gradient at the round before, which is w."""
    setting = Setting(participants=N, local_steps=1, rounds=10)
    ours = models("fed_amd", setting, period=2, local_lr=0.05)
    w = setting.oracle().initial.copy()
    for t in range(10):
        if t % 2:
            w = w - 0.05 * np.mean([setting.oracle().gradient(c, w, FULL[c]) for c in range(N)], axis=0)
        assert np.abs(ours[t] - w).max() < 1e-9


def test_fed_amd_with_everybody_alternating_is_bvr_l_sgd() -> None:
    """With K > 1 too, but for the batches, which are named after the round: so one client and full batches."""
    setting = Setting(participants=N, rounds=8, local_steps=3)
    algorithm = laconic.fed_amd(local_lr=0.05, period=2, batch_order="fixed", batch_size=max(SIZES))
    reference = laconic.bvr_l_sgd(batch_order="fixed", batch_size=max(SIZES))
    with_anchors = _full_batches(setting, algorithm)
    at_once = _full_batches(setting, reference)
    for t in range(4):
        assert np.abs(with_anchors[2 * t + 1] - at_once[t]).max() < 1e-9


def _full_batches(setting: Setting, algorithm: laconic.Algorithm) -> list[np.ndarray]:
    simulation = setting.simulation(algorithm)
    object.__setattr__(simulation.algorithm.method, "batch_size", max(SIZES))
    try:
        return [simulation.server.model.numpy().copy() for _ in simulation.rounds()]
    finally:
        simulation.close()


def test_schedules_and_clipping_equal_loops_written_by_hand() -> None:
    problem = SETTING.oracle()
    w, expected = problem.initial.copy(), []
    for t in range(SETTING.rounds):
        rate = 0.05 * 0.5 ** (t // 4)
        updates = []
        for client in problem.participants[t]:
            W = w.copy()
            for batch in problem.batches[t][client]:
                g = problem.gradient(client, W, batch)
                W = W - rate * g * min(1.0, 0.3 / np.linalg.norm(g))
            updates.append(W - w)
        w = w + np.mean(updates, axis=0) / np.sqrt(t + 1)
        expected.append(w.copy())
    given = {"local_schedule": "step:4:0.5", "clip_norm": 0.3, "server_schedule": "inverse_sqrt"}
    assert apart(models("fed_avg", **given), expected) < 1e-9


def test_settings_in_which_the_mathematics_do_not_hold_are_refused() -> None:
    for name in ("fed_gate", "fed_comgate", "scaffold", "fed_amd", "ef21", "diana"):
        with pytest.raises(laconic.ConfigError, match="same weight"):
            Setting(weighting="size").simulation(make(name))
    for name in ("fed_gate", "scaffold"):
        with pytest.raises(laconic.ConfigError, match="local_epochs = 1"):
            Setting(local_steps=None, local_epochs=1).simulation(make(name))
