"""Check that this work tree computes the same numbers as another commit.

    python tools/same_numbers.py BASE                 # every case, in commit BASE and in the work tree as it is now
    python tools/same_numbers.py BASE --only ray/     # cases whose name has that text, or fits that pattern
    python tools/same_numbers.py BASE --skip ray/     # all others

Exit 0 if nothing differs, else 1. The outcomes of BASE are cached in the user's cache folder. The work tree is always
measured, from a copy, so that it can be edited meanwhile. Cases with data sets other than digits need LACONIC_DATA and are
skipped if the data set's folder is missing, and cases with a recipe or compressor that BASE does not have.
same_numbers_cases.py defines the cases and how each side spells them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import inspect
import io
import json
import os
import platform
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import deque
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import platformdirs
from same_numbers_cases import CASES, COMMON, FILES, Case, Words, base_words, registered, renamed, uses

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = (
    *("model_sha256", "bytes_up", "bytes_down", "gradients", "paper_bits_up", "paper_bits_down", "samples"),
    *("loss", "accuracy", "simulated_seconds", "epsilon", "cut_off", "lost", "refused", "records_sha256"),
)
"""What is compared: keys that `laconic run --json` promises, and of cases `measure/` all that metrics.jsonl has."""
PACKAGES = ("torch", "numpy", "numba", "ray", "flwr")
"""Packages whose version is part of the cache key."""
LONGEST = 300
"""Timeout of a case in seconds."""
DIED = "its process ended with"
UNSURE = (DIED, "TimeoutError")
"""Beginnings of transient errors, which are not cached."""
DEFAULT_CACHE = Path(platformdirs.user_cache_dir("laconic")) / "same_numbers.json"

Outcome = dict[str, Any]
"""Of a case: its numbers, or its `error`; and its `seconds`."""


# ---- One side's process: it answers each line on stdin, a name, common options and a spelling, with a line.


def flower_base(folder: Path, label: str) -> Outcome:
    """Three nodes in one process, by the helpers of the side's own tests."""
    from tests.flower.small_federation import federation, run

    result = run(federation(folder), folder, label, rounds=5, deadline=60.0)
    return {"model_sha256": result.model_sha256, **result.ledger.totals()}


flower_now = flower_base
"""The same with the work tree's helpers: write it out once they have another form."""


def serve(side: str, root: Path) -> None:
    """Answer until there are no more questions."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    import laconic

    if not Path(laconic.__file__).is_relative_to(root):
        sys.exit(f"{laconic.__file__} is not below {root}: another laconic hides the one to be measured")
    print("ready", file=answers, flush=True)
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)  # for good, since Ray's processes are where this one is
        for file, text in FILES.items():
            Path(file).write_text(text)
        for line in sys.stdin:
            started = time.perf_counter()
            signal.alarm(LONGEST)
            outcome = _outcome(side, *json.loads(line))
            signal.alarm(0)
            for left in (path for path in Path.cwd().iterdir() if path.is_dir()):
                shutil.rmtree(left)
            print(json.dumps(outcome | {"seconds": round(time.perf_counter() - started, 2)}), file=answers, flush=True)
        os.chdir(root)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not done after {LONGEST} s")


def _outcome(side: str, name: str, common: str, spelling: str) -> Outcome:
    output, complaints = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaints):
            if name.startswith("flower/"):
                found = (flower_base if side == "base" else flower_now)(Path.cwd(), spelling)
            else:
                for arguments in spelling.split("&&"):
                    _command_line("run", *shlex.split(f"{common} {arguments}"))
                found = json.loads(output.getvalue().splitlines()[-1])
    except SystemExit:
        text = complaints.getvalue()
        return {"error": " ".join(text[max(text.rfind("error:"), 0) :].split())}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".replace(str(Path.cwd()), ".")}
    numbers = {key: found.get(key) for key in NUMBERS}
    return numbers | ({"records_sha256": _records(Path("run/metrics.jsonl"))} if name.startswith("measure/") else {})


def _command_line(*arguments: str) -> None:
    """`laconic …` in this process."""
    sys.argv = ["laconic", *arguments]
    try:
        runpy.run_module("laconic", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


def _records(path: Path) -> str:
    """All numbers of a run's records but the seconds they took, whatever their names are."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    leaves = [sorted(map(repr, _leaves({**record, "seconds": None}))) for record in lines]
    return hashlib.sha256(json.dumps(leaves).encode()).hexdigest()


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        return [leaf for each in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(each)]
    return [value]


