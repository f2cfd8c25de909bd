"""Run the examples of the documentation, and store their reports as pictures in docs/figures.

    python tools/report_pictures.py [NAME …]

A picture needs Chromium. The picture of the federation also needs the extra `flower`, and takes minutes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs/figures"
DIGITS = "--partition dirichlet:0.3 --clients 20 --participants 10 --rounds 40 --eval-every 2 --target 90"
TEN = "--partition dirichlet:0.3 --clients 10 --participants 5 --rounds 30 --eval-every 1 --target 80 --seeds 3"
HOSPITALS = "--dataset patients.py --model nets.py:build --local-lr 0.3"


@dataclass(frozen=True)
class Picture:
    """A picture of a report: the command that writes the report, and the browser's window."""

    command: str
    width: int
    height: int
    dark: bool = False


def make_run() -> str:
    """The command of `make run`."""
    recipe = re.search(r"^run: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return recipe[1].replace("\\\n", " ").replace("$(BIN)/", "").strip()


PICTURES = {
    "walk/make-run": Picture(make_run(), 1200, 930),
    "walk/patients": Picture(f"laconic run {HOSPITALS} --algorithm fed_avg --rounds 40", 1000, 800),
    "walk/phone": Picture(f"laconic run {HOSPITALS} --algorithm fed_avg --rounds 40", 390, 800, dark=True),
    "walk/ternary": Picture(
        "laconic compare fed_cams:compressor=sign@layer fed_cams:compressor=ternary@layer --import ternary.py "
        f"{HOSPITALS} --rounds 20",
        1000,
        800,
    ),
    "walk/report": Picture(
        f"laconic compare fed_avg fed_cams:compressor=sign fed_laconic:local_lr=0.3 {TEN}", 1100, 800
    ),
    "tutorial/report": Picture(f"laconic compare fed_avg fed_cams:compressor=sign fed_laconic {DIGITS}", 1200, 900),
    "tutorial/federation": Picture("laconic deploy-demo --nodes 4", 1200, 830),
}
FILES = {
    "patients.py": "own-data-and-model",
    "nets.py": "own-data-and-model",
    "ternary.py": "add-a-compressor",
}
"""Files of the examples, and the guide that has each."""


@contextmanager
def folder_of_examples() -> Iterator[Path]:
    """A folder with the files that the guides' examples make."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, guide in FILES.items():
            block = re.search(
                rf'^```python title="{re.escape(file)}"\n(.*?)^```$', text_of(guide), re.MULTILINE | re.DOTALL
            )
            assert block is not None, file
            (folder / file).write_text(block[1])
        table = re.search(
            r"^```python\n(import csv\n.*?)^```$", text_of("own-data-and-model"), re.MULTILINE | re.DOTALL
        )
        assert table is not None
        subprocess.run([sys.executable, "-c", table[1]], cwd=folder, check=True)
        yield folder


def text_of(guide: str) -> str:
    """The text of a guide."""
    return (ROOT / f"docs/guides/{guide}.md").read_text()


def written(command: str, folder: Path) -> Path:
    """Run a command, and return the report that it wrote."""
    words = [sys.executable, "-m", *shlex.split(command)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(words, cwd=folder, check=True, env=os.environ | {"PYTHONPATH": path})
    return max(folder.rglob("report.html"), key=lambda page: page.stat().st_mtime)


def main() -> None:
    chosen = {name: picture for name, picture in PICTURES.items() if name in (sys.argv[1:] or PICTURES)}
    pages: dict[str, Path] = {}
    with folder_of_examples() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, picture in chosen.items():
            if picture.command not in pages:
                pages[picture.command] = written(picture.command, folder)
            view = browser.new_page(
                viewport={"width": picture.width, "height": picture.height},
                color_scheme="dark" if picture.dark else "light",
            )
            view.goto(pages[picture.command].as_uri())
            view.wait_for_selector("#streams .main-svg")
            view.wait_for_timeout(500)  # Plotly waits before it changes a size.
            view.screenshot(path=FIGURES / f"{name}.png")
            view.close()
            print(FIGURES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
