"""Errors for users. Each message is one line that names the problem and what is allowed."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

MOST_NAMED = 30
"""Maximum number of allowed names in an error, if a command lists them."""


class LaconicError(Exception):
    """Base of all errors that Laconic raises. The command line prints the message and exits with `exit_code`."""

    exit_code: ClassVar[int] = 2


class ConfigError(LaconicError):
    """An invalid setting. The message names the key, the value and what is allowed."""


class DataError(LaconicError):
    """Data that is missing, corrupt or incompatible."""


class PacketError(LaconicError):
    """Invalid bytes from outside the process; `reason` is a short machine-readable word."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self._detail = reason, detail

    def __reduce__(self) -> tuple[type[PacketError], tuple[str, str]]:
        # Exceptions with several arguments need this to be pickled, for other processes.
        return type(self), (self.reason, self._detail)


def missing_extra(what: str, extra: str) -> ConfigError:
    """The error for a package that an extra of Laconic installs. `what` starts the message."""
    return ConfigError(f"{what}: in the folder of the clone, pip install -c constraints.txt -e '.[{extra}]'")


class LaconicWarning(UserWarning):
    """Valid settings or data that are probably not what the user meant. The message is one line."""


class KindWarning(LaconicWarning):
    """The kind of task, which the targets suggest, may be the wrong one. A task with its own loss does not depend on it."""


def warn(message: str, category: type[LaconicWarning] = LaconicWarning) -> None:
    """Issue a warning at the line of the user's code that called Laconic. Python shows it once per line."""
    frame, level = sys._getframe(1), 2
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class Interrupted(Exception):
    """The user stopped a run. Everything is saved."""

    def __init__(self, directory: Path, done: int) -> None:
        super().__init__(f"stopped after round {done}")
        self.done = done
        self.again = f"laconic run {shlex.quote(str(directory))} --resume"
        """The command that resumes the run."""


def suggestion(name: str, names: Iterable[str]) -> str:
    """A suggestion for a wrong name: its plural, names that contain it as a word, or else the closest one; "" without any.

    >>> print(suggestion("learning_rate", ["local_lr", "rounds", "server_lr"]))
    did you mean 'local_lr' or 'server_lr'?
    """
    known = list(names)
    word = re.sub("learning[-_]?rate", "lr", name.strip("-"))
    near = (
        [other for other in known if other.strip("-").lower() in (word.lower(), f"{word.lower()}s")]
        or [other for other in known if word in re.split("[-_]+", other)]
        or difflib.get_close_matches(name, known, n=1)
    )
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def unknown_name(
    kind: str, name: str, allowed: Iterable[str], of: str = "", importable: bool = False, listed: str = ""
) -> ConfigError:
    """The error for an unknown name, with a suggestion and the allowed names.

    Args:
        kind: What the name should name.
        name: The unknown name.
        allowed: The known names.
        of: What the names belong to.
        importable: Whether users can register more names.
        listed: Where all names are listed. A suggestion then replaces the list, and a long list is left out.

    >>> print(unknown_name("ranking", "byte", ["bytes", "time"]))
    unknown ranking 'byte': did you mean 'bytes'? allowed: bytes, time
    >>> print(unknown_name("algorithm", "fed_agv", ["fed_avg", "fed_ams"], listed="`laconic algorithms`"))
    unknown algorithm 'fed_agv': did you mean 'fed_avg'? `laconic algorithms` lists all
    """
    names = sorted(allowed)
    near = suggestion(name, names)
    hint = f"{near} " if near else ""
    owner = f" of {of}" if of else ""
    known = f"allowed: {', '.join(names)}" if names else "none is allowed: it has none"
    if listed and (near or len(names) > MOST_NAMED):
        known = f"{listed} lists all"
    own = "; import your own with --import FILE" if importable else ""
    return ConfigError(f"unknown {kind} '{name}'{owner}: {hint}{known}{own}")
