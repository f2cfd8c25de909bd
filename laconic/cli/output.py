"""Where commands write their output, and JSON output for scripts."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from laconic.core.errors import ConfigError
from laconic.run.directory import plain


def new_directory(what: str, dataset: str) -> Path:
    """A directory below runs/ that does not exist yet."""
    source = Path(dataset.partition(":")[0]).stem
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{stamp}-{what}-{source}"
    others = (base.with_name(f"{base.name}-{number}") for number in count(2))
    return next(path for path in chain([base], others) if not path.exists())


def check_file(out: Path) -> None:
    """Raise if `--out` cannot be written as a file."""
    if not out.parent.is_dir():
        raise ConfigError(f"--out '{out}': there is no folder '{out.parent}'")
    if out.is_dir():
        raise ConfigError(f"--out '{out}': is a directory; a file is needed")


def resume_command(out: Path | None, directory: Path) -> str:
    """The current command with `--resume`, and with the directory as `--out` unless the user gave one."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["laconic", *words, *([] if out else ["--out", str(directory)]), "--resume"])


def only_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the user gave."""
    return {key: value for key, value in options.items() if value not in (None, [])}


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
