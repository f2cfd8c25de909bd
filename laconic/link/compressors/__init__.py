"""How a vector becomes a packet's body and back (algorithms.md, "Compressors").

A compressor chooses entries (places.py) and expresses their values (values.py); `decode` is the way back and knows no
compressor: a body says what it is. `parse_compressor` and `str` are the spelling on the command line. A compressor of one's
own needs nothing but what is named here (docs/guides/add-a-compressor.md).
"""

from laconic.link.body import BodyWriter
from laconic.link.compressors.base import COMPRESSORS, Compressor, compressor
from laconic.link.compressors.chain import Chain
from laconic.link.compressors.codec import Codec
from laconic.link.compressors.decoding import decode, decode_dense
from laconic.link.compressors.dense import DENSE, Cast, Dense, encode_dense
from laconic.link.compressors.groups import Bounds, Chosen, Group, spans
from laconic.link.compressors.payload import DensePayload, Payload, SparsePayload, SumPayload
from laconic.link.compressors.places import write_positions
from laconic.link.compressors.quantised import Qsgd, Uniform
from laconic.link.compressors.sign import HeavySign, Sign
from laconic.link.compressors.sparse import RandomK, TopK, encode_exactly, encode_sparse
from laconic.link.compressors.spelling import AnyCompressor, parse_compressor
from laconic.link.compressors.values import write_levels, write_signs

__all__ = [
    "COMPRESSORS",
    "DENSE",
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
    "Qsgd",
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
