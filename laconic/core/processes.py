"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From Linux's `prctl.h`: the signal that a process gets when its parent ends."""


def end_with(parent: int) -> None:
    """End this process when its parent is gone, even if that was killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent has ended before the call
            os.kill(os.getpid(), signal.SIGTERM)
