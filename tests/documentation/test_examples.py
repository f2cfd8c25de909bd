"""Every example of the documentation runs: its Python blocks, its shell blocks, and the files it tells people to write.

A page is a story: its blocks run in order in one empty folder. A block with a title is a file. Blocks without a language are
not run: they take longer than a test may, need other machines, or show what is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Laconic, forked, program, zygote  # noqa: F401
from tests.documentation.pages import PAGES, blocks, name

RUN = {"python", "sh"}
LONG = {"own-data-and-model.md", "read-the-report.md", "settings.md", "start.md", "tutorial.md", "use-a-result.md"}
"""Pages whose examples take several seconds. They are long tests, which the continuous integration runs, too."""
STORIES = [
    pytest.param(page, id=name(page), marks=[pytest.mark.long] if page.name in LONG else [])
    for page in PAGES
    if any(block.language in RUN for block in blocks(page))
]


def play(page: Path, folder: Path, command: Laconic, python: Callable[[str], str]) -> None:
    """Files are written and commands run; blocks of Python are one program, since later ones use earlier names."""
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "python":
            failure = python(block.text)
            assert not failure, f"{page.name}: {failure}"
        elif block.language == "sh":
            for words in block.commands():
                assert words[0] == "laconic", f"{page.name}: only laconic is run in a block of shell: {words}"
                outcome = command(*words[1:])
                assert outcome.code == 0, f"{page.name}: {' '.join(words)}\n{outcome.stderr}"
                printed = outcome.stdout + outcome.stderr
                assert "collapsed in round" not in printed, f"{page.name}: {' '.join(words)}\n{printed}"


@pytest.mark.parametrize("page", STORIES)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, forked, program) -> None:  # noqa: F811
    play(page, tmp_path, forked, program)


@pytest.mark.parametrize("example", ["python\n1 / 0", "sh\nlaconic run --rounds none", "sh\nls"])
def test_an_example_that_fails_is_found(example: str, tmp_path: Path, forked, program) -> None:  # noqa: F811
    page = tmp_path / "page.md"
    page.write_text(f"```{example}\n```\n")
    with pytest.raises(AssertionError):
        play(page, tmp_path, forked, program)
