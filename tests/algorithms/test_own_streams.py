"""A method with a shared state and a stream of its own, written here: nothing outside this file knows their names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import laconic
from laconic.algorithms.methods.exchange import PhaseTable
from laconic.core.errors import ConfigError, PacketError
from laconic.gradients.numerics import Numerics

FAULTS = {"drop": 0.1, "late": 0.1, "duplicate": 0.1, "crash": 0.2, "lose_state": 0.1}
CLIENTS = 3


@laconic.method("drift_and_scale")
class DriftAndScale(laconic.LocalMethod):
    """SCAFFOLD under other names, whose clients also send |u| entry by entry; the mean of it comes with the next model."""

    drift = laconic.SharedState(down=True)

    def local(self, cohort: laconic.Cohort) -> laconic.Answer:
        rate, mean = self.rate(cohort.round), cohort.received.drift
        models, own = cohort.models.clone(), cohort.state.drift
        assert cohort.received.scale.shape == models.shape
        for step in self.steps(cohort):
            models.sub_(self.gradients(cohort, models, step).add_(mean - own), alpha=rate)
        updates = models.sub_(cohort.models)
        return laconic.Answer(updates, drift=-mean - updates / (self.step_count(1) * rate), scale=updates.abs())

    def phases(self, uplink: laconic.Uplink) -> tuple[laconic.Phase, ...]:
        up = (laconic.UPDATE, self.drift.difference(uplink), laconic.Stream("scale"))
        down = (self.drift.mean(), laconic.Stream("scale"))
        return (laconic.Phase("train", self.local, self.nominal_gradients, up, down),)

    def init(self, model: Tensor) -> dict[str, Tensor]:
        return super().init(model) | {"scale": torch.ones_like(model)}

    def gather(self, exchange, state, received, context):  # type: ignore[no-untyped-def]
        scale = received.mean("scale")
        state = state if scale is None else state | {"scale": scale}
        return super().gather(exchange, state, received, context)


def own(**parameters: object) -> laconic.Algorithm:
    uplink = laconic.Compressed("top_k:1/8", memory=True, granularity="layer")
    return laconic.Algorithm(DriftAndScale(local_steps=2, **parameters), uplink, laconic.SGD())


def data() -> laconic.data.ClientData:
    return laconic.data.load("digits", clients=CLIENTS, seed=5)


def simulated(algorithm: laconic.Algorithm, **settings: object) -> laconic.Result:
    numerics = Numerics(strategy="loop")
    return laconic.simulate(algorithm, "logistic", data(), numerics=numerics, seed=5, eval_every=1, **settings)


def test_it_is_scaffold_and_every_stream_is_counted() -> None:
    result, scaffold = (
        simulated(own(), rounds=4),
        simulated(own().replace(method=laconic.ControlVariates(local_steps=2)), rounds=4),
    )
    assert result.model_sha256 == scaffold.model_sha256
    assert {"up/drift", "up/scale", "down/drift", "down/scale", "up/model"} <= set(result.ledger.streams)
    assert result.ledger.streams["up/drift"].bytes == scaffold.ledger.streams["up/control"].bytes


@pytest.mark.parametrize("faults", [{}, FAULTS])
def test_states_on_disk_give_the_same_model(tmp_path: Path, faults: dict) -> None:
    results = [
        simulated(own(), rounds=12, participants=2, faults=faults, store=store, out=str(tmp_path / store))
        for store in ("memory", "disk")
    ]
    assert results[0].model_sha256 == results[1].model_sha256
    assert results[0].ledger.state_dict() == results[1].ledger.state_dict()
    assert results[0].history[-1]["accuracy"] > 0.5


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_the_server_has_the_mean_of_the_clients_states_whatever_is_lost(weighting: str) -> None:
    """Also if updates are weighted by size, as they are in fed_avg: c is the plain mean."""
    faults = {"drop": 0.3, "late": 0.2, "duplicate": 0.2}
    checked = laconic.Settings(rounds=15, participants=2, faults=faults, seed=5, weighting=weighting)
    task = laconic.classification(laconic.models.build("logistic", (1, 8, 8), 10))
    unequal = laconic.data.load("digits", clients=CLIENTS, seed=5, partition="dirichlet:0.3")
    simulation = laconic.Simulation(own(), task, unequal, checked)
    for _ in simulation.rounds():
        pass
    states = dict(simulation.store.states())
    assert len(states) == CLIENTS
    total = sum(state["method/drift"] for state in states.values())
    simulation.close()
    assert total.abs().max() > 0.01
    torch.testing.assert_close(CLIENTS * simulation.server.method_state["drift"], total, rtol=0, atol=1e-6)


def test_a_federation_on_flower_gives_the_model_of_a_simulation(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from tests.flower.small_federation import federation, run

    federated = run(federation(tmp_path), tmp_path, own(), rounds=4, eval_every=1)
    expected = simulated(own(), rounds=4)
    assert federated.model_sha256 == expected.model_sha256
    assert federated.ledger.state_dict() == expected.ledger.state_dict()


def test_a_stream_beside_the_update_goes_with_no_defense() -> None:
    with pytest.raises(ConfigError, match="its stream 'drift' is sent with the updates"):
        simulated(own(), rounds=1, defense={"aggregate": "median"})


@laconic.method("forgetful_answer")
class ForgetfulAnswer(laconic.LocalMethod):
    """It declares a shared state and sends none."""

    drift = laconic.SharedState()

    def local(self, cohort: laconic.Cohort) -> Tensor:
        return torch.zeros_like(cohort.models)


@laconic.method("misspelled_vector")
class MisspelledVector(ForgetfulAnswer):
    """It reads a vector that nobody has sent."""

    def local(self, cohort: laconic.Cohort) -> Tensor:
        return cohort.received.drfit


@laconic.method("undeclared_state")
class UndeclaredState(laconic.LocalMethod):
    """It reads a client state that is not a shared one."""

    def local(self, cohort: laconic.Cohort) -> Tensor:
        return cohort.state.own


def test_an_answer_must_have_the_declared_streams() -> None:
    with pytest.raises(
        ConfigError, match=r"phase 'train': the answer has streams \['model'\], .* \['model', 'drift'\]"
    ):
        simulated(laconic.Algorithm(ForgetfulAnswer()), rounds=1)


def test_a_misspelled_vector_is_named() -> None:
    with pytest.raises(AttributeError, match="no vector 'drfit'"):
        simulated(laconic.Algorithm(MisspelledVector()), rounds=1)
    advice = r"no vector 'own': available are none; other .* are cohort.stacked\('own'\)"
    with pytest.raises(AttributeError, match=advice):
        simulated(laconic.Algorithm(UndeclaredState()), rounds=1)


@pytest.mark.parametrize("name", ["buffers", "refused", "Upper", "two words"])
def test_names_of_streams_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=f"stream = '{name}'"):
        PhaseTable([laconic.Phase("train", lambda cohort: cohort.models, up=(laconic.Stream(name),))])


def test_numbers_follow_the_declaration_and_end() -> None:
    def table(count: int) -> PhaseTable:
        streams = tuple(laconic.Stream(f"stream{i}") for i in range(count))
        return PhaseTable([laconic.Phase("train", lambda cohort: cohort.models, up=(laconic.UPDATE, *streams))])

    assert [table(11).number(name) for name in ("model", "stream0", "stream10")] == [0, 5, 15]
    assert table(11).stream(15) == "stream10"
    with pytest.raises(PacketError, match="6 is unknown"):
        table(1).stream(6)
    with pytest.raises(PacketError, match="'rest' is unknown; known: train"):
        table(1)["rest"]
    with pytest.raises(ConfigError, match="12 streams: at most 11"):
        table(12)


def test_a_stream_takes_the_spelling_of_its_compressor() -> None:
    spelled = laconic.Stream("control", "qsgd:8@layer")
    assert str(spelled.compressor) == "qsgd:8@layer"
    assert str(laconic.Stream("control", laconic.QSGD(bits=8)).compressor) == "qsgd:8@model"
