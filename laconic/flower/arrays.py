"""The arrays of a Flower app's ArrayRecord as one vector, which links compress, and the arrays that travel as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from laconic.core.errors import PacketError
from laconic.core.layout import Layout, Slot

FLOATS = ("float16", "float32", "float64")
EXACT = ("*running_mean", "*running_var")
"""Arrays that are not compressed by default: a variance with a compression error can be negative."""
MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class Entry:
    """One array of a record."""

    name: str
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=MOST_DIMENSIONS)]
    dtype: str
    """Empty for an array that is not compressed. Flower's mean of integers is of another type than the integers."""

    @property
    def compressed(self) -> bool:
        """Whether the array is a slice of the vector."""
        return self.dtype != ""


_ENTRIES = TypeAdapter(tuple[Entry, ...])


@dataclass(frozen=True)
class ArrayTable:
    """The arrays of one record, in order. Compressed ones are slices of a vector."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord, exact: Sequence[str] = EXACT) -> ArrayTable:
        """The table of a record. Integers, scalars, infinities, and names that match `exact` are not compressed."""
        return cls(
            tuple(
                Entry(name, tuple(array.shape), array.dtype if _is_compressed(name, array, exact) else "")
                for name, array in arrays.items()
            )
        )

    @classmethod
    def parse(cls, text: str) -> ArrayTable:
        """The inverse of `text`, for text from outside."""
        try:
            table = cls(_ENTRIES.validate_json(text))
        except ValidationError:
            raise PacketError("record", "not a table of arrays") from None
        if any(entry.compressed and entry.dtype not in FLOATS for entry in table.entries):
            raise PacketError("record", "a compressed array that is not of a floating type")
        return table

    @cached_property
    def text(self) -> str:
        """The table as JSON."""
        return _ENTRIES.dump_json(self.entries).decode()

    @cached_property
    def key(self) -> str:
        """A short hash: messages name the table by it."""
        return blake2b(self.text.encode(), digest_size=6).hexdigest()

    @cached_property
    def layout(self) -> Layout:
        """The layout of the vector. It is of float64 if one of the arrays is."""
        slots, offset = [], 0
        for entry in self.entries:
            if entry.compressed:
                slots.append(Slot(entry.name, entry.shape, offset))
                offset += slots[-1].size
        wide = any(entry.compressed and entry.dtype == "float64" for entry in self.entries)
        return Layout(tuple(slots), (), torch.float64 if wide else torch.float32)

    def fits(self, arrays: ArrayRecord) -> bool:
        """Whether a record has exactly these arrays. Floats may be of another type: FedAdam's model is of float64."""
        return len(arrays) == len(self.entries) and all(
            entry.name in arrays
            and tuple(arrays[entry.name].shape) == entry.shape
            and (not entry.compressed or arrays[entry.name].dtype in FLOATS)
            for entry in self.entries
        )

    def vector(self, arrays: ArrayRecord) -> Tensor:
        """The compressed arrays of a record that fits, as one vector; `PacketError` if a value is not finite."""
        pieces = [
            torch.from_numpy(_values(arrays[entry.name], entry).ravel()).to(self.layout.dtype)
            for entry in self.entries
            if entry.compressed
        ]
        vector = torch.cat(pieces)
        if not bool(torch.isfinite(vector).all()):
            raise PacketError("not finite", "NaN or infinity in an array")
        return vector

    def exact(self, arrays: ArrayRecord) -> ArrayRecord:
        """The arrays that are not compressed."""
        return ArrayRecord({entry.name: arrays[entry.name] for entry in self.entries if not entry.compressed})

    def record(self, vector: Tensor, exact: ArrayRecord) -> ArrayRecord:
        """The whole record, in the order of the table. `exact` may come from outside, so its arrays are read once."""
        if {*exact} != {entry.name for entry in self.entries if not entry.compressed}:
            raise PacketError("record", "the arrays that are not compressed have other names")
        slots = iter(self.layout.parameters)
        arrays = {}
        for entry in self.entries:
            if entry.compressed:
                arrays[entry.name] = Array(next(slots).view(vector).numpy().astype(entry.dtype))
            else:
                _values(exact[entry.name], entry)
                arrays[entry.name] = exact[entry.name]
        return ArrayRecord(arrays)


def _is_compressed(name: str, array: Array, exact: Sequence[str]) -> bool:
    if array.dtype not in FLOATS or not array.shape or 0 in array.shape:
        return False
    # A buffer with infinities, such as an attention mask, is a constant.
    return not any(fnmatch(name, pattern) for pattern in exact) and bool(np.isfinite(array.numpy()).all())


def _values(array: Array, entry: Entry) -> NDArray[Any]:
    try:
        values = array.numpy()
    except (TypeError, ValueError, EOFError, OSError) as error:
        raise PacketError("array", f"'{entry.name}' cannot be read: {error}") from None
    kinds = "f" if entry.compressed else "biuf"
    if values.shape != entry.shape or str(values.dtype) != array.dtype or values.dtype.kind not in kinds:
        raise PacketError("array", f"'{entry.name}' is {values.dtype} {values.shape}, not {array.dtype} {entry.shape}")
    return values
