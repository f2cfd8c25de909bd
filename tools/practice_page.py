"""Writes the table of docs/practice.md from tests/practice, which tries every line.

python tools/practice_page.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/practice.md"
BEGIN, END = "<!-- lines: begin -->", "<!-- lines: end -->"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.practice.table import table  # after the path is set

    page = PAGE.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    main()
