"""Options of Flower's programs that a safe deployment refuses."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence


def refuse_options(parser: argparse.ArgumentParser, words: Sequence[str], forbidden: Mapping[str, str]) -> None:
    """End the program with an error if one of `words` is a forbidden option.

    Args:
        parser: Prints the error.
        words: The arguments for Flower's program.
        forbidden: The reason for each forbidden option.
    """
    for option, reason in forbidden.items():
        if any(_may_mean(word.partition("=")[0], option) for word in words):
            parser.error(f"{option} is not allowed: {reason}")


def _may_mean(word: str, option: str) -> bool:
    """Whether Flower's parser may read a word as this option: it accepts abbreviations."""
    return len(word) > len("--") and option.startswith(word)
