"""The keys of a config. Importable without torch: the command line makes its options and their help from them."""

from __future__ import annotations

import tomllib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from laconic.core.errors import ConfigError
from laconic.run.settings import Settings


class ConfigKeys(Settings):
    """Every key at the top of a config: data, model, algorithm, and the settings of a run."""

    algorithm: str = "fed_avg"
    """Algorithm, by name (see `laconic algorithms`)."""
    dataset: str = "digits"
    """Data set, by name (see `laconic datasets`), or FILE.py[:FUNCTION] that returns clients."""
    partition: str | None = None
    """Split of the examples: iid, shards:S, pairs, dirichlet:ALPHA or natural; the data set's own when not given."""
    clients: int | None = Field(None, ge=1)
    """Number of clients; when not given, all natural clients, 20 for digits, else 100."""
    model: str | None = None
    """Model, by name (see `laconic models`), or FILE.py:FUNCTION; one that fits the data when not given."""
    data_dir: str | None = None
    """Folder to look for data sets in first."""
    imports: list[str] = []
    """Python file with parts of your own (compressors, methods, …), which can then be named; repeatable."""
    method: dict[str, Any] = {}
    """What clients compute, by name, and its parameters."""
    uplink: dict[str, Any] = {}
    """How updates travel, by name, and its parameters."""
    optimizer: dict[str, Any] = {}
    """How the server moves the model, by name, and its parameters."""
    downlink: dict[str, Any] = {}
    """How the model travels to clients: dense, broadcast, mirrored or repeated."""


class PartParameters(BaseModel):
    """Common parameters of parts, which a config may name without their slot. The defaults are those of the algorithm."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    local_steps: int
    """Local steps per round."""
    local_epochs: int
    """Passes over the client's data per round, instead of local steps."""
    local_lr: float
    """Learning rate of the clients."""
    batch_size: int
    """Examples per local step."""
    batch_order: str
    """Order of a client's examples: shuffled, or fixed (the same in every round)."""
    server_lr: float
    """Learning rate of the server."""
    compressor: str
    """How updates are compressed, as in sign, top_k:1/64 or qsgd:4 (docs/guides/choose-a-compressor.md)."""
    granularity: str
    """Which entries are compressed together: model, layer or chunk:N; --compressor sign@layer is short for it."""
    memory: bool
    """Whether clients remember what compression left out (error feedback)."""


SHORT_NAMES = {
    "local_steps": "method.local_steps",
    "local_epochs": "method.local_epochs",
    "local_lr": "method.local_lr",
    "batch_size": "method.batch_size",
    "batch_order": "method.batch_order",
    "server_lr": "optimizer.server_lr",
    "compressor": "uplink.compressor",
    "granularity": "uplink.granularity",
    "memory": "uplink.memory",
    "dtype": "numerics.dtype",
    "strategy": "numerics.strategy",
    "vmap_width": "numerics.vmap_width",
    "aggregate": "defense.aggregate",
    "clip_updates": "defense.clip",
    "refuse_updates": "defense.refuse",
    "dp_noise": "defense.noise",
    "dp_delta": "defense.delta",
    "drop": "faults.drop",
    "late": "faults.late",
    "duplicate": "faults.duplicate",
    "crash": "faults.crash",
    "lose_state": "faults.lose_state",
    "bandwidth_up": "network.bandwidth_up",
    "bandwidth_down": "network.bandwidth_down",
    "latency": "network.latency",
    "deadline": "network.deadline",
    "workers": "ray.workers",
    "ray_address": "ray.address",
}
"""Keys within a table that may stand at the top of a config, or be options, under these names."""


def parse_setting(text: str) -> tuple[str, Any]:
    """`part.parameter=value` from the command line; the value is read as TOML, or else as a string.

    >>> parse_setting("optimizer.beta2=0.9"), parse_setting("optimizer.name=yogi")
    (('optimizer.beta2', 0.9), ('optimizer.name', 'yogi'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set '{text}': write part.parameter=value, as in optimizer.beta2=0.9")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
