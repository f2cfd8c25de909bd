"""Long runs on Fashion-MNIST, and the tables made of them: `python benchmarks/reproduce.py [NAME…]`, by `make reproduce`.

Each run is a directory below --runs; one that is finished is not run again, and one that was stopped is continued. The
tables go to standard output, the curves as JSON to docs/data/ and as a picture to docs/figures/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVALUATIONS = 5
"""An accuracy counts as reached when the mean of so many evaluations is there."""


@dataclass(frozen=True)
class Experiment:
    """Runs with a setting in common."""

    common: str
    runs: dict[str, str]
    """What differs, as options of `laconic run`."""


BYTES = Experiment(
    "--dataset fashion-mnist --partition shards:2 --clients 100 --participants 20 --model lenet5 "
    "--local-steps 10 --batch-size 64 --eval-every 10",
    {
        "fed_ams": "--algorithm fed_ams --rounds 200",
        "fed_ams-rate-0.1": "--algorithm fed_ams --local-lr 0.1 --rounds 200",
        "fed_bnlaca-same-rates": "--algorithm fed_bnlaca --rounds 200 --set uplink.compressor=top_k:1/8+qsgd:5 "
        "--set downlink.compressor=top_k:1/8+qsgd:5",
        "fed_ef_ams-two-way": "--algorithm fed_ef_ams --rounds 200 --local-lr 0.1 --server-lr 0.03 "
        "--set optimizer.epsilon=1e-3 --set optimizer.beta2=0.99 --compressor heavy_sign:1/16@layer "
        "--downlink broadcast --set downlink.compressor=heavy_sign:1/64@layer",
        "fed_laconic": "--algorithm fed_laconic --rounds 200",
    },
)
_LINKS = {
    "full": "--compressor dense",
    "sign": "--compressor sign@layer",
    "top_k:0.01": "--compressor top_k:0.01@layer",
    "heavy_sign:0.05": "--compressor heavy_sign:0.05@layer",
    "qsgd:4": "--no-memory --compressor qsgd:4@layer",
}
FED_EF = Experiment(
    "--dataset fashion-mnist --partition shards:2 --clients 200 --participants 20 --rounds 100 --model cnn "
    "--local-epochs 1 --batch-size 32 --local-lr 0.1 --eval-every 20",
    {f"sgd {name}": f"--algorithm fed_ef_sgd --server-lr 1 {link}" for name, link in _LINKS.items()}
    | {f"ams {name}": f"--algorithm fed_ef_ams --server-lr 0.01 {link}" for name, link in _LINKS.items()}
    | {"sgd sign without memory": "--algorithm fed_ef_sgd --server-lr 1 --no-memory --compressor sign@layer"},
)
EXPERIMENTS = {"bytes-to-accuracy": BYTES, "fed-ef-tables": FED_EF}
PAPER = {
    "sgd": {"sign": 67.69, "top_k:0.01": 67.47, "heavy_sign:0.05": 67.72, "qsgd:4": 67.71, "full": 67.50},
    "ams": {"sign": 57.60, "top_k:0.01": 64.09, "heavy_sign:0.05": 50.77, "qsgd:4": 64.35, "full": 64.18},
}
"""Fed-EF (Li and Li, 2023), Tables 5 and 6: Fashion-MNIST, 10 % of the clients per round, ten seeds."""

Curve = list[dict[str, Any]]


def run(directory: Path, options: str) -> Curve:
    """The evaluations of one run, which is started, continued or only read."""
    command = [sys.executable, "-m", "laconic", "run"]
    if not (directory / "model.safetensors").exists():
        given = [str(directory), "--resume"] if directory.exists() else [*options.split(), "--out", str(directory)]
        subprocess.run([*command, *given], check=True)
    records = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    kept = ("round", "accuracy", "loss", "bytes_up", "bytes_down")
    return [{name: record[name] for name in kept} for record in records if "accuracy" in record]


def runs(name: str, folder: Path) -> dict[str, Curve]:
    """Every run of an experiment."""
    experiment = EXPERIMENTS[name]
    directories = {label: folder / name / label.replace(" ", "-").replace(":", "-") for label in experiment.runs}
    return {
        label: run(directories[label], f"{experiment.common} {options}") for label, options in experiment.runs.items()
    }


def total(evaluation: dict[str, Any]) -> int:
    """Bytes in both directions."""
    return int(evaluation["bytes_up"] + evaluation["bytes_down"])


def reached(curve: Curve, accuracy: float) -> dict[str, Any] | None:
    """The first evaluation at which the mean of the last ones is at that accuracy."""
    for end in range(EVALUATIONS, len(curve) + 1):
        if fmean(each["accuracy"] for each in curve[end - EVALUATIONS : end]) >= accuracy:
            return curve[end - 1]
    return None


def bytes_table(curves: dict[str, Curve]) -> str:
    """Bytes to one point below what fed_ams has in rounds 160 to 200, at its usual and at its best rate."""
    lines = []
    for reference in ("fed_ams", "fed_ams-rate-0.1"):
        mean = fmean(each["accuracy"] for each in curves[reference] if 160 <= each["round"] <= 200)
        cost = total(curves[reference][-1])
        lines += [f"{reference}: {100 * mean:.2f} % with {cost / 1e6:.0f} MB in 200 rounds; to {100 * mean - 1:.2f} %:"]
        for label, curve in curves.items():
            found = reached(curve, mean - 0.01)
            if label != reference and found is None:
                lines.append(f"  {label}: not in {curve[-1]['round']} rounds")
            elif label != reference and found is not None:
                sizes = f"{found['bytes_up'] / 1e6:.1f} MB up, {found['bytes_down'] / 1e6:.1f} MB down"
                lines.append(f"  {label}: round {found['round']}, {sizes}: {cost / total(found):.1f}x fewer bytes")
    return "\n".join(lines)


def fed_ef_table(curves: dict[str, Curve]) -> str:
    """Final accuracies beside the paper's."""
    lines = ["| | server | ours, % | paper, % | MB up |", "|---|---|---|---|---|"]
    for label, curve in curves.items():
        server, link = label.split(" ", 1)
        paper = PAPER[server].get(link, "")
        last = curve[-1]
        lines.append(f"| {link} | {server} | {100 * last['accuracy']:.2f} | {paper} | {last['bytes_up'] / 1e6:,.0f} |")
    return "\n".join(lines)


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Accuracy against bytes, on a logarithmic axis."""
    import matplotlib.pyplot as plot

    figure, axes = plot.subplots(figsize=(8, 4.5), layout="constrained")
    for label, curve in curves.items():
        smooth = [
            fmean(each["accuracy"] for each in curve[max(0, end - EVALUATIONS) : end])
            for end in range(1, len(curve) + 1)
        ]
        axes.plot([total(each) / 1e6 for each in curve], [100 * value for value in smooth], label=label)
    axes.set(xscale="log", xlabel="megabytes, both directions", ylabel="accuracy, % (mean of five evaluations)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Run what was asked for, and show it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*EXPERIMENTS, []], metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), help="where the runs are")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    for name in arguments.names or EXPERIMENTS:
        curves = runs(name, arguments.runs)
        print(bytes_table(curves) if name == "bytes-to-accuracy" else fed_ef_table(curves))
        data = ROOT / "docs" / "data" / f"{name}.json"
        data.parent.mkdir(exist_ok=True)
        data.write_text(json.dumps(curves, indent=1) + "\n")
        if name == "bytes-to-accuracy":
            draw(curves, ROOT / "docs" / "figures" / f"{name}.svg")


if __name__ == "__main__":
    main()
