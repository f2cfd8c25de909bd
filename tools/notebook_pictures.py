"""Run the notebooks in examples/ and store each, with its outputs, as a picture in docs/figures/notebooks.

    python tools/notebook_pictures.py [NAME …]

The notebooks themselves are stored without outputs. A picture needs Chromium.
"""

from __future__ import annotations

import html
import os
import shutil
import sys
import tempfile
from pathlib import Path

import markdown
import nbformat
from nbclient import NotebookClient
from playwright.sync_api import sync_playwright
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/figures/notebooks"
WIDTH = 960
STYLE = """
body { font: 15px/1.5 sans-serif; margin: 24px 32px; color: #222 }
pre { font: 13px/1.45 monospace; margin: 0; white-space: pre-wrap }
.code, .output { margin: 0 0 10px; padding: 8px 12px }
.code { background: #f4f5f7; border-left: 3px solid #00897b }
.highlight, .highlight pre { background: none !important }
code { background: #f4f5f7 }
"""


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, from the first cell to the last in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    return notebook


def page(notebook: nbformat.NotebookNode) -> str:
    """The notebook as HTML."""
    formatter = HtmlFormatter(style="friendly")
    pieces = [f"<style>{STYLE}{formatter.get_style_defs('.highlight')}</style>"]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            pieces.append(markdown.markdown(cell.source))
            continue
        pieces.append(f'<div class="code">{highlight(cell.source, PythonLexer(), formatter)}</div>')
        # What a cell prints arrives in pieces.
        printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        outputs = [output for output in cell.outputs if output.output_type != "stream"]
        shown_outputs = [f"<pre>{html.escape(printed)}</pre>"] * bool(printed) + [shown(output) for output in outputs]
        pieces += [f'<div class="output">{output}</div>' for output in shown_outputs]
    return "".join(pieces)


def shown(output: nbformat.NotebookNode) -> str:
    """The value of a cell: text, or a picture."""
    if "image/png" in output.data:
        return f'<img src="data:image/png;base64,{output.data["image/png"]}">'
    return f"<pre>{html.escape(output.data['text/plain'])}</pre>"


def main() -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    paths = [path for path in sorted((ROOT / "examples").glob("*.ipynb")) if path.stem in (sys.argv[1:] or [path.stem])]
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for path in paths:
            view = browser.new_page(viewport={"width": WIDTH, "height": 400})
            view.set_content(page(run(path)))
            view.screenshot(path=PICTURES / f"{path.stem}.png", full_page=True)
            print(PICTURES / f"{path.stem}.png")
        browser.close()


if __name__ == "__main__":
    main()
