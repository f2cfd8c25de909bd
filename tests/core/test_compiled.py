"""The cache of compiled kernels when processes compile at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KERNEL = """
import time
import numpy as np
from numba.core import caching
from laconic.core.compiled import kernel

@kernel
def total(values):
    result = 0.0
    for value in values:
        result += value
    return result
"""
SLOW = """
save = caching.IndexDataCacheFile._save_index
def slowly(self, overloads):
    time.sleep(0.5)
    save(self, overloads)
caching.IndexDataCacheFile._save_index = slowly
"""
TYPES = ("float32", "float64", "int64")


def test_processes_that_compile_at_once_do_not_mix_their_code(tmp_path: Path) -> None:
    module = tmp_path / "own_kernel.py"
    module.write_text(KERNEL)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])

    def start(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    compiling = f"from own_kernel import *\n{SLOW}\n"
    started = [start(compiling + f"print(total(np.arange(5, dtype={name!r})))") for name in TYPES]
    assert [process.communicate()[0].strip() for process in started] == ["10.0"] * len(TYPES)
    calls = "".join(f"total(np.arange(5, dtype={name!r}))\n" for name in TYPES)
    loaded = start(f"from own_kernel import *\n{calls}print(sum(total.stats.cache_hits.values()))")
    out, problems = loaded.communicate()
    assert out.strip() == str(len(TYPES)), problems
