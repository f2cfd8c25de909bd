"""Compare the speed of the working tree with that of another commit, and say what became slower.

    python benchmarks/compare.py BASE [--turns 3] [--only links simulation zoo codec] [--tolerance 0.05]

BASE is checked out into a temporary folder. The two trees run the same benchmarks (suite.py) in turn, so that changes of the
machine's speed affect both. The change of a figure is the median, over the turns, of its ratio in the two trees. The exit
code is 1 if a figure became worse by more than the tolerance.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import suite
from suite import Figures


class Change(NamedTuple):
    """One figure in both trees."""

    name: str
    base: float
    now: float
    ratio: float
    """The median of now / base over the turns: above 1 is slower."""


def changes(base: Sequence[Figures], now: Sequence[Figures]) -> list[Change]:
    """The figures that every turn has in both trees, those that became worse most first."""
    common = set.intersection(*map(set, (*base, *now))) if base and now else set()
    found = [
        Change(
            name,
            statistics.median(figures[name] for figures in base),
            statistics.median(figures[name] for figures in now),
            statistics.median(new[name] / old[name] for old, new in zip(base, now, strict=True)),
        )
        for name in common
    ]
    return sorted(found, key=lambda change: (-change.ratio, change.name))


def slower(found: Sequence[Change], tolerance: float) -> list[Change]:
    """The figures that became worse by more than the tolerance."""
    return [change for change in found if change.ratio > 1 + tolerance]


def measure_in_turn(base: Path, now: Path, turns: int, only: Sequence[str]) -> tuple[list[Figures], list[Figures]]:
    """The figures of both trees, by turn. Every other turn begins with the other tree."""
    found: dict[Path, list[Figures]] = {base: [], now: []}
    for turn in range(turns):
        for tree in (base, now) if turn % 2 == 0 else (now, base):
            found[tree].append(suite.measure(tree, only))
    return found[base], found[now]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit, branch or tag")
    parser.add_argument("--turns", type=int, default=3, help="how often each tree runs the benchmarks")
    parser.add_argument("--only", nargs="+", choices=list(suite.BENCHMARKS), default=list(suite.BENCHMARKS))
    parser.add_argument("--tolerance", type=float, default=0.05, help="the share by which a figure may become worse")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="laconic-compare-") as folder:
        tree = Path(folder) / "base"
        suite.git("worktree", "add", "--detach", str(tree), options.base)
        try:
            base, now = measure_in_turn(tree, suite.HERE.parent, options.turns, options.only)
        finally:
            suite.git("worktree", "remove", "--force", str(tree))
    found = changes(base, now)
    for change in found:
        print(f"{change.ratio:6.3f}  {change.base:10.3f} -> {change.now:10.3f}  {change.name}")
    missing = sorted(set().union(*base, *now) - {change.name for change in found})
    if missing:
        print(f"not in both trees: {'; '.join(missing)}")
    worse = slower(found, options.tolerance)
    print(f"{len(worse)} of {len(found)} figures became worse by more than {options.tolerance:.0%}")
    for change in worse:
        print(f"slower: {change.name}, {change.ratio - 1:+.1%}")
    return 1 if worse or not found else 0


if __name__ == "__main__":
    sys.exit(main())
