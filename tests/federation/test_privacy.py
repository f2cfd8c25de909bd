"""What the accountant assumes: one client changes a round's sum by at most the clip, and nobody is told who takes part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import laconic
from laconic.compression import DensePayload, SumPayload
from laconic.core.errors import ConfigError
from laconic.core.part import BOUNDED, SLOTS, STATEFUL, UNSTATED, stated_sensitivity
from laconic.federation.defenses import NoisyMean
from laconic.federation.update_norms import NormLimits
from tests.federation.rounds import begin
from tests.federation.scripted import ACCEPTED, CANARY, CLIENTS, CLIP, Scripted, noisy_sums, private, pulled, steady

OTHERS = [client for client in range(CLIENTS) if client != CANARY]
DOWNLINKS = {
    "broadcast": {"downlink": laconic.Broadcast("sign")},
    "mirrored": {"downlink": laconic.Mirrored("top_k:1/8", threshold=0.01)},
}


def change(parts: dict, script, samples: list[list[int]]) -> float:
    """How far the canary moves the sum of the last round, as a multiple of the clip, given the same rounds before."""
    sums = []
    for last in ([*OTHERS], [CANARY, *OTHERS]):
        simulation = private(parts, script, participants=CLIENTS - 1)
        drawn = iter([*samples, last])
        simulation.server.draw_participants = lambda drawn=drawn: next(drawn)
        sums.append(noisy_sums(simulation, len(samples) + 1)[-1])
        simulation.close()
    # The noise follows from the seed and the round, so it cancels.
    return float(torch.linalg.vector_norm(sums[1] - sums[0])) / CLIP


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("script", [steady, pulled])
def test_one_client_moves_a_sum_by_at_most_the_clip(name: str, script) -> None:
    """With the drawn number of participants in the threshold, ten others changed with the canary: several times the clip."""
    for samples in ([OTHERS], [[CANARY, *OTHERS], OTHERS[::2]]):
        assert change(ACCEPTED[name], script, samples) <= 1 + 1e-4


def test_every_uplink_that_states_its_sensitivity_is_audited() -> None:
    ours = {uplink for uplink in SLOTS["uplink"].values() if uplink.__module__.startswith("laconic.")}
    audited = {type(parts.get("uplink", laconic.DenseUplink())) for parts in ACCEPTED.values()}
    assert {uplink for uplink in ours if uplink.sensitivity is not None} == audited


@pytest.mark.parametrize("name", DOWNLINKS)
def test_what_clients_receive_does_not_depend_on_who_takes_part(name: str) -> None:
    assert change(DOWNLINKS[name], pulled, [OTHERS, [CANARY, *OTHERS[::3]]]) <= 1 + 1e-4


@pytest.mark.parametrize("drawn", [[], [0], OTHERS])
def test_nobody_is_told_how_many_take_part(drawn: list[int]) -> None:
    simulation = private({}, participants=4)
    simulation.server.draw_participants = lambda: drawn
    _, instructions = begin(simulation.server)
    assert [instruction.invited for instruction in instructions] == [4] * len(drawn)
    simulation.close()


def test_without_noise_the_threshold_is_the_papers() -> None:
    simulation = private({}, defense={"clip": CLIP}, participants=4)
    simulation.server.draw_participants = lambda: OTHERS
    _, instructions = begin(simulation.server)
    assert {instruction.invited for instruction in instructions} == {len(OTHERS)}
    simulation.close()


def test_a_sum_of_two_huge_vectors_does_not_round_the_others_away() -> None:
    """An accelerated update r + y with y close to -r is short, but r alone would absorb the running sum."""
    defended = NoisyMean(3, torch.float32, torch.device("cpu"), np.random.default_rng(0), deviation=0.0, expected=1)
    defended.add(DensePayload(torch.full((3,), 0.25)), 1.0)
    huge = torch.full((3,), 1e30)
    defended.add(SumPayload(DensePayload(huge), DensePayload(-huge)), 1.0)
    assert torch.equal(defended.mean(), torch.full((3,), 0.25))
    most = torch.full((3,), torch.finfo(torch.float32).max)
    too_large = SumPayload(DensePayload(most), DensePayload(most))
    factor = NormLimits({}, {"train/model": 1.0}).factor({"train/model": too_large.norm()}, client=0)
    defended.add(too_large, 1.0, factor)
    assert float(torch.linalg.vector_norm(defended.mean() - 0.25)) <= 1.0


PARTS = [(slot, name) for slot, kinds in SLOTS.items() for name, kind in kinds.items() if "laconic." in kind.__module__]


@pytest.mark.parametrize(("slot", "name"), PARTS)
def test_every_part_says_whether_it_keeps_the_bound(slot: str, name: str) -> None:
    kind = SLOTS[slot][name]
    needed = {"compressor": "top_k:1/8", "function": lambda module, dataset: None}
    part = kind(**{key: value for key, value in needed.items() if key in kind.__dataclass_fields__})
    assert stated_sensitivity(part) != UNSTATED
    if slot in ("uplink", "downlink", "optimizer"):
        assert stated_sensitivity(part) in (BOUNDED, STATEFUL)


class Own(laconic.DenseUplink):
    """An uplink of a user's, which may do anything in `encode`."""


