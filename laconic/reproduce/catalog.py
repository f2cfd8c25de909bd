"""All reproductions by name."""

from __future__ import annotations

from dataclasses import replace

from laconic import unknown_name
from laconic.reproduce import appendices, fed_ef, fedamd, fedbnlaca, fedcams, fedcomgate, frontier, ours
from laconic.reproduce.study import Reproduction

REPRODUCTIONS: dict[str, Reproduction] = {
    "fedamd-table2": fedamd.TABLE_2,
    "fedamd-figure1": fedamd.FIGURE_1,
    "fedamd-figures2-4": fedamd.FIGURES_2_4,
    "fedamd-figures5-7": fedamd.FIGURES_5_7,
    "fedamd-emnist": fedamd.EMNIST,
    "fedamd-figures5-10": appendices.FEDAMD_FIGURES_5_10,
    "fed-ef-figure1": fed_ef.FIGURE_1,
    "fed-ef-figures2-3": fed_ef.FIGURES_2_3,
    "fed-ef-losses": appendices.FED_EF_LOSSES,
    "fed-ef-figure4": fed_ef.FIGURE_4,
    "fed-ef-figure5": fed_ef.FIGURE_5,
    "fed-ef-tables3-6": fed_ef.TABLES_3_6,
    "fed-ef-figures6-7": fed_ef.FIGURES_6_7,
    "fed-ef-figure20": fed_ef.FIGURE_20,
    "fed-ef-figure21": fed_ef.FIGURE_21,
    "fedcams-figures1-3": fedcams.FIGURES_1_3,
    "fedcams-figure4": fedcams.FIGURE_4,
    "fedcams-tables1-2": fedcams.TABLES_1_2,
    "fedcams-two-way": fedcams.TWO_WAY,
    "fedcams-epsilon": fedcams.EPSILON,
    "fedcams-figures5-8": appendices.FEDCAMS_FIGURES_5_8,
    "fedcomgate-figure6": fedcomgate.FIGURE_6,
    "fedcomgate-figure7": fedcomgate.FIGURE_7,
    "fedcomgate-figure8": fedcomgate.FIGURE_8,
    "fedcomgate-figure9": fedcomgate.FIGURE_9,
    "gradient-tracking": fedcomgate.TRACKING,
    "fedbnlaca-figures1-4": fedbnlaca.FIGURES_1_4,
    "fedbnlaca-threshold": fedbnlaca.THRESHOLDS,
    "fedbnlaca-figures5-20": appendices.FEDBNLACA_FIGURES_5_20,
    "fedbnlaca-figure21": appendices.FEDBNLACA_FIGURE_21,
    "bytes-to-accuracy": ours.BYTES_TO_ACCURACY,
    "fedamd-settings": ours.FED_AMD_AT_ITS_BEST,
    "fedamd-links": ours.FED_AMD_IN_FEW_BYTES,
    "frontier": frontier.FRONTIER,
    "language-model": ours.CHARACTER_MODEL,
}


def find(name: str) -> Reproduction:
    """Return a reproduction by its name, or with a single study by the study's name."""
    if name in REPRODUCTIONS:
        return REPRODUCTIONS[name]
    for reproduction in REPRODUCTIONS.values():
        if name in reproduction.studies:
            return replace(reproduction, studies={name: reproduction.studies[name]})
    raise unknown_name("reproduction", name, [*REPRODUCTIONS, "all"])
