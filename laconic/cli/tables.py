"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from laconic.report.tables import new_table
from laconic.run.tune import Timing


def timings(measured: Sequence[Timing]) -> Table:
    """The measurements of `tune`, fastest first."""
    table = new_table("strategy", "vmap width", "workers", "seconds per round")
    for timing in measured:
        width = str(timing.numerics.vmap_width) if timing.numerics.strategy == "vmap" else ""
        table.add_row(timing.numerics.strategy, width, timing.on, f"{timing.seconds_per_round:.3g}")
    return table
