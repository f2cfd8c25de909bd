"""Run the benchmarks and write their figures to benchmarks/results/, with machine, date and commit.

    python benchmarks/suite.py [--only links simulation zoo codec] [--output benchmarks/results]

Every figure is a cost, so lower is better. It is a ratio within one run, such as our time divided by that of a plain loop,
so it can be compared between runs, though the speed of the machine changes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
Figures = dict[str, float]


class Benchmark(NamedTuple):
    """A script, its arguments, and a function that takes the figures from its JSON output."""

    script: str
    arguments: tuple[str, ...]
    figures: Callable[[dict[str, Any]], Figures]


def _over_plain_loop(report: dict[str, Any]) -> Figures:
    return {
        f"{name}, time / plain loop": 1 / (row.get("speedup") or row["speedup_over_bare_loop"])
        for name, row in report.items()
    }


def _links(report: dict[str, Any]) -> Figures:
    report = {name: row for name, row in report.items() if "copies" in row}
    costs = {f"links of {name}, time / copy": row["copies"] for name, row in report.items()}
    # Less than a tenth of a vector is no difference.
    return costs | {f"links of {name}, vectors per client": max(row["vectors"], 0.1) for name, row in report.items()}


def _codec(report: dict[str, Any]) -> Figures:
    return {f"{name}, time / reference": 1 / row["ratio"] for name, row in report["speed"].items()}


BENCHMARKS = {
    "links": Benchmark("links.py", (), _links),
    "simulation": Benchmark("simulation.py", ("--no-peers", "--rounds", "8"), _over_plain_loop),
    "zoo": Benchmark("zoo.py", ("--rounds", "4"), _over_plain_loop),
    "codec": Benchmark("codec.py", ("--quick",), _codec),
}


def measure(tree: Path, only: Sequence[str] = tuple(BENCHMARKS)) -> Figures:
    """The figures of the package in `tree`, measured with the scripts of this folder. Each script is a process."""
    figures: Figures = {}
    for name in only:
        script, arguments, figures_of = BENCHMARKS[name]
        command = [sys.executable, str(HERE / script), "--json", *arguments]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"{name}: failed in {tree}", file=sys.stderr)
            continue
        figures |= figures_of(json.loads(done.stdout.splitlines()[-1]))
    return figures


def git(*arguments: str) -> str:
    """The output of a git command in this repository."""
    return subprocess.run(("git", *arguments), cwd=HERE, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import numpy
    import torch

    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), help="which benchmarks"
    )
    parser.add_argument("--output", type=Path, default=HERE / "results", help="the folder of the JSON file")
    options = parser.parse_args(arguments)
    before, now, commit = machine(), datetime.now(UTC), git("rev-parse", "--short", "HEAD")
    changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    found = {name: measure(HERE.parent, [name]) for name in options.only}
    figures = {name: figure for of_benchmark in found.values() for name, figure in of_benchmark.items()}
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{now:%Y-%m-%d-%H%M}-{commit}.json"
    report = {"date": now.isoformat(timespec="seconds"), "commit": commit, "changed": changed, "machine": before}
    path.write_text(json.dumps(report | {"figures": figures}, indent=2) + "\n")
    for name, figure in figures.items():
        print(f"{figure:10.3f}  {name}")
    print(path)
    return int(not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
