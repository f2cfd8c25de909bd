"""Laconic: federated learning that says little.

Every algorithm is four parts: what clients compute, how updates travel, how the server moves, how the model travels back.
Every byte that crosses the network is counted.

The public names are listed once, in `__init__.pyi`. Each is imported when it is first used, so `import laconic` is fast.
"""

import os

import lazy_loader

# Torch reads this at its first allocation, and then keeps tensors of 2 MB and more in huge pages (Linux). Page faults of new
# vectors are most of the time outside gradients of a large model: docs/decisions.md, "Large models".
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
