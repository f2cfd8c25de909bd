"""Compression of vectors, usable on its own: `encode(tensor, "top_k:1/64")`, `decode(data, size)`.

A compressor maps a group of entries to a form (forms.py): levels, powers of two, signs, kept entries, or plain values.
Decoding does not need the compressor, since a body names its codec. The packet format is specified in
docs/reference/wire-format.md. To add a compressor see docs/guides/add-a-compressor.md.
"""

from laconic.compression.alone import decode, encode
from laconic.compression.codec import Codec
from laconic.compression.compressors.base import COMPRESSORS, Compressor, compressor
from laconic.compression.compressors.budgeted import DeadZone, Stochastic
from laconic.compression.compressors.chain import Chain
from laconic.compression.compressors.dense import Cast, Dense, encode_dense
from laconic.compression.compressors.eden import Eden
from laconic.compression.compressors.grouped import DENSE, AnyGroupedCompressor, GroupedCompressor
from laconic.compression.compressors.natural import Natural
from laconic.compression.compressors.quantized import QSGD, Uniform
from laconic.compression.compressors.sign import HeavySign, Sign
from laconic.compression.compressors.sparse import RandomK, TopK, encode_exactly, encode_sparse
from laconic.compression.compressors.spelling import AnyCompressor, parse_compressor, split_granularity
from laconic.compression.decoding import body_norm, decode_body, decode_dense, is_zero
from laconic.compression.forms import Form, Kept, Levels, Powers, Signs, Values
from laconic.compression.groups import Granularity
from laconic.compression.packet import HEADER_BYTES
from laconic.compression.payload import DensePayload, Payload, SparsePayload, SumPayload, sum_norm

__all__ = [
    "COMPRESSORS",
    "DENSE",
    "HEADER_BYTES",
    "QSGD",
    "AnyCompressor",
    "AnyGroupedCompressor",
    "Cast",
    "Chain",
    "Codec",
    "Compressor",
    "DeadZone",
    "Dense",
    "DensePayload",
    "Eden",
    "Form",
    "Granularity",
    "GroupedCompressor",
    "HeavySign",
    "Kept",
    "Levels",
    "Natural",
    "Payload",
    "Powers",
    "RandomK",
    "Sign",
    "Signs",
    "SparsePayload",
    "Stochastic",
    "SumPayload",
    "TopK",
    "Uniform",
    "Values",
    "body_norm",
    "compressor",
    "decode",
    "decode_body",
    "decode_dense",
    "encode",
    "encode_dense",
    "encode_exactly",
    "encode_sparse",
    "is_zero",
    "parse_compressor",
    "split_granularity",
    "sum_norm",
]
