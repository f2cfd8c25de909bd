"""The registry of parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import laconic
from laconic.core.part import SLOTS, part


@pytest.mark.parametrize("turn", [1, 2])
def test_a_part_that_a_test_registers_is_not_there_in_the_next(turn: int) -> None:
    assert "of_one_test" not in SLOTS["optimizer"]

    @part("optimizer", "of_one_test")
    class OfOneTest(laconic.SGD):
        pass

    assert SLOTS["optimizer"]["of_one_test"] is OfOneTest


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: laconic.Adam(beta1=2), "optimizer.beta1 = 2: must be less than 1"),
        (lambda: laconic.Adam(bta1=0.9), "unknown parameter 'bta1' of optimizer 'adam': did you mean 'beta1'?"),
        (lambda: laconic.Compressed(), "uplink.compressor: required, and not given"),
        (lambda: laconic.TopK(7), "compressor.ratio = 7: must be less than or equal to 1"),
        (lambda: laconic.LocalSGD(local_steps="many"), "method.local_steps = 'many': must be a valid integer"),
        (lambda: laconic.EF21(local_lr=1.0), "method.local_lr: method 'ef21' has none: it takes one step per round"),
    ],
)
def test_a_part_made_in_python_is_refused_in_one_line(construct: Callable[[], object], message: str) -> None:
    with pytest.raises(laconic.ConfigError) as caught:
        construct()
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
