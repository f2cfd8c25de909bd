"""The base layer: parts, layouts, tasks, named randomness, schedules, errors."""

from laconic.core.counts import counted

__all__ = ["counted"]
