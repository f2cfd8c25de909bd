"""What everything else stands on: parts, layouts, tasks, named randomness, schedules, errors."""
