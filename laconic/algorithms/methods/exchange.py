"""A round is one exchange with clients, or several: a question to each of them, and the answers that come back in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TRAIN = "train"
"""The work of a round with nothing special about it."""


@dataclass(frozen=True)
class Exchange:
    """One question of a round."""

    phase: str = TRAIN
    """What clients are to do; a method may give each of them something more special (`Method.assign`)."""
    who: Literal["participants", "everyone", "answered"] = "participants"
    """The participants of the round, all N clients, or those participants whose answer to the exchange before was folded."""
    model: bool = True
    """Whether the model goes out with it. Clients that have it from the exchange before keep it till here."""
    counted: bool = True
    """Whether the papers count it in their formulas; the measured bytes always do."""
