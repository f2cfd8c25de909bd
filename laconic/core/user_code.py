"""User functions that a command line or config names: `path/to/file.py:function` or `module:function`."""

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
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from laconic.core.errors import ConfigError

_PREFIX = "laconic_own_"
"""The prefix of module names for user files."""
_PACKAGE = Path(__file__).parent
_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_FOLDERS: set[Path] = set()
"""The folders of user files. Modules imported from there are user code, too."""


_TRUSTED: set[str] = set()
"""Code that the user of this process has named or allowed: absolute spellings."""


class UntrustedCode(ConfigError):
    """A file names code that the user has neither named nor allowed."""

    def __init__(self, source: Path, names: list[str]) -> None:
        # repr: a name must not contain control characters that hide what is asked for.
        what = f"'{source}' runs code of its author: {', '.join(map(repr, names))}"
        super().__init__(f"{what}; if you trust it, add --trust")
        self.what, self.names = what, names


def absolute(name: str) -> str:
    """Make the path of a user's Python file absolute, so that the name is valid in any folder."""
    path, colon, function = name.partition(".py:")
    if colon:
        return f"{Path(f'{path}.py').resolve()}:{function}"
    return str(Path(name).resolve()) if name.endswith(".py") else name


def trust(names: Iterable[str]) -> None:
    """Allow files to name this code, in this process."""
    _TRUSTED.update(map(absolute, names))


def check_trusted(source: Path, names: Iterable[str]) -> None:
    """Raise `UntrustedCode` if a file names code that is not allowed. Call it before any of the code runs."""
    unknown = [name for name in dict.fromkeys(names) if absolute(name) not in _TRUSTED]
    if unknown:
        raise UntrustedCode(source, unknown)


def pickle_own_modules(cloudpickle: ModuleType) -> None:
    """Let this copy of cloudpickle send user files with their code: other processes cannot import them by name."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(_PREFIX):
            cloudpickle.register_pickle_by_value(module)


def display_name(item: type | Callable[..., Any]) -> str:
    """A class or function in messages: `file.py:Name` from a user's file, otherwise `package.module.Name`."""
    if item.__module__.startswith(_PREFIX):
        return f"{Path(str(sys.modules[item.__module__].__file__)).name}:{item.__qualname__}"
    return f"{item.__module__}.{item.__qualname__}"


def is_own(spelling: str) -> bool:
    """Whether a text has the form of a user function.

    >>> [is_own(text) for text in ("nets.py:build", "package.nets:build", "mlq:64", "lenet")]
    [True, True, False, False]
    """
    source, colon, function = spelling.rpartition(":")
    return bool(source and colon) and function.isidentifier()


def load_function(spelling: str, key: str) -> Callable[..., Any]:
    """Load a user function; every failure is a `ConfigError` of one line that starts with the config's `key`."""
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


class _SourceLoader(SourceFileLoader):
    """Compiles a file every time: cached bytecode would miss a change within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def import_file(path: Path) -> ModuleType:
    """Run a file as a module. Exceptions of the file propagate."""
    path = path.resolve()
    _FOLDERS.add(path.parent)
    # Files with the same name need different modules, and pickling classes needs a registered module.
    name = f"{_PREFIX}{path.stem}_{blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    specification = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
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
    """Run user files that define parts (compressors, methods, links, optimizers), once per process."""
    for file in files:
        path = Path(file).resolve()
        if path not in LOADED:
            _load_file(path, "--import")
            LOADED.add(path)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Allow imports from a folder, as Python does for a script's folder."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def line_in(path: Path, error: BaseException) -> str:
    """The innermost line of the file in the traceback, as `:12`."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f":{error.lineno}"
    lines = [line for file, line in _steps(error) if file == path.resolve()]
    return f":{lines[-1]}" if lines else ""


def _steps(error: BaseException) -> Iterator[tuple[Path, int]]:
    """File and line of every frame of the traceback, the innermost last."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield Path(frame.f_code.co_filename), line


def blamed(error: BaseException) -> tuple[str, str] | None:
    """The innermost line of user code in the traceback, as `file.py:12`, and its source; None without user code.

    An error that Laconic raises in a call from user code counts as that line's.
    """
    steps = [step for step in _steps(error) if step[0].parent in _FOLDERS and not step[0].is_relative_to(_PACKAGE)]
    if not steps:
        return None
    path, line = steps[-1]
    relative = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{relative}:{line}", linecache.getline(str(path), line).strip()


def failure(what: str, error: BaseException) -> ConfigError:
    """An exception of user code as a `ConfigError` of one line."""
    return ConfigError(f"{what}: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """The type and message of an exception, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _load_module(source: str, key: str) -> ModuleType:
    try:
        module = importlib.import_module(source)
        file = getattr(module, "__file__", None)
        # Installed packages are not user code.
        if file is not None and not any(Path(file).is_relative_to(folder) for folder in _INSTALLED):
            _FOLDERS.add(Path(file).parent)
        return module
    except ModuleNotFoundError as error:
        # The user probably meant a file if the module itself is missing, but not if one of its imports is.
        missing = f"{source}.".startswith(f"{error.name}.")
        hint = " (for a file write path/to/file.py:function)" if missing else ""
        raise ConfigError(f"{key}: cannot import '{source}': {' '.join(str(error).split())}{hint}") from error
    except Exception as error:
        raise failure(f"{key}: cannot import '{source}'", error) from error
