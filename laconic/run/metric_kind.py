"""Whether metrics by name fit the kind of task that the targets imply."""

from __future__ import annotations

from laconic.core.errors import ConfigError
from laconic.data.federated import Kind
from laconic.run.metrics import NAMES


def check_metric_kind(names: str | None, kind: Kind) -> None:
    """Raise `ConfigError` for a metric of another kind of task, and say how to change the kind."""
    for name in map(str.strip, (names or "").split(",")):
        kinds = [other for other in NAMES if name in NAMES[other]]
        if kinds and kind not in kinds:
            reason = "floating-point" if kind == "regression" else "integers or text"
            why = f"the data is {kind}: the targets are {reason}; pass kind={kinds[0]} to change it"
            raise ConfigError(f"metrics: '{name}' needs {kinds[0]}, but {why}")
