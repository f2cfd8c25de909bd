"""Generate the parts of the algorithm pages that come from the code: table, slots, symbols, gallery, navigation.

    python tools/algorithm_pages.py            # rewrites the text between the marks in docs/algorithms and mkdocs.yml
    python tools/algorithm_pages.py --check    # reports what would change, and fails if anything would

The rest of a page, its formula and when to use it, is written by hand. A recipe without a page fails.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from algorithm_symbols import symbols

from laconic.algorithms.recipes import RECIPES
from laconic.core.part import Part

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/algorithms"
DATA = ROOT / "docs/data/algorithms.json"
RATES = ROOT / "docs/data/default-rates.json"
PLAIN = {"dense"}
"""Parts that have nothing to say."""


def rewritten() -> dict[Path, str]:
    """Every file as it should be."""
    missing = [name for name in RECIPES if not (PAGES / f"{name}.md").exists()]
    if missing:
        raise SystemExit(f"docs/algorithms has no page for {', '.join(missing)}")
    orphans = [path.stem for path in PAGES.glob("*.md") if path.stem not in {*RECIPES, "index", "gallery"}]
    if orphans:
        raise SystemExit(f"docs/algorithms has pages for what is no recipe: {', '.join(orphans)}")
    texts: dict[Path, str] = {}
    for name in RECIPES:
        page = PAGES / f"{name}.md"
        text = marked(page.read_text(), "symbols", symbols(name, formula(page)), page)
        text = marked(text, "parts", slots(name), page)
        texts[page] = marked(text, "curve", curve(name), page)
    index = PAGES / "index.md"
    texts[index] = marked(marked(index.read_text(), "table", table(), index), "rates", rates(), index)
    pictures = PAGES / "gallery.md"
    texts[pictures] = marked(pictures.read_text(), "gallery", gallery(), pictures)
    navigation = ROOT / "mkdocs.yml"
    texts[navigation] = navigated(navigation.read_text())
    return texts


def marked(text: str, mark: str, inside: str, page: Path) -> str:
    """The text with something else between the marks."""
    pattern = re.compile(rf"(<!-- generated: {mark} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{page.relative_to(ROOT)}: the mark 'generated: {mark}' is missing")
    return pattern.sub(lambda found: f"{found[1]}\n{inside}\n\n{found[2]}", text)


def formula(page: Path) -> str:
    """The block of text that is the page's formula."""
    found = re.search(r"## Formula\n\n```text\n(.*?)```", page.read_text(), re.DOTALL)
    if not found:
        raise SystemExit(f"{page.relative_to(ROOT)}: there is no formula")
    return found[1]


def slots(name: str) -> str:
    """The four slots and their parameters, as the recipe fills them, and the weights of clients."""
    recipe = RECIPES[name]()
    rows = [f"| {slot} | `{part.name}` | {settings(part)} |" for slot, part in recipe.parts().items()]
    weights = {"size": "Clients are weighted by number of examples", "uniform": "All clients have the same weight"}
    weighting = f"{weights[recipe.weighting]} by default (`--weighting {recipe.weighting}`)."
    head = ["## The four slots", "", "| slot | part | settings |", "|---|---|---|"]
    return "\n".join([*head, *rows, "", weighting])


def settings(part: Part) -> str:
    """A part's parameters: those that have a value, then those that have none unless they are given one."""
    values = part.parameters()
    given = ", ".join(f"`{key}={value}`" for key, value in values.items() if value is not None)
    unset = ", ".join(f"`{key}`" for key, value in values.items() if value is None)
    return "; ".join([given] * bool(given) + [f"unset: {unset}"] * bool(unset)) or "none"


def curve(name: str) -> str:
    """The picture, what was run for it, and where it ended."""
    from algorithm_curves import COMMON, label

    # Two lines, so that neither is cut off on the page.
    start, rest = COMMON.split(" --clients")

    accuracy, up, down = outcome(name)
    ended = f"the mean accuracy of the last five evaluations is {100 * accuracy:.1f} %"
    cost = f"clients have sent {up / 1e6:.2f} MB and received {down / 1e6:.2f} MB"
    return "\n".join(
        [
            f"![{name} on digits: accuracy against bytes](../figures/algorithms/{name}.svg)",
            "",
            "```",
            f"laconic run --algorithm {label(name)} {start} \\\n    --clients{rest}",
            "```",
            "",
            "The run has one seed, and the recipe's default learning rates unless the command sets others. The curve "
            f"shows typical behavior, not the best possible result. After 60 rounds, {ended}, and {cost}.",
        ]
    )


