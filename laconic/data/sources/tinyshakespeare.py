"""Tiny Shakespeare: 40000 lines from the plays, one client per speaking role (Karpathy, char-rnn, 2015).

LEAF (Caldas et al., 2018) divides Shakespeare by role in the same way. A role's speeches are joined in text order;
the first 90 % are for training, the rest for testing. Each part is cut into windows of 80 characters. The target of
a window is the same window one character later. 45 of the 299 roles are dropped, because their training part is
shorter than one window and its target (81 characters).
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import torch

from laconic.data.federated import Examples, Indices
from laconic.data.files import Checksum, DataFile, Finder
from laconic.data.sources.pool import DatasetInfo, Pool, Source

FILE = DataFile(
    "tinyshakespeare",
    "input.txt",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    Checksum("sha256", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
    1_115_394,
)
WINDOW = 80
TEST_SHARE = 0.1

Tokens = npt.NDArray[np.uint8]


def speeches(text: str) -> dict[str, str]:
    """Return the text of each role, in the order of first appearance. A name without a speech is not a role.

    >>> speeches("All:\\nSpeak, speak.\\n\\nFirst Citizen:\\nNo.\\n\\nGhost:\\n\\nAll:\\nWe know't.")
    {'All': "Speak, speak.\\nWe know't.\\n", 'First Citizen': 'No.\\n'}
    """
    parts_of: dict[str, list[str]] = {}
    for block in re.split(r"\n\n+", text):
        opening = re.match(r"([^\n:]+):\n", block)
        if opening:
            parts_of.setdefault(opening[1], []).append(block[opening.end() :].rstrip("\n") + "\n")
    return {role: "".join(parts) for role, parts in parts_of.items()}


def windows(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Return consecutive windows and their targets. A shorter remainder is dropped."""
    count = max(0, (len(tokens) - 1) // WINDOW)
    end = count * WINDOW
    return tokens[:end].reshape(count, WINDOW), tokens[1 : end + 1].reshape(count, WINDOW)


def read(finder: Finder) -> Pool:
    """Read the text. The vocabulary is the sorted set of its characters."""
    text = finder.read(FILE).decode("utf-8")
    vocabulary = {character: number for number, character in enumerate(sorted(set(text)))}
    train: list[tuple[Tokens, Tokens]] = []
    test: list[tuple[Tokens, Tokens]] = []
    roles: list[str] = []
    for role, speech in speeches(text).items():
        tokens = np.array([vocabulary[character] for character in speech], dtype=np.uint8)
        cut = len(tokens) - int(len(tokens) * TEST_SHARE)
        train_windows = windows(tokens[:cut])
        if len(train_windows[0]):
            roles.append(role)
            train.append(train_windows)
            test.append(windows(tokens[cut:]))
    ends = np.cumsum([len(inputs) for inputs, _ in train])
    groups: list[Indices] = np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1])
    return Pool(_examples(train), _examples(test), "next_token", len(vocabulary), groups, roles)


def _examples(parts: list[tuple[Tokens, Tokens]]) -> Examples:
    inputs, targets = (np.concatenate(side) for side in zip(*parts, strict=True))
    return Examples(torch.from_numpy(inputs), torch.from_numpy(targets))


TINYSHAKESPEARE = Source(
    DatasetInfo(
        name="tinyshakespeare",
        description="next character in windows of 80, one client per speaking role",
        train_size=11_423,
        test_size=1_168,
        shape=(WINDOW,),
        classes=65,
        natural_clients=254,
        license="public domain",
        citation="Karpathy, char-rnn, 2015; division by role as in LEAF (Caldas et al., 2018)",
        address=FILE.addresses[0],
    ),
    read,
)
