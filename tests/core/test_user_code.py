"""Users' own files."""

from __future__ import annotations

import os
from pathlib import Path

from laconic.core.user_code import import_file


def test_a_file_that_changes_within_a_second_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    for value in (1, 2, 3):
        file.write_text(f"VALUE = {value}\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert import_file(file).VALUE == value
