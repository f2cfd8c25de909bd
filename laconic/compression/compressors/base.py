"""The base of compressors: the function `compress`, its text form, and properties that methods and links need."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
from torch import Tensor

from laconic.compression import groups
from laconic.compression.body import BodyWriter, Floats, float_type, refuse_not_finite
from laconic.compression.codec import Codec
from laconic.compression.forms import Form, Kept, write_forms
from laconic.compression.groups import Bounds, group_bounds, spans
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout
from laconic.core.part import Part, checked, parameter_names, refuse_taken
from laconic.core.user_code import display_name

Kind = TypeVar("Kind", bound="Compressor")

COMPRESSORS: dict[str, type[Compressor]] = {}
"""All registered compressors, by name."""


class Compressor(Part):
    """C(x) for one group of entries: `compress` returns a form, which describes the decoded values.

    Laconic splits vectors into groups and encodes the forms. The link chooses the groups.
    """

    slot: ClassVar[str] = "compressor"
    argument: ClassVar[str | None] = None
    """The parameter that follows the colon, as in `top_k:1/64`."""
    in_chain: ClassVar[Mapping[str, Any]] = {}
    """Defaults that differ after a `+`."""

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        """Compress one group.

        Args:
            x: The entries of the group.
            rng: All random draws must come from this generator.

        Returns:
            The group's form: `Levels`, `Signs`, `Kept`, or a NumPy vector.
        """
        raise NotImplementedError

    def forms(self, entries: Floats, bounds: Bounds, rng: np.random.Generator) -> list[Form]:
        """The forms of all groups. Override it only if groups share something, such as a seed."""
        return [self.compress(entries[start:end], rng) for start, end in spans(bounds)]

    def encode(self, vector: Tensor, layout: Layout, rng: np.random.Generator, granularity: str = "model") -> Body:
        """Encode a vector; only random compressors use the generator."""
        writer, bounds = BodyWriter(layout), group_bounds(layout, granularity)
        entries = host_entries(vector, layout)
        forms = self.forms(entries, bounds, rng)
        if not self.sparse and any(isinstance(form, Kept) for form in forms):
            raise ConfigError(f"compressor '{self.name}': it returns Kept, so it must set `sparse = True`")
        try:
            for form in [] if self.lossless else forms:
                values = form.values if isinstance(form, Kept) else form
                if isinstance(values, np.ndarray):
                    refuse_not_finite(values)
            codec = write_forms(forms, bounds, writer)
        except ConfigError as error:
            raise ConfigError(f"compressor '{self.name}': {error}") from None
        except PacketError:
            if not np.isfinite(entries).all():
                raise
            raise ConfigError(
                f"compressor '{self.name}': compress returned NaN or infinity for finite entries"
            ) from None
        # An uncompressed vector does not depend on groups.
        return writer.body(codec, "model" if codec in (Codec.FLOAT32, Codec.FLOAT64) else granularity)

    @property
    def sparse(self) -> bool:
        """Whether C(x) keeps only some entries; the others are zero."""
        return False

    @property
    def exact(self) -> bool:
        """Whether the values that are sent are exact. A chain can quantize only exact values."""
        return self.sparse

    @property
    def lossless(self) -> bool:
        """Whether C(x) = x."""
        return self.exact and not self.sparse

    @property
    def quantizes_values(self) -> bool:
        """Whether C may follow a `+`, to quantize the values that another compressor keeps."""
        return not self.sparse and not self.lossless

    @property
    def kept_fraction(self) -> float | None:
        """k/d; None if it is not fixed."""
        return None

    @property
    def contractive(self) -> bool:
        """Whether ||C(x) - x||^2 <= q^2 ||x||^2 with q < 1, which error feedback requires."""
        return True

    @property
    def biased(self) -> bool:
        """Whether E[C(x)] differs from x. A biased compressor needs error feedback."""
        return True

    @property
    def rounds_entries(self) -> bool:
        """Whether C rounds every entry to a nearby value. Then even a biased C works without error feedback."""
        return False

    @property
    def sends_signs(self) -> bool:
        """Whether all entries of C(x) in a group have the same magnitude."""
        return False

    def omega(self, size: int) -> float:
        """The bound of E||C(x) - x||^2 / ||x||^2 of an unbiased C, for a group of `size` entries; 0 if C is not random."""
        return 0.0

    def scaled_for_feedback(self) -> Compressor:
        """A contractive form for error feedback: the compressor itself, divided by 1 + omega, or a deterministic form."""
        if not self.contractive:
            raise ConfigError(f"compressor {self} is not contractive, as error feedback requires")
        return self

    def for_participants(self, count: int) -> Compressor:
        """The compressor for a round with `count` participants; the compressor itself unless it adapts to them."""
        return self

    def kept(self, size: int) -> int:
        """The number of values that are sent for a group of `size` entries."""
        return size if self.kept_fraction is None else groups.kept(self.kept_fraction, size)

    @property
    def keeps_any_number(self) -> bool:
        """Whether the number of values that are sent depends on the vector: neither `kept_fraction` nor `kept` says it."""
        return self.sparse and self.kept_fraction is None and type(self).kept is Compressor.kept

    def position_bits(self, count: int) -> int:
        """The bits that the papers count for `count` positions."""
        return 0

    def value_bits(self, count: int, groups: int) -> int:
        """The bits that the papers count for `count` values."""
        return 32 * count

    def __str__(self) -> str:
        return spell(self)


@dataclass_transform(frozen_default=True)
def compressor(name: str, argument: str | None = None) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator: a frozen dataclass with validated parameters, registered under a name."""

    def register(cls: type[Kind]) -> type[Kind]:
        refuse_taken(cls, "compressor", name, COMPRESSORS)
        cls.name, cls.argument = name, argument
        registered = checked(cls)
        _check(registered, name)
        COMPRESSORS[name] = registered
        return registered

    return register


