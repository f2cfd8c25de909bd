"""Default output directories, and JSON output for scripts."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from laconic.core.errors import ConfigError
from laconic.run.directory import plain


def new_directory(what: str, dataset: str) -> Path:
    """A directory below runs/ that does not exist yet."""
    source = Path(dataset.partition(":")[0]).stem if ".py" in dataset else dataset
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{stamp}-{what}-{source}"
    number = 2
    path = base
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def stored(path: Path) -> dict[str, Any]:
    """Read the object that a command stored in its directory."""
    try:
        table = json.loads(path.read_text())
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise ConfigError(f"'{path}' is damaged: not a JSON object")
    return table


def print_json(table: dict[str, Any]) -> None:
    """Print one object on one line of stdout."""
    sys.stdout.write(json.dumps(plain(table), allow_nan=False) + "\n")
