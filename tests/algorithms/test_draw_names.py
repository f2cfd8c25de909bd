"""The streams of built-in methods keep the names of their random draws, whatever the streams are called."""

from __future__ import annotations

import pytest

import laconic
from laconic.algorithms.methods.exchange import Stream
from laconic.algorithms.methods.shared_state import SharedState
from laconic.algorithms.recipes import RECIPES

ONLY_UPDATE = {"model": "MODEL"}
GRADIENT = {"gradient": "GRADIENT"}
# The draws on the right are frozen: another one changes published results. The names on the left may change.
DRAWS = {
    "anchor_sampling": {"anchor": "ANCHOR", **ONLY_UPDATE},
    "bvr_l_sgd": {**GRADIENT, **ONLY_UPDATE},
    "control_variates": {**ONLY_UPDATE, "control": "CONTROL"},
    "diana": GRADIENT,
    "ef21": GRADIENT,
    "ef21_sgdm": GRADIENT,
    "fed_dyn": ONLY_UPDATE,
    "fed_page": {**GRADIENT, "previous": "PREVIOUS", **ONLY_UPDATE},
    "gradient_tracking": ONLY_UPDATE,
    "local_sgd": ONLY_UPDATE,
    "marina": {**GRADIENT, "previous": "PREVIOUS"},
    "minibatch_sgd": ONLY_UPDATE,
    "scafcom": {"control": "CONTROL"},
    "scallion": {"control": "CONTROL"},
    "vr_diana": GRADIENT,
}


def test_the_draws_of_all_built_in_streams_are_frozen() -> None:
    draws: dict[str, dict[str, str]] = {}
    for recipe in RECIPES.values():
        algorithm = recipe()
        for phase in algorithm.method.phases(algorithm.uplink):
            for stream in (*phase.up, *phase.down):
                draws.setdefault(algorithm.method.name, {})[stream.name] = stream.draw
    assert draws == DRAWS


@pytest.mark.parametrize("recipe", RECIPES)
def test_built_in_states_name_their_draw(recipe: str) -> None:
    # The default would follow the name of the attribute.
    method = type(RECIPES[recipe]().method)
    states = [value for base in method.__mro__ for value in vars(base).values() if isinstance(value, SharedState)]
    assert all(state.draw for state in states)


def test_a_renamed_stream_can_keep_its_draw() -> None:
    class Renamed:
        other = SharedState(draw="CONTROL")
        plain = SharedState()

    uplink = laconic.Compressed("sign", memory=False)
    streams = (Renamed.other.difference(uplink), Renamed.other.exact(), Renamed.other.mean())
    assert {(stream.name, stream.draw) for stream in streams} == {("other", "CONTROL")}
    assert Renamed.plain.mean().draw == Stream("plain").draw == "PLAIN"
