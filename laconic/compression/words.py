"""Types and constants that coders share with their compiled kernels. Unlike the kernels, this module does not load Numba."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]
"""Bits in 64-bit words, the lowest first. A spare last word allows reading any number from two adjacent words."""
HalfWords: TypeAlias = NDArray[np.uint32]
"""The same in 32-bit words: two adjacent ones contain any number of up to 32 bits."""
Widths: TypeAlias = NDArray[np.uint8]

PRECISION = 24
"""Probabilities of symbols are multiples of 2^-24."""
