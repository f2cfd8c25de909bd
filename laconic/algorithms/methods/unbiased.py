"""DIANA and MARINA need an unbiased compressor."""

from __future__ import annotations

from laconic.algorithms.methods.base import Method
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import GroupedCompressor
from laconic.core.errors import ConfigError


def unbiased_compressor(method: Method, uplink: Uplink) -> GroupedCompressor | None:
    """The uplink's compressor, for a method that adds up what is decoded; a biased one is refused."""
    compression = uplink.compression
    if compression is not None and compression.compressor.biased:
        raise ConfigError(
            f"uplink.compressor = {compression.compressor}: {method.name} needs an unbiased compressor, as qsgd:4, "
            "uniform:8 or random_k:1/16, since nothing makes up for what a biased one leaves out; ef21 takes that"
        )
    return compression
