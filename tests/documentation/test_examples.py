"""Every example of the documentation runs: its Python blocks, its shell blocks, and the files it tells people to write.

A page is a story: its blocks run in order in one empty folder. A block with a title is a file. Blocks without a language are
not run: they take longer than a test may, need other machines, or show what is printed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment, forked, zygote  # noqa: F401
from tests.documentation.pages import PAGES, ROOT, Block, blocks, name

RUN = {"python", "sh"}
STORIES = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]


def play(page: Path, folder: Path, run) -> None:
    """Files are written and commands run; blocks of Python are one program, since later ones use earlier names."""
    said: list[Block] = []
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "python":
            said.append(block)
        elif block.language == "sh":
            for words in block.commands():
                assert words[0] == "laconic", f"{page.name}: only laconic is run in a block of shell: {words}"
                # Files that an earlier block of Python makes are needed already.
                if said:
                    python(page, said, folder)
                outcome = run(*words[1:])
                assert outcome.code == 0, f"{page.name}: {' '.join(words)}\n{outcome.stderr}"
    if said:
        python(page, said, folder)


def python(page: Path, said: list[Block], folder: Path) -> None:
    """All blocks so far, as one program: at most twice a page, once for what commands need and once for all."""
    program = "\n".join(block.text for block in said)
    marker = folder / ".played"
    if marker.exists() and marker.read_text() == program:
        return
    environment = clean_environment(folder) | {"PYTHONPATH": f"{ROOT}:{folder}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{page.name}: {done.stderr}"
    marker.write_text(program)


@pytest.mark.parametrize("page", STORIES, ids=name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, forked) -> None:  # noqa: F811
    play(page, tmp_path, forked)


@pytest.mark.parametrize("example", ["python\n1 / 0", "sh\nlaconic run --rounds none", "sh\nls"])
def test_an_example_that_fails_is_found(example: str, tmp_path: Path, forked) -> None:  # noqa: F811
    page = tmp_path / "page.md"
    page.write_text(f"```{example}\n```\n")
    with pytest.raises(AssertionError):
        play(page, tmp_path, forked)
