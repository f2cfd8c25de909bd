"""A person's own functions, named on the command line or in a config: `path/to/file.py:function` or `module:function`."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from laconic.core.errors import ConfigError

_PREFIX = "laconic_own_"
"""Begins the names of modules that were made from files."""
_PACKAGE = Path(__file__).parent
_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_FOLDERS: set[Path] = set()
"""Where the person's files lie that were run: what they import from beside them is the person's, too."""


def own_modules() -> list[ModuleType]:
    """The modules that were made from a person's files."""
    return [module for name, module in sys.modules.items() if name.startswith(_PREFIX)]


def is_own(spelling: str) -> bool:
    """Whether a spelling has the form of a person's own function.

    >>> [is_own(text) for text in ("nets.py:build", "package.nets:build", "mlq:64", "lenet")]
    [True, True, False, False]
    """
    source, colon, function = spelling.rpartition(":")
    return bool(source and colon) and function.isidentifier()


def load_function(spelling: str, key: str) -> Callable[..., Any]:
    """The function of that spelling; every failure is one line that begins with the config's `key`."""
    if not is_own(spelling):
        raise ConfigError(f"{key}: '{spelling}': write path/to/file.py:function or module:function")
    source, _, name = spelling.rpartition(":")
    module = _load_file(Path(source), key) if source.endswith(".py") else _load_module(source, key)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{key}: '{source}' has no function '{name}'")
    return function  # type: ignore[no-any-return]


def _load_file(path: Path, key: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file '{path}'")
    try:
        with importable(path.parent):
            return import_file(path)
    except (Exception, SystemExit) as error:
        raise failure(f"{key}: cannot load '{path}'{line_in(path, error)}", error) from error


def import_file(path: Path) -> ModuleType:
    """Run a file as a module; whatever it raises comes through."""
    path = path.resolve()
    _FOLDERS.add(path.parent)
    # Two files of one name must not share a module, and classes need a registered module to be pickled.
    name = f"{_PREFIX}{path.stem}_{blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


LOADED: set[Path] = set()
"""Files whose parts are registered."""


def load_parts(files: Iterable[str]) -> None:
    """Run a person's files that define parts: compressors, methods, links, optimizers. Each runs once in a process."""
    for file in files:
        path = Path(file).resolve()
        if path not in LOADED:
            _load_file(path, "--import")
            LOADED.add(path)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let a person's file import its neighbors, as it could if Python ran it."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def line_in(path: Path, error: BaseException) -> str:
    """The deepest line of the person's file that led to the error, as `:12`."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f":{error.lineno}"
    lines = [line for file, line in _steps(error) if file == path.resolve()]
    return f":{lines[-1]}" if lines else ""


def _steps(error: BaseException) -> Iterator[tuple[Path, int]]:
    """File and line of every call on the way to the error, the deepest last."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield Path(frame.f_code.co_filename), line


def blamed(error: BaseException) -> tuple[str, str] | None:
    """The deepest line of a person's own file on the way to an error, as `file.py:12`, and its code; None without one.

    What our own functions raise when such a file calls them counts as the file's: it is the line to look at first.
    """
    own = [step for step in _steps(error) if step[0].parent in _FOLDERS and not step[0].is_relative_to(_PACKAGE)]
    if not own:
        return None
    path, line = own[-1]
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{line}", linecache.getline(str(path), line).strip()


def failure(what: str, error: BaseException) -> ConfigError:
    """A person's exception as one line."""
    return ConfigError(f"{what}: {said(error)}")


def said(error: BaseException) -> str:
    """An exception's kind and message, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _load_module(source: str, key: str) -> ModuleType:
    try:
        module = importlib.import_module(source)
        file = getattr(module, "__file__", None)
        # What is installed is not the person's to mend.
        if file is not None and not any(Path(file).is_relative_to(place) for place in _INSTALLED):
            _FOLDERS.add(Path(file).parent)
        return module
    except ModuleNotFoundError as error:
        # A path is the likely wish only if the name itself is missing, not if something that it imports is.
        missing = f"{source}.".startswith(f"{error.name}.")
        hint = " (for a file write path/to/file.py:function)" if missing else ""
        raise ConfigError(f"{key}: cannot import '{source}': {' '.join(str(error).split())}{hint}") from error
    except Exception as error:
        raise failure(f"{key}: cannot import '{source}'", error) from error