def outcome(name: str) -> tuple[float, float, float]:
    """The mean accuracy of the last five evaluations, and the bytes up and down."""
    measured = json.loads(DATA.read_text())["curves"][name]
    _, up, down, _ = measured[-1]
    return sum(row[3] for row in measured[-5:]) / 5, up, down


def gallery() -> str:
    """The curves of all recipes, two in a row, by the directions that are compressed."""
    kinds: dict[str, list[str]] = {"No compression": [], "Compressed uplink": [], "Compressed in both directions": []}
    for name, recipe in RECIPES.items():
        parts = recipe().parts()
        compressed = [
            part.table().get("compressor", "dense") not in PLAIN for part in (parts["uplink"], parts["downlink"])
        ]
        list(kinds.values())[sum(compressed)].append(name)
    lines: list[str] = []
    for kind, names in kinds.items():
        lines += [f"## {kind}", "", "| | |", "|:---:|:---:|"]
        cells = [picture(name) for name in names] + [""] * (-len(names) % 2)
        lines += ["| " + " | ".join(cells[start : start + 2]) + " |" for start in range(0, len(cells), 2)]
        lines.append("")
    return "\n".join(lines[:-1])


def picture(name: str) -> str:
    """A cell of the gallery: the curve, which is a link to the recipe's page, and where it ended."""
    accuracy, up, down = outcome(name)
    image = f"![{name} on digits: accuracy against bytes](../figures/algorithms/{name}.svg)"
    return f"[{image}]({name}.md)<br>[`{name}`]({name}.md): {100 * accuracy:.1f} %, {(up + down) / 1e6:.2f} MB"


def table() -> str:
    """All recipes with what is special about them."""
    rows = ["| recipe | method | uplink | optimizer | downlink |", "|---|---|---|---|---|"]
    for name, recipe in RECIPES.items():
        parts = recipe().parts()
        rows.append(f"| [`{name}`]({name}.md) | " + " | ".join(short(part) for part in parts.values()) + " |")
    return "\n".join(rows)


def rates() -> str:
    """Every recipe's default rates, and its accuracy with them on each data set that tools/default_rates.py measured."""
    measured = json.loads(RATES.read_text())
    rows = ["| recipe | local rate | server rate | " + " | ".join(measured) + " |", "|---" * (3 + len(measured)) + "|"]
    for name, recipe in RECIPES.items():
        given = {key: value for part in recipe().parts().values() for key, value in part.parameters().items()}
        chosen = {key: given[key] for key in ("local_lr", "server_lr") if key in given}
        cells = [f"{chosen[key]:g}" if key in chosen else "" for key in ("local_lr", "server_lr")]
        for found in measured.values():
            known = name in found and found[name]["rates"] == chosen
            cells.append(_learned(found[name]) if known else "not measured")
        rows.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _learned(found: dict[str, Any]) -> str:
    accuracy = f"{100 * found['accuracy']:.1f} %" if "accuracy" in found else "diverged"
    accuracy += f" in {found['rounds']} rounds" if "rounds" in found else ""
    return accuracy if found["learns"] else f"**no** ({accuracy})"


def short(part: Part) -> str:
    """A part, its compressor and granularity, and whether it has a memory."""
    table = part.table()
    if table.get("compressor", "dense") in PLAIN:
        return part.name
    unknown = ", memory if the compressor is biased, unless it only rounds entries"
    memory = {True: ", memory", "auto": unknown}.get(table.get("memory"), "")
    return f"{part.name}(`{table['compressor']}@{table['granularity']}`{memory})"


def navigated(text: str) -> str:
    """The navigation with a line for each recipe."""
    titles = {"gallery": "Gallery"} | {name: name for name in RECIPES}
    lines = "".join(f"      - {title}: algorithms/{name}.md\n" for name, title in titles.items())
    pattern = re.compile(r"(      - algorithms/index\.md\n)(?:      - \w+: algorithms/\w+\.md\n)*")
    return pattern.sub(lambda found: found[1] + lines, text)


def main() -> None:
    """Rewrite, or check."""
    changed = {path: text for path, text in rewritten().items() if path.read_text() != text}
    if "--check" in sys.argv:
        if changed:
            names = ", ".join(str(path.relative_to(ROOT)) for path in changed)
            raise SystemExit(f"out of date: {names}; run python tools/algorithm_pages.py")
        return
    for path, text in changed.items():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
