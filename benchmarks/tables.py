"""The tables of docs/results.md from the curves of finished runs, and their pictures."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import experiments

from laconic.run import target

EVALUATIONS = target.WINDOW
PAPER_BITS_UNIT = 32e6
"""FedAMD's table counts in units of 32 Mbit, a million floats."""

Curve = list[dict[str, Any]]


def mean_of_last(curve: Curve, count: int = EVALUATIONS) -> float:
    """The mean accuracy of the last evaluations, in %."""
    return 100 * fmean(each["accuracy"] for each in curve[-count:])


def total(evaluation: dict[str, Any]) -> int:
    """Bytes in both directions."""
    return int(evaluation["bytes_up"] + evaluation["bytes_down"])


def reached(curve: Curve, accuracy: float) -> dict[str, Any] | None:
    """The evaluation at which that accuracy counts as reached, by the rule of `compare --target`."""
    found = target.reached([each | {"seconds": 0.0} for each in curve], accuracy)
    return found and next(each for each in curve if each["round"] == found.rounds)


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
        paper = experiments.FED_EF_PAPER[server].get(link, "")
        last = curve[-1]
        lines.append(f"| {link} | {server} | {100 * last['accuracy']:.2f} | {paper} | {last['bytes_up'] / 1e6:,.0f} |")
    return "\n".join(lines)


def accuracy_table(curves: dict[str, Curve]) -> str:
    """Accuracies, and bytes per round in each direction."""
    lines = [
        "| | final, % | mean of the last five, % | bytes up a round | bytes down a round |",
        "|---|---|---|---|---|",
    ]
    for label, curve in curves.items():
        last = curve[-1]
        sizes = " | ".join(f"{last[name] / last['round']:,.0f}" for name in ("bytes_up", "bytes_down"))
        lines.append(f"| {label} | {100 * last['accuracy']:.2f} | {mean_of_last(curve):.2f} | {sizes} |")
    return "\n".join(lines)


def fed_amd_table(curves: dict[str, Curve]) -> str:
    """FedAMD's Table 2, A = 20: what it cost until the first evaluation at 75 %, the paper's numbers in brackets."""
    lines = [
        "| | 1e5 gradients | x 32 Mbit | measured MB | rounds | final, % | mean of the last ten, % |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, curve in curves.items():
        paper = experiments.FED_AMD_PAPER[label.split(",")[0]]
        found = next((each for each in curve if each["accuracy"] >= 0.75), None)
        if found is None:
            costs = ["not reached", "", "", ""]
        else:
            bits = found["paper_bits_up"] + found["paper_bits_down"]
            costs = [f"{found['gradients'] / 1e5:.1f}", f"{bits / PAPER_BITS_UNIT:.1f}"]
            costs += [f"{total(found) / 1e6:,.0f}", str(found["round"])]
        costs[0] += f" ({paper[0]})"
        costs[1] += f" ({paper[1]})"
        costs[3] += f" ({paper[2]})"
        final = f"{100 * curve[-1]['accuracy']:.1f} ({paper[3]})"
        lines.append(f"| {label} | {' | '.join(costs)} | {final} | {mean_of_last(curve, 10):.1f} |")
    return "\n".join(lines)


def draw(curves: dict[str, Curve], path: Path, against: str) -> None:
    """Accuracy against bytes, on a logarithmic axis, or against rounds."""
    import matplotlib.pyplot as plot

    figure, axes = plot.subplots(figsize=(8, 4.5), layout="constrained")
    for label, curve in curves.items():
        smooth = [
            fmean(each["accuracy"] for each in curve[max(0, end - EVALUATIONS) : end])
            for end in range(1, len(curve) + 1)
        ]
        places = [total(each) / 1e6 if against == "bytes" else each["round"] for each in curve]
        axes.plot(places, [100 * value for value in smooth], label=label)
    axes.set(ylabel="accuracy, % (mean of five evaluations)")
    if against == "bytes":
        axes.set(xscale="log", xlabel="megabytes, both directions")
    else:
        axes.set(xlabel="round")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