def _check(cls: type[Compressor], name: str) -> None:
    """Reject a class that could not work."""
    described = f"compressor '{name}' ({display_name(cls)})"
    if cls.compress is Compressor.compress and cls.forms is Compressor.forms:
        raise ConfigError(f"{described}: it has no function `compress`")
    try:
        inspect.signature(cls.compress).bind(cls, "x", "rng")
    except TypeError:
        raise ConfigError(f"{described}: the function must be `compress(self, x, rng)`") from None
    known = parameter_names(cls)
    if cls.argument is not None and cls.argument not in known:
        names = ", ".join(known) or "none"
        raise ConfigError(f"{described}: argument = '{cls.argument}': must be one of its parameters: {names}")


def host_entries(vector: Tensor, layout: Layout) -> Floats:
    """The vector's entries in host memory."""
    if vector.shape != (layout.size,) or vector.dtype != layout.dtype:
        given, expected = f"{tuple(vector.shape)} of {vector.dtype}", f"{layout.size} parameters of {layout.dtype}"
        raise ConfigError(f"a vector {given} for a model of {expected}")
    entries: Floats = vector.detach().cpu().contiguous().numpy()
    return entries.astype(float_type(layout), copy=False)


def spell(compressor: Compressor, overrides: Mapping[str, Any] = {}) -> str:
    """The shortest text that `parse_compressor` parses to an equal compressor; `overrides` replace defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(compressor)} | dict(overrides)  # type: ignore[arg-type]
    settings: list[str] = []
    for key, value in compressor.parameters().items():
        if key == compressor.argument:
            settings.insert(0, _number(value) if isinstance(value, float) else str(value))
        elif value != defaults[key]:
            settings.append(f"{key}={str(value).lower()}")
    return compressor.name + (":" + ",".join(settings) if settings else "")


def _number(value: float) -> str:
    if value >= 1 and value.is_integer():
        return str(int(value))
    whole = round(1 / value) if 0 < value < 1 else 0
    return f"1/{whole}" if whole > 1 and 1 / whole == value else repr(value)
