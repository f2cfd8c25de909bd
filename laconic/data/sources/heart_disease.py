"""Heart disease at four hospitals: 920 patients, 13 findings each.

Janosi, Steinbrunn, Pfisterer and Detrano, "Heart Disease", UCI Machine Learning Repository, 1988.

FLamby's Fed-Heart-Disease (Ogier du Terrail et al., 2022) divides the same files by hospital, and predicts
the same target: whether there is any narrowing (num > 0). Four categorical findings become one column per
category, and all columns are standardized. Mean and deviation come from the known training values of all
hospitals, which hospitals can compute by exchanging sums. A missing finding is replaced by the mean, which is 0
after standardization. Zeros that mean unmeasured cholesterol are not changed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from laconic.core.errors import DataError
from laconic.data.federated import Examples
from laconic.data.files import Checksum, DataFile, Finder
from laconic.data.sources.pool import DatasetInfo, Pool, Source, group_by

HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
SUMS = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
HOSPITALS = tuple(
    DataFile("heart-disease", name, (HOME + name,), Checksum("sha256", value), 18_461)  # the largest has this size
    for name, value in ((f"processed.{hospital}.data", value) for hospital, value in SUMS.items())
)
CATEGORIES: tuple[tuple[int, ...], ...] = (
    (),  # age
    (),  # sex
    (1, 2, 3, 4),  # cp, chest pain
    (),  # trestbps, resting blood pressure
    (),  # chol
    (),  # fbs, fasting blood sugar
    (0, 1, 2),  # restecg
    (),  # thalach, highest heart rate
    (),  # exang, angina under exercise
    (),  # oldpeak, ST depression
    (1, 2, 3),  # slope
    (),  # ca, vessels colored
    (3, 6, 7),  # thal
)
"""The categories of each column; none means a number."""
TEST_EVERY = 5

Table = npt.NDArray[np.float64]


def read(finder: Finder) -> Pool:
    """Read the four hospitals. The test set is every fifth row of each hospital and outcome (stratified)."""
    tables = [_table(finder, hospital) for hospital in HOSPITALS]
    owners = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    rows = np.concatenate(tables)
    targets = (rows[:, -1] > 0).astype(np.uint8)
    held_out = np.zeros(len(rows), dtype=bool)
    for owner in range(len(tables)):
        for target in (0, 1):
            held_out[np.flatnonzero((owners == owner) & (targets == target))[TEST_EVERY - 1 :: TEST_EVERY]] = True
    features = _expand(rows[:, :-1])
    known = features[~held_out]
    features = np.nan_to_num((features - np.nanmean(known, axis=0)) / np.nanstd(known, axis=0), nan=0.0)
    train, test = (
        Examples(torch.from_numpy(features[part].astype(np.float32)), torch.from_numpy(targets[part]))
        for part in (~held_out, held_out)
    )
    return Pool(train, test, "classification", classes=2, groups=group_by(owners[~held_out]), names=[*SUMS])


def _table(finder: Finder, file: DataFile) -> Table:
    lines = finder.read(file).decode("ascii").split()
    table = np.array([[float("nan" if cell == "?" else cell) for cell in line.split(",")] for line in lines])
    if table.ndim != 2 or table.shape[1] != len(CATEGORIES) + 1:
        raise DataError(f"{file.name} does not have {len(CATEGORIES) + 1} columns")
    return table


def _expand(findings: Table) -> Table:
    """One-hot encode the categorical findings. A missing finding is missing in all its columns."""
    columns = []
    for values, categories in zip(findings.T, CATEGORIES, strict=True):
        if not categories:
            columns.append(values)
        for category in categories:
            columns.append(np.where(np.isnan(values), np.nan, values == category))
    return np.stack(columns, axis=1)


HEART_DISEASE = Source(
    DatasetInfo(
        name="heart-disease",
        description="heart disease from 13 findings (22 columns), one client per hospital",
        train_size=740,
        test_size=180,
        shape=(22,),
        classes=2,
        natural_clients=4,
        license="CC BY 4.0",
        citation="Janosi, Steinbrunn, Pfisterer and Detrano, Heart Disease, UCI, 1988",
        address="https://archive.ics.uci.edu/dataset/45",
    ),
    read,
    HOSPITALS,
)
