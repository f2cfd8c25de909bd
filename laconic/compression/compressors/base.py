"""What all compressors share: one function of a vector, its spelling, and the properties that theorems and methods need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
from torch import Tensor

from laconic.compression import groups
from laconic.compression.body import BodyWriter, Floats, float_type
from laconic.compression.codec import Codec
from laconic.compression.forms import Form, Kept, write_forms
from laconic.compression.groups import Bounds, group_bounds, spans
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import Part, checked

Kind = TypeVar("Kind", bound="Compressor")

COMPRESSORS: dict[str, type[Compressor]] = {}
"""Every compressor that has a spelling, by name."""


class Compressor(Part):
    """C(x), for one group of entries: `compress` returns what is sent of it as a form.

    Splitting a vector into groups, coding and counting are not a compressor's business; which groups is its link's.
    """

    slot: ClassVar[str] = "compressor"
    argument: ClassVar[str | None] = None
    """The parameter that stands right after the colon in a spelling."""
    in_chain: ClassVar[Mapping[str, Any]] = {}
    """Parameters that have another default after a `+`."""

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        """What is sent of one group: `Levels`, `Signs`, `Kept`, or a NumPy vector. Draw from `rng` only."""
        raise NotImplementedError

    def forms(self, entries: Floats, bounds: Bounds, rng: np.random.Generator) -> list[Form]:
        """What is sent of every group; to be overridden only where groups share something, such as a seed."""
        return [self.compress(entries[start:end], rng) for start, end in spans(bounds)]

    def encode(self, vector: Tensor, layout: Layout, rng: np.random.Generator, granularity: str = "model") -> Body:
        """The vector as bytes; only random compressors draw from the generator."""
        writer, bounds = BodyWriter(layout), group_bounds(layout, granularity)
        forms = self.forms(host_entries(vector, layout), bounds, rng)
        if not self.sparse and any(isinstance(form, Kept) for form in forms):
            raise ConfigError(f"compressor '{self.name}': it leaves entries out, so it must say `sparse = True`")
        try:
            codec = write_forms(forms, bounds, writer)
        except ConfigError as error:
            raise ConfigError(f"compressor '{self.name}': {error}") from None
        # Groups make no difference to a vector that is sent as it is.
        return writer.body(codec, "model" if codec in (Codec.FLOAT32, Codec.FLOAT64) else granularity)

    @property
    def sparse(self) -> bool:
        """Whether entries are left out, so that most of what arrives is zero."""
        return False

    @property
    def exact(self) -> bool:
        """Whether the values that are sent arrive as they are. Only those of such a sparse compressor can be quantized."""
        return self.sparse

    @property
    def lossless(self) -> bool:
        """Whether everything arrives as it is."""
        return self.exact and not self.sparse

    @property
    def kept_fraction(self) -> float | None:
        """k/d, where it is fixed."""
        return None

    @property
    def contractive(self) -> bool:
        """Whether ||C(x) - x||^2 <= q^2 ||x||^2 with q < 1, as error feedback needs."""
        return True

    @property
    def biased(self) -> bool:
        """Whether the mean over all draws is another vector than x; then only a memory makes up for what is missing."""
        return True

    @property
    def rounds_entries(self) -> bool:
        """Whether every entry arrives, rounded to a number next to it: then even a biased C can do without memory."""
        return False

    def omega(self, size: int) -> float:
        """The variance of an unbiased C, relative to ||x||^2, for a group of `size` entries; 0 when C is not random."""
        return 0.0

    def scaled_for_feedback(self: Kind) -> Kind:
        """The same compressor as error feedback may use it: divided by 1 + omega unless it is contractive already."""
        if not self.contractive:
            raise ConfigError(f"compressor {self} is not contractive: error feedback cannot use it")
        return self

    def kept(self, size: int) -> int:
        """How many values are sent of a group of `size` entries."""
        return size if self.kept_fraction is None else groups.kept(self.kept_fraction, size)

    def position_bits(self, count: int) -> int:
        """What the papers count for `count` positions, where they count them."""
        return 0

    def value_bits(self, count: int, groups: int) -> int:
        """What the papers count for `count` values."""
        return 32 * count

    def __str__(self) -> str:
        return spell(self)


@dataclass_transform(frozen_default=True)
def compressor(name: str, argument: str | None = None) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator: a frozen dataclass with checked parameters, which has a name and can be spelled."""

    def register(cls: type[Kind]) -> type[Kind]:
        cls.name, cls.argument = name, argument
        _check(cls, name)
        made = checked(cls)
        COMPRESSORS[name] = made
        return made

    return register


def _check(cls: type[Compressor], name: str) -> None:
    """Refuse, when the class is made, what would go wrong later."""
    described = f"compressor '{name}' ({cls.__module__}.{cls.__qualname__})"
    taken = COMPRESSORS.get(name)
    if taken is not None and taken.__module__.startswith("laconic.") and taken.__module__ != cls.__module__:
        raise ConfigError(f"{described}: Laconic has one of that name; choose another")
    if cls.compress is Compressor.compress and cls.forms is Compressor.forms:
        raise ConfigError(f"{described}: it has no function `compress`")


def host_entries(vector: Tensor, layout: Layout) -> Floats:
    """The vector's entries on the host, where coding happens."""
    if vector.shape != (layout.size,) or vector.dtype != layout.dtype:
        found = f"{tuple(vector.shape)} of {vector.dtype}"
        raise ConfigError(f"a vector {found} for a model of {layout.size} parameters of {layout.dtype}")
    entries: Floats = vector.detach().cpu().contiguous().numpy()
    return entries.astype(float_type(layout), copy=False)


def spell(compressor: Compressor, usual: Mapping[str, Any] = {}) -> str:
    """The shortest text from which `parse_compressor` makes the same compressor; `usual` are other defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(compressor)} | dict(usual)  # type: ignore[arg-type]
    settings: list[str] = []
    for key, value in compressor.parameters().items():
        if key == compressor.argument:
            settings.insert(0, _ratio(value) if key == "ratio" else str(value))
        elif value != defaults[key]:
            settings.append(f"{key}={str(value).lower()}")
    return compressor.name + (":" + ",".join(settings) if settings else "")


def _ratio(value: float) -> str:
    whole = round(1 / value)
    return f"1/{whole}" if whole > 1 and 1 / whole == value else repr(value)
