"""What uplinks and downlinks that compress have in common."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from pydantic import model_validator
from pydantic_core import ArgsKwargs

from laconic.compression import AnyCompressor, Granularity, GroupedCompressor, split_granularity
from laconic.core.errors import ConfigError
from laconic.core.part import Part, checked


@checked
class CompressedLink(Part):
    """A link with a compressor, and the granularity at which it is applied.

    `compressor="sign@layer"` is short for `compressor="sign", granularity="layer"`.
    """

    compressor: AnyCompressor
    granularity: Granularity = "model"
    """Which entries are compressed together: those of the `model`, of each `layer`, or `chunk:N` of them."""

    @property
    def compression(self) -> GroupedCompressor:
        """C, with its granularity."""
        return GroupedCompressor(self.compressor, self.granularity)

    def replace(self, **changes: Any) -> Self:
        return super().replace(**split_compressor(changes))

    @model_validator(mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(given, ArgsKwargs) or len(given.args) > len(names):
            return given
        return ArgsKwargs((), split_compressor(dict(zip(names, given.args, strict=False)) | (given.kwargs or {})))


def split_compressor(table: dict[str, Any]) -> dict[str, Any]:
    """A link's settings, with `compressor="sign@layer"` as two of them."""
    spelled = table.get("compressor")
    if not isinstance(spelled, str) or "@" not in spelled:
        return table
    compressor, granularity = split_granularity(spelled)
    if table.get("granularity", granularity) != granularity:
        raise ConfigError(
            f"compressor = '{spelled}', granularity = '{table['granularity']}': they contradict each other"
        )
    return table | {"compressor": compressor, "granularity": granularity}
