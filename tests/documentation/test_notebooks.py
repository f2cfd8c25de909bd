"""The notebooks in examples/ run from the first cell to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def test_there_are_notebooks_without_stored_output() -> None:
    import nbformat

    assert len(NOTEBOOKS) >= 3
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.get("outputs") for cell in notebook.cells), f"{path.name}: clear its output"


def test_curves_have_the_colors_of_the_report() -> None:
    plotting = {path.name: path.read_text() for path in NOTEBOOKS if "pyplot" in path.read_text()}
    assert plotting and all("cycler(color=COLORS)" in text for text in plotting.values())


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert printed and all(output["output_type"] != "error" for output in printed)
