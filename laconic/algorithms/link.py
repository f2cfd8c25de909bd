"""The base of uplinks and downlinks that compress."""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator
from pydantic_core import ArgsKwargs

from laconic.compression import AnyCompressor, Granularity, GroupedCompressor, split_granularity
from laconic.core.errors import ConfigError
from laconic.core.part import Part, checked


@checked
class CompressedLink(Part):
    """A link with a compressor and a granularity.

    `compressor="sign@layer"` is short for `compressor="sign", granularity="layer"`.
    """

    compressor: AnyCompressor
    """C, or its spelling, such as top_k:1/64."""
    granularity: Granularity = "model"
    """Which entries are compressed together: the whole `model`, each `layer`, or `chunk:N` for N entries at a time."""

    @property
    def compression(self) -> GroupedCompressor:
        """C with its granularity."""
        return GroupedCompressor(self.compressor, self.granularity)

    def replace(self, **changes: Any) -> Self:
        return super().replace(**split_compressor(changes))

    @model_validator(mode="before")
    @classmethod
    def _split(cls, arguments: ArgsKwargs) -> ArgsKwargs:
        return ArgsKwargs(arguments.args, split_compressor(arguments.kwargs or {}))


def split_compressor(table: dict[str, Any]) -> dict[str, Any]:
    """The settings of a link, with `compressor="sign@layer"` split into compressor and granularity."""
    spelled = table.get("compressor")
    if not isinstance(spelled, str) or "@" not in spelled:
        return table
    compressor, granularity = split_granularity(spelled)
    if table.get("granularity", granularity) != granularity:
        raise ConfigError(
            f"compressor = '{spelled}', granularity = '{table['granularity']}': they contradict each other"
        )
    return table | {"compressor": compressor, "granularity": granularity}
