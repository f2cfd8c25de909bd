"""MkDocs hooks: the command-line reference, links to code, notebooks, labels, and pages that rank last in the search."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    # MkDocs shows every warning, including those between libraries.
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer

    from laconic.cli.app import app

MARK = "<!-- commands -->"
LAST = {"reproductions.md", "decisions.md"}
"""Long pages that mention every topic and would otherwise rank before the topic's own page."""
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:laconic/[^)]+|CONTRIBUTING|SECURITY)\.(?:py|md)\)")
"""Links to files that are not part of the site. They work in a clone; on the site their text is left."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the commands where the mark is, and leave out links to files that the site does not have."""
    if page.file.src_uri in LAST or page.file.src_uri.startswith("reproductions/"):
        page.meta["search"] = {"boost": 0.2}
    markdown = OUTSIDE.sub(r"\1", markdown).replace("](../../examples/", "](../examples/")
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the notebooks, which are outside of the folder of the documentation."""
    from mkdocs.structure.files import File

    for path in sorted((Path(config["config_file_path"]).parent / "examples").glob("*.ipynb")):
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Mark long code within text. Short code stays in one line."""
    return re.sub(r"<code>([^<]{31,})</code>", r'<code class="long">\1</code>', html)


def on_post_page(output: str, **_: Any) -> str:
    """Label the search, which the theme opens as a dialog, for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def commands() -> str:
    """Every command with its arguments and options, from the code that reads them."""
    pieces: list[str] = []
    shared = _shared()
    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        own = [each for each in command.params if not _is_shared(each, shared)]
        has_all = len(command.params) - len(own) == len(shared)
        pieces += [f"## laconic {name}", "", command.help or "", "", *_table(own if has_all else command.params)]
        if has_all:
            pieces += ["", "And the [options of a run](#options-of-a-run)."]
        pieces.append("")
    pieces += [
        "## Options of a run",
        "",
        "What run, compare, tune, sweep and advise have in common.",
        "",
        *_table(list(shared.values())),
    ]
    return "\n".join(pieces)


def _shared() -> dict[str, Any]:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    both = {each.name for each in known["run"].params} & {each.name for each in known["tune"].params}
    own = {"config", "algorithm", "out", "help"}
    return {each.name: each for each in known["run"].params if each.name in both - own}


def _is_shared(parameter: Any, shared: dict[str, Any]) -> bool:
    """Whether a parameter is an option of a run. Options of the same name with another type are the command's own."""
    like = shared.get(parameter.name)
    return like is not None and (parameter.opts, parameter.type.name) == (like.opts, like.type.name)


def _table(parameters: list[Any]) -> list[str]:
    shown = [each for each in parameters if each.name != "help"]
    if not shown:
        return ["No options."]
    rows = ["| option | what it does |", "|---|---|"]
    for each in shown:
        spelled = (
            "`, `".join([*each.opts, *each.secondary_opts]) if each.param_type_name == "option" else each.name.upper()
        )
        text = " ".join((getattr(each, "help", None) or "").split())
        rows.append(f"| `{spelled}` | {text.replace('|', chr(92) + '|')} |")
    return rows
