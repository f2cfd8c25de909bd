"""The compiled kernels on a CPU without AVX-512, and where Numba has no folder to write to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

AVX2 = "+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt"


@pytest.mark.parametrize(
    ("name", "features", "folder", "expected"),
    [
        pytest.param("haswell", AVX2, "cache", 32, id="AVX2", marks=pytest.mark.long),
        pytest.param(None, None, "file/cache", None, id="no cache"),
    ],
)
def test_the_kernels_agree_with_torch(
    tmp_path: Path, name: str | None, features: str | None, folder: str, expected: int | None
) -> None:
    (tmp_path / "file").touch()
    settings = {"NUMBA_CACHE_DIR": str(tmp_path / folder), "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    environment = os.environ | {key: value for key, value in settings.items() if value is not None}
    script = Path(__file__).with_name("other_machine.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    width, error = done.stdout.split()
    assert float(error) < 1e-5
    assert expected in (None, int(width))
    assert (tmp_path / "cache").exists() == (folder == "cache")
