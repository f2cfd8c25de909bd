"""The registry of parts."""

from __future__ import annotations

import subprocess
import sys
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


def test_a_class_is_registered_once_and_not_under_a_name_of_ours() -> None:
    @part("optimizer", "first_name")
    class Own(laconic.SGD):
        pass

    with pytest.raises(
        laconic.ConfigError, match=r"^optimizer 'second_name' \(.*Own.*\): .* registered as 'first_name'"
    ):
        part("optimizer", "second_name")(Own)
    with pytest.raises(laconic.ConfigError, match=r"^method 'local_sgd' .*: Laconic uses this name"):

        @laconic.method("local_sgd")
        class Other(laconic.LocalMethod):
            pass


def test_a_name_of_ours_is_refused_even_if_our_part_is_imported_later() -> None:
    code = "import laconic\nlaconic.part('optimizer', 'yogi')(type('Own', (laconic.Optimizer,), {}))\nlaconic.fed_avg()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "optimizer 'yogi' (__main__.Own): Laconic uses this name; choose another" in done.stderr
