"""How a vector becomes a packet's body and back (algorithms.md, "Compressors").

A compressor chooses entries (places.py) and expresses their values (values.py); `decode` is the way back and knows no
compressor: a body says what it is. `parse_compressor` and `str` are the spelling on the command line. A compressor of one's
own needs nothing but what is named here (docs/guides/add-a-compressor.md).
"""

from laconic.compression.body import BodyWriter
from laconic.compression.codec import Codec
from laconic.compression.compressors.base import COMPRESSORS, Compressor, compressor
from laconic.compression.compressors.chain import Chain
from laconic.compression.compressors.dense import DENSE, Cast, Dense, encode_dense
from laconic.compression.compressors.quantized import QSGD, Uniform
from laconic.compression.compressors.sign import HeavySign, Sign
from laconic.compression.compressors.sparse import RandomK, TopK, encode_exactly, encode_sparse
from laconic.compression.compressors.spelling import AnyCompressor, parse_compressor
from laconic.compression.decoding import decode, decode_dense
from laconic.compression.groups import Bounds, Chosen, Group, spans
from laconic.compression.packet import HEADER_BYTES
from laconic.compression.payload import DensePayload, Payload, SparsePayload, SumPayload
from laconic.compression.positions import write_positions
from laconic.compression.values import write_levels, write_signs

__all__ = [
    "COMPRESSORS",
    "DENSE",
    "HEADER_BYTES",
    "QSGD",
    "AnyCompressor",
    "BodyWriter",
    "Bounds",
    "Cast",
    "Chain",
    "Chosen",
    "Codec",
    "Compressor",
    "Dense",
    "DensePayload",
    "Group",
    "HeavySign",
    "Payload",
    "RandomK",
    "Sign",
    "SparsePayload",
    "SumPayload",
    "TopK",
    "Uniform",
    "compressor",
    "decode",
    "decode_dense",
    "encode_dense",
    "encode_exactly",
    "encode_sparse",
    "parse_compressor",
    "spans",
    "write_levels",
    "write_positions",
    "write_signs",
]
