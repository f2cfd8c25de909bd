"""Runs: config, training loop, callbacks, run directory, evaluation.

`__init__.pyi` lists the public names. Each is imported on first use, so that a command that only reads a config does not
import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
