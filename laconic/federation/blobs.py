"""Large contents in SQLite, written and read in pieces.

Binding a content to a statement, or selecting it, makes two or three copies of it in memory.
"""

from __future__ import annotations

import sqlite3
from typing import Any

LARGE_BYTES = 1 << 20
"""Contents from this size on are written and read in pieces."""
_PIECE = 1 << 22


def insert_content(connection: sqlite3.Connection, content: memoryview | bytes) -> int:
    """Insert a content into the table `contents`; returns its id."""
    size, large = len(content), len(content) >= LARGE_BYTES
    value, given = ("zeroblob(?)", size) if large else ("?", content)
    ((place,),) = connection.execute(
        f"INSERT INTO contents (content) VALUES ({value}) RETURNING id", (given,)
    ).fetchall()
    if large:
        with connection.blobopen("contents", "content", place) as blob:
            for start in range(0, size, _PIECE):
                blob.write(content[start : start + _PIECE])
    return int(place)


def select_contents(connection: sqlite3.Connection, condition: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Name, kind, shape, checksum and content of each entry that fulfills a condition. A missing content is None."""
    rows = connection.execute(
        f"SELECT name, kind, shape, checksum, CASE WHEN length(content) < {LARGE_BYTES} THEN content END, "
        f"place, length(content) FROM entries LEFT JOIN contents ON id = place WHERE {condition} ORDER BY name",
        values,
    )
    return [
        (*row[:4], _large(connection, *row[5:]) if row[4] is None and row[6] else row[4]) for row in rows.fetchall()
    ]


def _large(connection: sqlite3.Connection, place: int, size: int) -> bytearray:
    content = bytearray(size)
    with connection.blobopen("contents", "content", place, readonly=True) as blob:
        for start in range(0, size, _PIECE):
            content[start : start + _PIECE] = blob.read(_PIECE)
    return content
