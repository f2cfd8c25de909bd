"""Runs: config, training loop, callbacks, run directory, evaluation.

The public names are listed in `__init__.pyi`, and imported when they are first used: a command that only reads a config does
not wait for torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
