"""The check for methods that need an unbiased compressor, DIANA and MARINA."""

from __future__ import annotations

from laconic.algorithms.methods.base import Method
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import GroupedCompressor
from laconic.core.errors import ConfigError


def unbiased_compressor(method: Method, uplink: Uplink) -> GroupedCompressor | None:
    """The uplink's compressor; `ConfigError` if it is biased."""
    compression = uplink.compression
    if compression is not None and compression.compressor.biased:
        raise ConfigError(
            f"uplink.compressor = {compression.compressor}: {method.name} needs an unbiased compressor, such as qsgd:4, "
            "uniform:8 or random_k:1/16, since it does not correct a bias; ef21 does"
        )
    return compression
