"""DIANA and MARINA need an unbiased compressor."""

from __future__ import annotations

from laconic.algorithms.methods.base import Method
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyCompressor
from laconic.core.errors import ConfigError


def unbiased_compressor(method: Method, uplink: Uplink) -> AnyCompressor | None:
    """The uplink's compressor, for a method that adds up what is decoded; a biased one is refused."""
    compressor: AnyCompressor | None = uplink.parameters().get("compressor")
    if compressor is not None and compressor.biased:
        raise ConfigError(
            f"uplink.compressor = {compressor}: {method.name} needs an unbiased compressor, as qsgd:4, uniform:8 or "
            "random_k:1/16, since nothing makes up for what a biased one leaves out; ef21 takes that"
        )
    return compressor