# ---- Both sides.


class Side:
    """A copy of the code, and processes that run cases in it."""

    def __init__(self, name: str, root: Path, words: Words, verbose: bool) -> None:
        self.name, self.root, self.verbose = name, root, verbose
        self.common, self.spelling = words
        self.outcomes: dict[str, Outcome] = {}
        self.broken = False
        """Whether its processes do not even start."""

    def measure(self, cases: list[Case], jobs: int) -> None:
        """Fill `outcomes`; the cases of Ray in one process, which starts it once, and those of Flower in another."""
        shared: deque[Case] = deque()
        own: list[deque[Case]] = [deque() for _ in range(max(1, jobs))]
        for case in cases:
            special = {"ray": own[0], "flower": own[-1]}
            special.get(case.name.partition("/")[0], shared).append(case)
        lanes = [threading.Thread(target=self._lane, args=(queue, shared), daemon=True) for queue in own]
        started = time.perf_counter()
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        print(f"{self.name}: {len(cases)} cases in {time.perf_counter() - started:.0f} s", file=sys.stderr)

    def _lane(self, own: deque[Case], shared: deque[Case]) -> None:
        process = None
        while (own or shared) and not self.broken:
            process = process or self._start()
            try:
                case = (own or shared).popleft()
            except IndexError:
                break
            if (outcome := _ask(process, case.name, self.common, self.spelling(case))) is None:
                outcome, process = {"error": f"{DIED} {process.wait()}", "seconds": 0.0}, None
            self.outcomes[case.name] = outcome
            if self.verbose:
                print(f"{self.name:5}{outcome['seconds']:7.2f} s  {case.name}", file=sys.stderr)
        if process is not None:
            process.stdin.close()
            process.wait()

    def _start(self) -> subprocess.Popen[str]:
        own = {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "LACONIC_OFFLINE": "1"}
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", self.name, str(self.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.root,
            env=os.environ | own,
            start_new_session=True,  # Ctrl-C is for us; it ends when its stdin does
        )
        self.broken |= process.stdout.readline() != "ready\n"
        return process


def _ask(process: subprocess.Popen[str], *question: str) -> Outcome | None:
    """The outcome; None if the process has died."""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line else None


def git(*arguments: str) -> bytes:
    """What git says of this work tree."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, stdout=subprocess.PIPE).stdout


def copy_commit(commit: str, folder: Path) -> None:
    """The files of a commit."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        archive.extractall(folder, filter="data")


def copy_work_tree(folder: Path) -> None:
    """The files as they are now, also those that are new."""
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


class Cache:
    """Outcomes in one commit, kept in a file that has those of others, too."""

    def __init__(self, path: Path, commit: str, base: Side) -> None:
        present = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
        versions = [platform.python_version(), platform.machine(), *(present.get(name) for name in PACKAGES)]
        means = json.dumps([base.common, FILES, NUMBERS, versions, inspect.getsource(flower_base)])
        # One table for each commit, and for whatever else the numbers depend on.
        self.path, self.base = path, base
        self.key = f"{commit} {hashlib.sha256(means.encode()).hexdigest()[:12]}"

    def _read(self) -> dict[str, dict[str, Outcome]]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def get(self, cases: list[Case]) -> dict[str, Outcome]:
        """What is known, by the cases' names."""
        known = self._read().get(self.key, {})
        return {case.name: known[self._key(case)] for case in cases if self._key(case) in known}

    def put(self, cases: list[Case], outcomes: dict[str, Outcome]) -> None:
        """Keep outcomes, but not of what may go better another time."""
        table = self._read()
        sure = [c for c in cases if c.name in outcomes and not outcomes[c.name].get("error", "").startswith(UNSURE)]
        table[self.key] = table.get(self.key, {}) | {self._key(case): outcomes[case.name] for case in sure}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(table, indent=0))
        new.replace(self.path)

    def _key(self, case: Case) -> str:
        return f"{case.name}: {self.base.spelling(case)}"


def lacks(case: Case, base: Side) -> str | None:
    """Why a case cannot be run here, or in BASE."""
    kinds = zip(("recipe", "compressor"), uses(base.spelling(case)), registered(base.root), strict=True)
    for kind, used, known in kinds:
        if known and (missing := sorted(used - set(known))):
            return f"BASE has no {kind} {missing[0]}"
    words = shlex.split(case.arguments)
    if "--dataset" not in words:
        return None
    name = words[words.index("--dataset") + 1]
    folder = os.environ.get("LACONIC_DATA")
    return None if folder and (Path(folder) / name).is_dir() else f"no folder {name} in LACONIC_DATA"


