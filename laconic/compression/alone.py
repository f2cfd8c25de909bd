"""Compression without federated learning: from a tensor to a packet and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from laconic.compression.compressors.base import Compressor
from laconic.compression.compressors.grouped import GroupedCompressor
from laconic.compression.decoding import decode_body
from laconic.compression.packet import Buffer, CoreStream, Packet
from laconic.core.errors import PacketError
from laconic.core.layout import Layout, Slot


def encode(tensor: Tensor | np.ndarray, compressor: str | Compressor = "dense", seed: int = 0) -> bytes:
    """Encode a float32 or float64 tensor or array as one self-contained packet: 15 bytes of header and the compressed body.

    Args:
        tensor: A tensor or NumPy array of any shape; it is flattened.
        compressor: A compressor, or its name, such as `top_k:1/64` or `sign@chunk:4096`.
        seed: The seed of a random compressor.

    >>> data = encode(torch.tensor([0.5, -2.0, 0.25, 1.0]), "top_k:1/2")
    >>> decode(data, 4)
    tensor([ 0., -2.,  0.,  1.])
    """
    vector = torch.as_tensor(tensor).detach().flatten()
    layout = vector_layout(vector.numel(), vector.dtype)
    grouped = GroupedCompressor.parse(compressor) if isinstance(compressor, str) else GroupedCompressor(compressor)
    body = grouped.encode(vector, layout, np.random.default_rng(seed))
    return Packet(body, CoreStream.MODEL, layout.fingerprint, 0, 0).to_bytes()


def decode(data: Buffer, size: int) -> Tensor:
    """Decode a packet of `encode`. Raises `PacketError` if the bytes are invalid.

    Args:
        data: The packet.
        size: The number of entries of the tensor that was encoded. The result is flat.
    """
    for dtype in (torch.float32, torch.float64):
        layout = vector_layout(size, dtype)
        try:
            packet = Packet.parse(data, layout)
        except PacketError as error:
            if error.reason != "checksum":
                raise
            continue
        return decode_body(packet.body, layout).dense()
    raise PacketError("checksum", f"damaged on the way, or not a vector of {size} entries")


def vector_layout(size: int, dtype: torch.dtype) -> Layout:
    """The layout of a plain vector: one unnamed parameter."""
    return Layout((Slot("", (size,), 0),), (), dtype)
