"""Laconic: federated learning that says little.

Every algorithm is four parts: what clients compute, how updates travel, how the server moves, how the model travels back.
Every byte that crosses the network is counted.

The public names are listed once, in `__init__.pyi`. Each is imported when it is first used, so `import laconic` is fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
