"""Draw the curves of the algorithm pages: every recipe once on digits, by `laconic run`.

    python tools/algorithm_curves.py [RUNS]    # takes seconds per recipe; recorded curves and existing runs are kept

To measure a recipe again, delete its line in docs/data/algorithms.json.

Writes docs/data/algorithms.json and docs/figures/algorithms/NAME.svg.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

from laconic.algorithms.recipes import RECIPES
from laconic.report import COLORS

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs/data/algorithms.json"
FIGURES = ROOT / "docs/figures/algorithms"

COMMON = (
    "--dataset digits --partition dirichlet:0.3 --clients 20 --participants 10 --model mlp:64 --rounds 60 "
    "--eval-every 2"
)
SETTINGS = {
    # With the paper's threshold no update is ever similar enough here, and they would equal fed_ams.
    "fed_nlaa": "uplink.threshold=0.7",
    "fed_aa": "uplink.threshold=0.7",
    # They take one step per round; the default rates are for harder problems.
    "minibatch_sgd": "local_lr=0.5",
    "ef21": "server_lr=0.5",
    "ef21_sgdm": "server_lr=0.5",
    "ef21_p": "server_lr=0.5",
    "ef21_bc": "server_lr=0.5",
    "diana": "server_lr=0.5",
    "vr_diana": "server_lr=0.5",
    "marina": "server_lr=0.5",
}
"""Deviations from a recipe's defaults, shown below the curve."""
BESIDE = "fed_avg"
"""The recipe that every curve is drawn beside."""


def label(name: str) -> str:
    """The algorithm as the command line has it."""
    return f"{name}:{SETTINGS[name]}" if name in SETTINGS else name


def measure(name: str, runs: Path) -> list[list[float]]:
    """Megabytes both ways and accuracy at every evaluation of a run."""
    directory = runs / name
    if not (directory / "model.safetensors").exists():
        command = [sys.executable, "-m", "laconic", "run", "--algorithm", label(name), *COMMON.split(), "--no-report"]
        subprocess.run([*command, "--out", str(directory)], check=True, capture_output=True)
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [
        [record["round"], record["bytes_up"], record["bytes_down"], round(record["accuracy"], 4)]
        for record in records
        if "accuracy" in record
    ]


# Grays that are legible on light and dark pages, as the colors of runs are.
INK, OWN, OTHER = "#7d828a", COLORS[1], "#8a9099"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 260, 46, 14, 16, 40
FEWEST, MOST = 0.005, 80.0


def draw(name: str, curves: dict[str, list[list[float]]]) -> str:
    """Accuracy against megabytes, up and down together, on a logarithmic axis that all pictures share."""

    def across(megabytes: float) -> float:
        share = math.log(max(megabytes, FEWEST) / FEWEST) / math.log(MOST / FEWEST)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def down(accuracy: float) -> float:
        return TOP + (1 - accuracy) * (HEIGHT - TOP - BOTTOM)

    def line(rows: list[list[float]]) -> str:
        return " ".join(f"{across((up + back) / 1e6):.1f},{down(accuracy):.1f}" for _, up, back, accuracy in rows)

    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{name}: test accuracy on digits against megabytes up and down</title>",
    ]
    for accuracy in (0, 0.25, 0.5, 0.75, 1):
        y = down(accuracy)
        pieces.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{INK}" stroke-opacity=".3"/>')
        pieces.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{INK}">{accuracy:.0%}</text>')
    for megabytes in (0.01, 0.1, 1, 10):
        x = across(megabytes)
        pieces.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{INK}" stroke-opacity=".15"/>')
        place = f'x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}"'
        pieces.append(f'<text {place} text-anchor="middle" fill="{INK}">{megabytes:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    pieces.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle" fill="{INK}">MB, up and down</text>')
    shown = [(BESIDE, OTHER, ' stroke-dasharray="5 4"')] if name != BESIDE else []
    for place, (each, color, dashes) in enumerate([(name, OWN, ""), *shown]):
        points = line(curves[each])
        pieces.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.2" stroke-linejoin="round"{dashes}/>'
        )
        y = HEIGHT - BOTTOM - 28 + 17 * place
        pieces.append(f'<path d="M{LEFT + 300} {y - 4}h22" stroke="{color}" stroke-width="2.2"{dashes}/>')
        pieces.append(f'<text x="{LEFT + 328}" y="{y}" fill="{color}">{label(each)}</text>')
    return "\n".join([*pieces, "</svg>", ""])


def main() -> None:
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "runs/algorithms")
    recorded = json.loads(DATA.read_text())["curves"] if DATA.exists() else {}
    curves = {name: recorded.get(name) or measure(name, runs) for name in RECIPES}
    DATA.parent.mkdir(exist_ok=True)
    rows = ",\n".join(f'  "{name}": {json.dumps(curve)}' for name, curve in curves.items())
    columns = json.dumps(["round", "bytes up", "bytes down", "accuracy"])
    DATA.write_text(f'{{"settings": {json.dumps(COMMON)},\n "columns": {columns},\n "curves": {{\n{rows}\n }}}}\n')
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name in RECIPES:
        (FIGURES / f"{name}.svg").write_text(draw(name, curves))


if __name__ == "__main__":
    main()
