"""The registry of parts."""

from __future__ import annotations

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
