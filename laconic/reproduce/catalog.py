"""All reproductions by paper and by name."""

from __future__ import annotations

from dataclasses import replace

from laconic import unknown_name
from laconic.reproduce import appendices, fed_ef, fedamd, fedbnlaca, fedcams, fedcomgate, frontier, ours
from laconic.reproduce.study import Reproduction

PAPERS: dict[str, dict[str, Reproduction]] = {
    "FedAMD": {
        "fedamd-table2": fedamd.TABLE_2,
        "fedamd-figure1": fedamd.FIGURE_1,
        "fedamd-figures2-4": fedamd.FIGURES_2_4,
        "fedamd-figures5-7": fedamd.FIGURES_5_7,
        "fedamd-emnist": fedamd.EMNIST,
        "fedamd-figures5-10": appendices.FEDAMD_FIGURES_5_10,
    },
    "Fed-EF": {
        "fed-ef-figure1": fed_ef.FIGURE_1,
        "fed-ef-figures2-3": fed_ef.FIGURES_2_3,
        "fed-ef-losses": appendices.FED_EF_LOSSES,
        "fed-ef-figure4": fed_ef.FIGURE_4,
        "fed-ef-figure5": fed_ef.FIGURE_5,
        "fed-ef-tables3-6": fed_ef.TABLES_3_6,
        "fed-ef-figures6-7": fed_ef.FIGURES_6_7,
        "fed-ef-figure20": fed_ef.FIGURE_20,
        "fed-ef-figure21": fed_ef.FIGURE_21,
    },
    "FedCAMS": {
        "fedcams-figures1-3": fedcams.FIGURES_1_3,
        "fedcams-figure4": fedcams.FIGURE_4,
        "fedcams-tables1-2": fedcams.TABLES_1_2,
        "fedcams-two-way": fedcams.TWO_WAY,
        "fedcams-epsilon": fedcams.EPSILON,
        "fedcams-figures5-8": appendices.FEDCAMS_FIGURES_5_8,
    },
    "FedCOMGATE": {
        "fedcomgate-figure6": fedcomgate.FIGURE_6,
        "fedcomgate-figure7": fedcomgate.FIGURE_7,
        "fedcomgate-figure8": fedcomgate.FIGURE_8,
        "fedcomgate-figure9": fedcomgate.FIGURE_9,
        "gradient-tracking": fedcomgate.TRACKING,
    },
    "FedBNLACA": {
        "fedbnlaca-figures1-4": fedbnlaca.FIGURES_1_4,
        "fedbnlaca-threshold": fedbnlaca.THRESHOLDS,
        "fedbnlaca-variants": fedbnlaca.VARIANTS,
        "fedbnlaca-figures5-20": appendices.FEDBNLACA_FIGURES_5_20,
        "fedbnlaca-figure21": appendices.FEDBNLACA_FIGURE_21,
    },
    "Laconic": {
        "bytes-to-accuracy": ours.BYTES_TO_ACCURACY,
        "fedamd-settings": ours.FED_AMD_AT_ITS_BEST,
        "fedamd-links": ours.FED_AMD_IN_FEW_BYTES,
        "language-model": ours.CHARACTER_MODEL,
    },
}
"""The reproductions of each paper, and our own claims. Each has a page, docs/reproductions/NAME.md."""
REPRODUCTIONS: dict[str, Reproduction] = {
    **{name: each for reproductions in PAPERS.values() for name, each in reproductions.items()},
    "frontier": frontier.FRONTIER,
}


def find(name: str) -> Reproduction:
    """Return a reproduction by its name, or with a single study by the study's name."""
    if name in REPRODUCTIONS:
        return REPRODUCTIONS[name]
    for reproduction in REPRODUCTIONS.values():
        if name in reproduction.studies:
            return replace(reproduction, studies={name: reproduction.studies[name]})
    raise unknown_name("reproduction", name, [*REPRODUCTIONS, "all"], listed="`laconic reproduce --list`")
