"""The entry point: runs a command, and converts errors to one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from typing import Any

from laconic.cli.app import app
from laconic.core.errors import Interrupted, LaconicError, LaconicWarning, suggestion
from laconic.core.user_code import blamed, one_line


def main() -> None:
    """Run the command line. Expected errors are printed without a traceback, Laconic's warnings without a location."""
    others = warnings.formatwarning

    def one_line_each(message: Any, category: type[Warning], *location: Any, **more: Any) -> str:
        is_ours = issubclass(category, LaconicWarning)
        return f"warning: {message}\n" if is_ours else others(message, category, *location, **more)

    warnings.formatwarning = one_line_each
    try:
        sys.exit(app(standalone_mode=False))
    except Interrupted as stop:
        _print(f"Stopped after round {stop.done}; saved. Continue with:\n  {stop.again}")
        sys.exit(130)
    except Exception as error:
        message, code = _explain(error)
        if message is None:
            raise
        if os.environ.get("LACONIC_TRACEBACK", "0") not in ("", "0"):
            traceback.print_exception(error)
        if message:
            _print(message, error=True)
        sys.exit(code)


def _print(message: str, *, error: bool = False) -> None:
    # Late, for start-up time: most commands that need no torch need no rich either.
    from laconic.cli.console import note, stderr

    if error:
        stderr.print("[red]error:[/red] ", end="", highlight=False)
    note(message)


def _explain(error: Exception) -> tuple[str | None, int]:
    """The error's message and exit code. None as the message marks a bug: the traceback is shown."""
    if isinstance(error, LaconicError):
        return str(error), error.exit_code
    in_user_code = blamed(error)
    if in_user_code is not None:
        location, code = in_user_code
        return f"{location}: {one_line(error)}\n    {code}\n(LACONIC_TRACEBACK=1 shows the whole traceback)", 1
    if isinstance(error, OSError):
        return f"'{error.filename}': {error.strerror}" if error.filename else str(error), 2
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is not None and context is not None:
        known = [name for parameter in context.command.params for name in parameter.opts]
        near = suggestion(option, known) or f"see laconic {context.info_name} --help"
        return f"there is no option '{option}': {near}", 2
    # Typer's usage errors have no public base class, but all of them have this method.
    return (_usage(error, error.format_message()) if hasattr(error, "format_message") else None), 2


def _usage(error: Any, message: str) -> str:
    """The message of a usage error, with what is allowed."""
    parameter, context = getattr(error, "param", None), getattr(error, "ctx", None)
    name, command = getattr(parameter, "name", None), getattr(context, "info_name", None)
    wrong = re.search(r"'([^']*)' is not a valid integer", message)
    if name == "seeds" and wrong:
        return f"--seeds {wrong[1]}: a number of seeds is allowed, such as 3"
    if command == "compare" and name == "algorithms":
        return f"{message.rstrip('.')}, as in: laconic compare fed_avg fed_laconic"
    if command in ("datasets", "models") and "unexpected extra argument" in message:
        return f"laconic {command} takes no name: it lists all; use one with --{command[:-1]} NAME"
    # Typer and Click each add a suggestion.
    return re.sub(r"(Did you mean [^?]*\?)(?: \1)+", r"\1", message)
