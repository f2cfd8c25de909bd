"""The settings of a run as they are written in a study: the options of `laconic run` in one line."""

from __future__ import annotations

import shlex
from typing import Any

from laconic.run import parse_setting

FLAGS = {"memory", "diagnostics", "full_gradient"}


def options(line: str) -> dict[str, Any]:
    """What an options line says, by the keys of a config; of two the later wins.

    >>> options("--local-lr 0.1 --no-memory --set uplink.compressor=top_k:1/8 --local-lr 0.2")
    {'local_lr': 0.2, 'memory': False, 'uplink.compressor': 'top_k:1/8'}
    """
    found: dict[str, Any] = {}
    words = iter(shlex.split(line))
    for word in words:
        key = word.removeprefix("--").replace("-", "_")
        if key.removeprefix("no_") in FLAGS:
            found[key.removeprefix("no_")] = not key.startswith("no_")
        else:
            found |= [parse_setting(next(words) if key == "set" else f"{key}={next(words)}")]
    return found


def quick(said: dict[str, Any]) -> dict[str, Any]:
    """The same setting so small that it takes a moment: digits, ten clients, a few rounds."""
    share = said.get("participants", said.get("clients", 10)) / said.get("clients", 10)
    small: dict[str, Any] = {
        **{"dataset": "digits", "model": "mlp:16", "clients": 10, "participants": max(2, round(10 * share))},
        **{"rounds": 3, "eval_every": 1, "batch_size": 32, "strategy": "loop", "threads": 1},
    }
    if said.get("partition", "iid") not in ("iid", "shards:2", "pairs", "pairs:shuffled"):
        small["partition"] = "iid"
    if "local_epochs" in said:
        small["local_epochs"] = 1
    if "local_steps" in said:
        small["local_steps"] = min(3, said["local_steps"])
    if said.get("device") is not None:
        small["device"] = "cpu"
    return said | small
