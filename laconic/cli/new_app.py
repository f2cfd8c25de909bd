"""The command new-app, which creates a Flower app from templates/new_app."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from laconic.cli.console import say
from laconic.core.errors import ConfigError

TEMPLATES = Path(__file__).parent / "templates" / "new_app"


def new_app(name: Path, nodes: int) -> None:
    """Create the app, and print how to run it."""
    for path in write_app(name, nodes):
        say(str(path))
    say(f"Run it with: flwr run {name} SUPERLINK --stream (see docs/deploy.md)")


def write_app(folder: Path, nodes: int = 3) -> list[Path]:
    """Create the app in a new folder; returns the paths of its files."""
    if folder.exists():
        raise ConfigError(f"'{folder}': exists already; choose another name")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", folder.name):
        raise ConfigError(f"'{folder.name}': lowercase letters, digits, - and _ are allowed")
    package = folder.name.replace("-", "_")
    written = []
    for template in sorted(TEMPLATES.rglob("*.template")):
        relative = template.relative_to(TEMPLATES).with_suffix("")
        path = folder / (Path(package, relative.name) if relative.parent.name == "package" else relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = Template(template.read_text())
        path.write_text(text.substitute(name=folder.name, package=package, nodes=nodes))
        written.append(path)
    return written
