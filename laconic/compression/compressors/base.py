"""What all compressors share: choose entries, express their values, and the properties that theorems need."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar, dataclass_transform

import numpy as np
from torch import Tensor

from laconic.compression.body import BodyWriter, Floats, float_type
from laconic.compression.codec import BY_LAYER, Codec, Places
from laconic.compression.groups import Bounds, Chosen, Group, group_bounds
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import Part, checked

Kind = TypeVar("Kind", bound="Compressor")

COMPRESSORS: dict[str, type[Compressor]] = {}
"""Every compressor that has a spelling, by name."""


class Compressor(Part):
    """C(x): which entries are sent (`select`), and in what form (`express`). By default all of them, as they are."""

    slot: ClassVar[str] = "compressor"
    argument: ClassVar[str | None] = None
    """The parameter that stands right after the colon in a spelling."""
    by: Group

    def encode(self, vector: Tensor, layout: Layout, generator: np.random.Generator) -> Body:
        """The vector as bytes; only random compressors draw from the generator."""
        writer = BodyWriter(layout)
        chosen = self.select(host_entries(vector, layout), group_bounds(layout, self.by), generator, writer)
        form = self.express(chosen, generator, writer)
        if not isinstance(form, Codec):
            raise ConfigError(f"compressor '{self.name}': express must return the Codec of what it wrote, not {form!r}")
        return writer.body(chosen.places | form | (BY_LAYER if self.by == "layer" else 0))

    def select(self, entries: Floats, groups: Bounds, generator: np.random.Generator, writer: BodyWriter) -> Chosen:
        """Which entries are sent; writes where they are."""
        return Chosen(Places.ALL, entries, groups, groups)

    def express(self, chosen: Chosen, generator: np.random.Generator, writer: BodyWriter) -> Codec:
        """Write the chosen values, and say in which form."""
        writer.values(chosen.values)
        return Codec.FLOAT32 if writer.floats.itemsize == 4 else Codec.FLOAT64

    @property
    def contractive(self) -> bool:
        """Whether ||C(x) - x||^2 <= q^2 ||x||^2 with q < 1, as error feedback needs."""
        return True

    @property
    def biased(self) -> bool:
        """Whether the mean over all draws is another vector than x; then only a memory makes up for what is missing."""
        return True

    def omega(self, layout: Layout) -> float:
        """The variance of an unbiased C, relative to ||x||^2 and for the worst group; 0 when C is not random."""
        return 0.0

    def scaled_for_feedback(self: Kind) -> Kind:
        """The same compressor as error feedback may use it: divided by 1 + omega unless it is contractive already."""
        if not self.contractive:
            raise ConfigError(f"compressor {self} is not contractive: error feedback cannot use it")
        return self

    def count(self, layout: Layout) -> int:
        """How many values are sent."""
        return layout.size

    def paper_bits(self, layout: Layout) -> int:
        """What the papers count for a vector (algorithms.md, "Compressors")."""
        count = self.count(layout)
        return self.place_bits(count) + self.value_bits(count, len(group_bounds(layout, self.by)) - 1)

    def place_bits(self, count: int) -> int:
        """The papers' count for positions."""
        return 0

    def value_bits(self, count: int, groups: int) -> int:
        """The papers' count for values."""
        return 32 * count

    def __str__(self) -> str:
        from laconic.compression.compressors.spelling import spell

        return spell(self)


@dataclass_transform(frozen_default=True)
def compressor(name: str, argument: str | None = None) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator: a checked, frozen part with a name and a place in `COMPRESSORS`."""

    def register(cls: type[Kind]) -> type[Kind]:
        cls.name, cls.argument = name, argument
        _check(cls, name)
        made = checked(cls)
        COMPRESSORS[name] = made
        return made

    return register


def _check(cls: type[Compressor], name: str) -> None:
    """What would go wrong later without a word, or in many."""
    own = f"compressor '{name}' ({cls.__module__}.{cls.__qualname__})"
    taken = COMPRESSORS.get(name)
    if taken is not None and taken.__module__.startswith("laconic.") and taken.__module__ != cls.__module__:
        raise ConfigError(f"{own}: Laconic has one of that name; choose another")
    if not hasattr(cls, "by"):
        raise ConfigError(f'{own}: it must say its groups: by: Group = "model", or "layer"')
    written = [getattr(cls, each) is not getattr(Compressor, each) for each in ("encode", "select", "express")]
    if name != "dense" and not any(written):
        raise ConfigError(f"{own}: it has neither a `select` nor an `express` of its own, so it would send everything")


def host_entries(vector: Tensor, layout: Layout) -> Floats:
    """The vector's entries on the host, where coding happens."""
    if vector.shape != (layout.size,) or vector.dtype != layout.dtype:
        found = f"{tuple(vector.shape)} of {vector.dtype}"
        raise ConfigError(f"a vector {found} for a model of {layout.size} parameters of {layout.dtype}")
    entries: Floats = vector.detach().cpu().contiguous().numpy()
    return entries.astype(float_type(layout), copy=False)
