"""Parse the settings of a study's runs, which are written as options of `laconic run`."""

from __future__ import annotations

import shlex
from typing import Any

from laconic.run import parse_setting

FLAGS = {"memory", "diagnostics", "full_gradient"}


def options(line: str) -> dict[str, Any]:
    """Parse a line of options into config keys. Later options take precedence, and `--no-KEY` removes an earlier one.

    >>> options("--local-lr 0.1 --no-memory --set uplink.compressor=top_k:1/8 --local-lr 0.2")
    {'local_lr': 0.2, 'memory': False, 'uplink.compressor': 'top_k:1/8'}
    >>> options("--batch-size 64 --algorithm marina --no-batch-size")
    {'algorithm': 'marina'}
    """
    settings: dict[str, Any] = {}
    words = iter(shlex.split(line))
    for word in words:
        key = word.removeprefix("--").replace("-", "_")
        if key.removeprefix("no_") in FLAGS:
            settings[key.removeprefix("no_")] = not key.startswith("no_")
        elif key.startswith("no_"):
            settings.pop(key.removeprefix("no_"), None)
        else:
            settings |= [parse_setting(next(words) if key == "set" else f"{key}={next(words)}")]
    return settings


def quick(settings: dict[str, Any]) -> dict[str, Any]:
    """Reduce a setting to digits, ten clients and three rounds, so that it takes a few seconds."""
    share = settings.get("participants", settings.get("clients", 10)) / settings.get("clients", 10)
    small: dict[str, Any] = {
        **{"dataset": "digits", "model": "mlp:16", "clients": 10, "participants": max(2, round(10 * share))},
        **{"rounds": 3, "eval_every": 1, "batch_size": 32, "strategy": "loop", "threads": 1},
    }
    if settings.get("partition", "iid") not in ("iid", "shards:2", "shards:2:single", "pairs", "pairs:shuffled"):
        small["partition"] = "iid"
    if "local_epochs" in settings:
        small["local_epochs"] = 1
    if "local_steps" in settings:
        small["local_steps"] = min(3, settings["local_steps"])
    if "augment" in settings:
        small["augment"] = None  # digits are too small to crop
    if settings.get("device") is not None:
        small["device"] = "cpu"
    return settings | small