@laconic.part("uplink", "own_for_privacy")
class Registered(laconic.DenseUplink):
    """The same, registered."""


@laconic.part("uplink", "own_and_stated")
class Stated(laconic.DenseUplink):
    """An uplink whose author has thought about it."""

    sensitivity = "bounded"


@laconic.part("optimizer", "own_optimizer")
class OwnOptimizer(laconic.SGD):
    """An optimizer sees only the noisy mean."""


@laconic.method("own_silent")
class Silent(Scripted):
    """A method that says nothing."""


@pytest.mark.parametrize("parts", [{"uplink": Own()}, {"uplink": Registered()}, {"method": Silent()}])
def test_a_part_that_does_not_say_is_refused(parts: dict) -> None:
    with pytest.raises(ConfigError, match=r'does not say.*: write sensitivity = "bounded" in it if') as caught:
        refused(parts)
    assert "\n" not in str(caught.value)


def refused(parts: dict, **settings) -> None:
    data = laconic.data.load("digits", clients=CLIENTS, partition="iid")
    algorithm = laconic.Algorithm(**{"method": Scripted()} | parts)
    defense = {"clip": CLIP, "noise": 1.0}
    laconic.simulate(algorithm, "logistic", data, **{"rounds": 1, "sampling": "poisson", "defense": defense} | settings)


def test_a_part_that_says_so_is_accepted() -> None:
    refused({"uplink": Stated(), "optimizer": OwnOptimizer()})


@pytest.mark.parametrize(
    ("parts", "settings", "words"),
    [
        ({"method": laconic.ControlVariates()}, {}, "stream 'control'"),
        ({"method": laconic.MARINA(), "uplink": laconic.Compressed("qsgd:4")}, {}, "stream 'gradient'"),
        (ACCEPTED["error feedback, sign"], {"sampling": "uniform", "participants": 3}, "uplink 'compressed'.*poisson"),
        (ACCEPTED["lazy"], {"sampling": "uniform", "participants": 3}, "remember when they took part.*poisson"),
        (DOWNLINKS["mirrored"], {"sampling": "uniform", "participants": 3}, "downlink 'mirrored'"),
        (
            {"method": laconic.LocalSGD(local_epochs=2), "optimizer": laconic.SGD(noise_limit=0.1)},
            {},
            "noise_limit is not possible with method.local_epochs.*numbers of examples.*use local_steps",
        ),
    ],
)
def test_combinations_without_the_bound_are_refused(parts: dict, settings: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        refused(parts, **settings)


@pytest.mark.parametrize("name", ["dense", "compressed without memory"])
def test_a_fixed_number_of_participants_goes_with_parts_without_state(name: str) -> None:
    refused(ACCEPTED[name], sampling="uniform", participants=3)


def test_a_limit_on_noise_goes_with_privacy_for_a_number_of_steps() -> None:
    refused({"method": laconic.LocalSGD(local_steps=2), "optimizer": laconic.SGD(noise_limit=0.1)})


def test_a_run_may_not_stop_for_what_clients_report() -> None:
    for metric in ("training_loss", "clients_accuracy"):
        with pytest.raises(ConfigError, match="with dp_noise the result must not depend on what clients report"):
            refused({}, callbacks=[laconic.EarlyStopping(metric)])
    refused({}, callbacks=[laconic.EarlyStopping("accuracy")])
