"""The keys of a config. This module does not import torch: the command line derives its options and help from it."""

from __future__ import annotations

import tomllib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from laconic.core.errors import ConfigError
from laconic.run.settings import Settings


class ConfigKeys(Settings):
    """Every top-level key of a config: data, model, algorithm, and the settings of a run."""

    algorithm: str = "fed_avg"
    """Algorithm: a name (see `laconic algorithms`)."""
    dataset: str = "digits"
    """Data set: a name (see `laconic datasets`), FILE.py[:FUNCTION], FILE.csv:target=COLUMN, or a folder."""
    partition: str | None = None
    """How data are split: iid, dirichlet:CONCENTRATION, shards:S[:single], pairs or natural. Default: the data set's own."""
    clients: int | None = Field(None, ge=1)
    """Number of clients. Default: all natural clients if the data set has them, 20 for digits, otherwise 100."""
    model: str | None = None
    """Model: a name (see `laconic models`), or FILE.py:FUNCTION that builds it. Default: one that fits the data."""
    data_dir: str | None = None
    """Folder that is searched for data sets first."""
    augment: str | None = None
    """Random augmentation of images in training, as in crop:4+flip. Default: none."""
    skip_empty: bool = False
    """Leave out clients of your own data that have no examples."""
    imports: list[str] = []
    """Python file that registers your own compressors, methods or other parts; repeatable."""
    method: dict[str, Any] = {}
    """The local training of clients: its name and parameters."""
    uplink: dict[str, Any] = {}
    """Uplink: dense, compressed, error_feedback, lazy, accelerated, lag or shifted. Default: the algorithm's own."""
    optimizer: dict[str, Any] = {}
    """How the server updates the model: its name and parameters."""
    downlink: dict[str, Any] = {}
    """How the model is sent: dense, compressed, broadcast, estimated, mirrored or repeated. Default: the algorithm's own."""


class PartParameters(BaseModel):
    """Common parameters of parts. A config may set them without their slot. The algorithm has their defaults."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    local_steps: int
    """Local steps per round."""
    local_epochs: int
    """Passes over a client's data per round; replaces --local-steps."""
    local_lr: float
    """Learning rate of the clients."""
    local_optimizer: str
    """Local optimizer: sgd, momentum, nesterov, adam or adamw, as in adamw:weight_decay=0.1; local_lr is its rate."""
    local_optimizer_state: str
    """State of the local optimizer: reset in every round, kept by each client, or averaged."""
    batch_size: int
    """Examples per local step."""
    batch_order: str
    """Order of a client's examples: shuffled, or fixed (the same in every round)."""
    server_lr: float
    """Learning rate of the server."""
    compressor: str
    """Compressor of the updates, such as sign, top_k:1/64 or qsgd:4."""
    granularity: str
    """Which entries are compressed together: model, layer or chunk:N."""
    memory: bool
    """Error feedback: clients add a compression error to their next update."""


SHORT_NAMES = {
    "local_steps": "method.local_steps",
    "local_epochs": "method.local_epochs",
    "local_lr": "method.local_lr",
    "local_optimizer": "method.local_optimizer",
    "local_optimizer_state": "method.local_optimizer_state",
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
"""Short names for nested keys, at the top level of a config and as options of the command line."""


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse `slot.parameter=value` of the command line. The value is parsed as TOML, or kept as a string.

    >>> parse_setting("optimizer.beta2=0.9"), parse_setting("optimizer.name=yogi")
    (('optimizer.beta2', 0.9), ('optimizer.name', 'yogi'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set '{text}': write slot.parameter=value, as in optimizer.beta2=0.9")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
