"""Users' own files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from laconic.core.user_code import import_file


def test_a_file_that_changes_within_a_second_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "own.py"
    for value in (1, 2, 3):
        file.write_text(f"VALUE = {value}\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        found = import_file(file)
        assert value == found.VALUE
