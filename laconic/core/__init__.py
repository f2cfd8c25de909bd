"""The base layer: parts, layouts, tasks, named randomness, schedules, errors."""
