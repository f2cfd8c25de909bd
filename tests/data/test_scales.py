"""`normalize` is checked before any work, and a saved model has it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open

import laconic
from laconic.core.errors import DataError
from laconic.data import GeneratedData, from_arrays, from_datasets

ROWS = (np.random.default_rng(0).normal(3, 2, (30, 12)).astype("float32"), np.arange(30) % 2)
PIXELS = (np.zeros((4, 3, 5, 5), np.uint8), np.arange(4) % 2)
ONES = np.ones(12)


class Read:
    """A data set that is read batch by batch."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, position: int) -> tuple[np.ndarray, int]:
        return ROWS[0][position], position % 2


@pytest.mark.parametrize(
    ("pair", "normalize", "said"),
    [
        (
            ROWS,
            (np.zeros(5), ONES),
            "needs one mean per column or a single one, not 5 means; the inputs have 12 columns",
        ),
        (ROWS, (ONES, (1.0, 2.0)), "needs one deviation per column or a single one, not 2 deviations"),
        (ROWS, (ONES, 0 * ONES), "needs deviations above 0; that of column 0 is 0; for a constant input pass 1$"),
        (ROWS, (ONES, -ONES), "needs deviations above 0; that of column 0 is -1$"),
        (ROWS, (np.nan * ONES, ONES), "needs finite numbers; the mean of column 0 is nan"),
        (ROWS, (ONES, np.inf * ONES), "needs finite numbers; the deviation of column 0 is inf"),
        (ROWS, "standard", "needs two lists of numbers, not str"),
        (
            PIXELS,
            ((0.5, 0.5), (0.5, 0.5)),
            "needs one mean per channel or a single one, not 2 means; the inputs have 3 channels",
        ),
    ],
)
def test_scales_that_do_not_fit_are_refused_in_one_line(pair, normalize, said):
    with pytest.raises(DataError, match=rf"^arrays: normalize=\(means, deviations\) {said}") as caught:
        from_arrays([pair], normalize=normalize)
    assert "\n" not in str(caught.value)


def test_scales_of_data_that_is_not_in_memory_are_checked():
    wrong = {"normalize": (np.zeros(5), np.ones(5))}
    with pytest.raises(DataError, match="not 5 means"):
        from_datasets([Read()], classes=2, **wrong)
    with pytest.raises(DataError, match="not 5 means"):
        GeneratedData(3, 30, lambda client: ROWS, kind="classification", classes=2, **wrong)


def test_a_single_mean_and_deviation_is_for_all_columns():
    data = from_arrays([ROWS], normalize=(1.0, 2.0))
    np.testing.assert_allclose(data.batch(0, np.arange(30))[0], (ROWS[0] - 1) / 2, rtol=1e-6)


def test_a_saved_model_has_the_scales(tmp_path):
    scales = ROWS[0].mean(0), ROWS[0].std(0)
    data = from_arrays([ROWS], normalize=scales)
    result = laconic.simulate("fed_avg", "logistic", data, rounds=1, out=tmp_path / "run")
    result.save(tmp_path / "saved.safetensors")
    for file in (tmp_path / "run" / "model.safetensors", tmp_path / "saved.safetensors"):
        with safe_open(file, "pt") as opened:
            stored = json.loads(opened.metadata()["laconic"])["plain"]["normalize"]
        np.testing.assert_array_equal(np.float32(stored), np.stack(scales))
        module = laconic.models.build("logistic", data.input_shape, data.classes)
        module.load_state_dict(laconic.load_model(file))