def differences(before: Outcome, after: Outcome) -> dict[str, tuple[Any, Any]]:
    """What is not the same, by its name."""
    if "error" in before or "error" in after:
        same = before.get("error") == after.get("error")
        return {} if same else {"error": (before.get("error"), after.get("error"))}
    return {key: (before.get(key), after.get(key)) for key in NUMBERS if before.get(key) != after.get(key)}


# ---- What a person sees.


def main() -> int:
    """Measure, compare, tell."""
    parser = _parser()
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], Path(given.serve[1]))
        return 0
    cases = [case for case in CASES if _fits(case, given.only or [""]) and not _fits(case, given.skip)]
    if given.list:
        _list(cases)
        return 0
    if given.base is None or not cases:
        parser.error("BASE is missing" if given.base is None else "no case has such a name")
    commit = git("rev-parse", "--verify", f"{given.base}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder).resolve()
        copy_commit(commit, root / "base")
        copy_work_tree(root / "now")
        base = Side("base", root / "base", base_words(root / "base"), given.verbose)
        now = Side("now", root / "now", (renamed(COMMON), lambda case: case.spelling("now")), given.verbose)
        skipped = {case.name: reason for case in cases if (reason := lacks(case, base))}
        before, after = _measure(commit, base, now, [case for case in cases if case.name not in skipped], given)
    return tell(commit, before, after, skipped, given.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", nargs="?", help="a commit")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="cases whose name has or fits it")
    parser.add_argument("--skip", metavar="PATTERN", action="append", default=[], help="not these")
    parser.add_argument("--list", action="store_true", help="show the cases and how they are spelled")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--verbose", action="store_true", help="show the seconds of each case")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where outcomes of BASE are kept")
    parser.add_argument("--fresh", action="store_true", help="measure BASE again, whatever is kept of it")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    return parser


def _list(cases: list[Case]) -> None:
    print(f"all but flower/: laconic run {COMMON} …")
    for case in cases:
        now = "" if case.spelling("now") == case.arguments else f"  ->  {case.spelling('now')}"
        print(f"{case.name:40} {case.arguments}{now}")


def _measure(
    commit: str, base: Side, now: Side, cases: list[Case], given: argparse.Namespace
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """The outcomes of the commit, as far as possible from the cache, and those of the work tree."""
    cache = Cache(given.cache, commit, base)
    known = {} if given.fresh else cache.get(cases)
    missing = [case for case in cases if case.name not in known]
    if missing:
        try:
            base.measure(missing, given.jobs)
        finally:
            cache.put(missing, base.outcomes)
    now.measure(cases, given.jobs)
    before = known | base.outcomes
    for where, side, outcomes in ((f"commit {commit[:8]}", base, before), ("the work tree", now, now.outcomes)):
        if side.broken or len(outcomes) < len(cases):
            sys.exit(f"{where}: {'laconic does not start' if side.broken else 'not all cases were run'}, see above")
    return before, now.outcomes


def _fits(case: Case, patterns: list[str]) -> bool:
    return any(fnmatchcase(case.name, f"*{pattern}*") for pattern in patterns)


def tell(
    commit: str, before: dict[str, Outcome], after: dict[str, Outcome], skipped: dict[str, str], as_json: bool
) -> int:
    """Print what differs; the exit code."""
    found = {name: differences(before[name], after[name]) for name in sorted(after)}
    differing = {name: each for name, each in found.items() if each}
    failing = {name: before[name]["error"] for name in found if name not in differing and "error" in before[name]}
    if as_json:
        print(
            json.dumps({"base": commit, "cases": len(found), "differ": differing, "fail": failing, "skipped": skipped})
        )
        return int(bool(differing))
    for name, each in differing.items():
        changes = [f"{key} {_short(was)} -> {_short(is_now)}" for key, (was, is_now) in each.items()]
        print(f"{name:40} {', '.join(changes)}")
    for name, error in failing.items():
        print(f"fails on both: {name}: {error}")
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}")
    counts = f"{len(differing)} differ, {len(failing)} fail on both, {len(skipped)} skipped"
    print(f"{len(found)} cases against {commit[:8]}: {counts}")
    return int(bool(differing))


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text


if __name__ == "__main__":
    sys.exit(main())
