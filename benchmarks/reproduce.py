"""Long runs on Fashion-MNIST, and the tables made of them: `python benchmarks/reproduce.py [NAME…]`, by `make reproduce`.

Each run is a directory below --runs; one that is finished is not run again, and one that was stopped is continued. The
tables go to standard output, the curves as JSON to docs/data/ and as a picture to docs/figures/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import experiments
import tables

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = {
    "bytes-to-accuracy": (experiments.BYTES, tables.bytes_table, "bytes"),
    "fed-ef-tables": (experiments.FED_EF, tables.fed_ef_table, "round"),
    "fed-ef-figure1": (experiments.FED_EF_FIGURE_1, tables.accuracy_table, "round"),
    "gradient-tracking": (experiments.GRADIENT_TRACKING, tables.accuracy_table, "bytes"),
    "fed-amd-table2-shuffled": (experiments.FED_AMD_SHUFFLED, tables.fed_amd_table, "round"),
    "fed-amd-table2-fixed": (experiments.FED_AMD_FIXED, tables.fed_amd_table, "round"),
}
"""Name: the runs, the table made of them, and what the picture's horizontal axis is."""


def run(directory: Path, options: str) -> tables.Curve:
    """The evaluations of one run, which is started, continued or only read."""
    command = [sys.executable, "-m", "laconic", "run"]
    if not (directory / "model.safetensors").exists():
        given = [str(directory), "--resume"] if directory.exists() else [*options.split(), "--out", str(directory)]
        subprocess.run([*command, *given], check=True)
    records = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    kept = ("round", "accuracy", "loss", "bytes_up", "bytes_down", "paper_bits_up", "paper_bits_down", "gradients")
    return [{name: record[name] for name in kept} for record in records if "accuracy" in record]


def runs(name: str, folder: Path) -> dict[str, tables.Curve]:
    """Every run of an experiment."""
    experiment = EXPERIMENTS[name][0]
    length = f"--rounds {experiment.rounds}" if experiment.rounds else ""
    curves = {}
    for label, options in experiment.runs.items():
        directory = folder / name / re.sub("[^a-z0-9.+_]+", "-", label)
        given = f"{experiment.common} {length} {options}"
        if "{rate}" not in options:
            curves[label] = run(directory, given)
            continue
        trial = 100 if label in experiment.long_trials else experiment.trial
        for rate in best_rates(experiment, f"{options} --rounds {trial}", directory):
            try:
                curves[f"{label}, rate {rate}"] = run(
                    directory.with_name(f"{directory.name}-{rate}"), given.format(rate=rate)
                )
                break
            except subprocess.CalledProcessError:
                print(f"{label} diverges with rate {rate} after its trial: the next rate")
    return curves


def best_rates(experiment: experiments.Experiment, options: str, directory: Path) -> list[str]:
    """The rates by the mean of the last evaluations of a short run, the best first; one that diverges is out.

    Rates are tried from the largest on, until two in a row are worse than the best.
    """
    found: dict[str, float] = {}
    for rate in experiment.rates:
        trial = directory.with_name(f"{directory.name}-trial-{rate}")
        try:
            curve = run(trial, f"{experiment.common} {options.format(rate=rate)}")
            found[rate] = tables.mean_of_last(curve)
        except subprocess.CalledProcessError:
            continue
        if max([*found.values()][-2:]) < max(found.values()):
            break
    return sorted(found, key=lambda rate: -found[rate])


def main() -> None:
    """Run what was asked for, and show it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*EXPERIMENTS, []], metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), help="where the runs are")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    for name in arguments.names or EXPERIMENTS:
        curves = runs(name, arguments.runs)
        _, table, against = EXPERIMENTS[name]
        print(table(curves))
        data = ROOT / "docs" / "data" / f"{name}.json"
        data.parent.mkdir(exist_ok=True)
        data.write_text(json.dumps(curves, indent=1) + "\n")
        tables.draw(curves, ROOT / "docs" / "figures" / f"{name}.svg", against)


if __name__ == "__main__":
    main()
