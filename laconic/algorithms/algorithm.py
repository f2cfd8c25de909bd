"""An algorithm is four parts.

    Method      what a client computes from the model and its data, and what the server folds back
    Uplink      how a client's vector becomes bytes, and what it remembers about what it did not send
    Optimizer   how the mean update moves the server's model
    Downlink    how the model becomes bytes on its way to a client

Parts never know which algorithm they are in, so any combination is an algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from laconic.algorithms.combine import changed
from laconic.algorithms.downlinks.base import DenseDownlink, Downlink
from laconic.algorithms.methods.base import Method
from laconic.algorithms.methods.exchange import PhaseTable
from laconic.algorithms.optimizers.base import Optimizer
from laconic.algorithms.optimizers.sgd import SGD
from laconic.algorithms.uplinks.base import DenseUplink, Uplink
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.part import SLOTS, Part


@dataclass(frozen=True)
class Algorithm:
    """Four parts, and the name they go by.

    >>> from laconic.algorithms.recipes import fed_ams
    >>> fed_ams(server_lr=0.1).optimizer.server_lr
    0.1
    """

    method: Method
    uplink: Uplink = DenseUplink()
    optimizer: Optimizer = SGD()
    downlink: Downlink = DenseDownlink()
    name: str = "custom"

    def __post_init__(self) -> None:
        for slot, kind in (("method", Method), ("uplink", Uplink), ("optimizer", Optimizer), ("downlink", Downlink)):
            given = getattr(self, slot)
            if not isinstance(given, kind):
                raise ConfigError(
                    f"{slot} = {given!r}: a part of that kind is needed; name the slots, as in optimizer=AMS()"
                )

    def parts(self) -> dict[str, Part]:
        """The parts by slot."""
        return {slot: getattr(self, slot) for slot in SLOTS}

    @cached_property
    def phases(self) -> PhaseTable:
        """The method's phases by name, and the numbers of its streams."""
        return PhaseTable(self.method.phases(self.uplink))

    def fitted(self) -> Algorithm:
        """With what the method and the downlink leave open settled for the parts beside them."""
        downlink = self.downlink.fitted(self.optimizer, self.method.sends_mean)
        return replace(self, method=self.method.fitted(self.uplink), downlink=downlink)

    def replace(self, **parameters: Any) -> Algorithm:
        """Another setting of the same parts.

        Each parameter goes to the part that has it; `uplink={"threshold": 0}` names the part, which is needed where two
        parts have a parameter of the same name. A whole part may be given too, or its name: `downlink="broadcast"`, which
        keeps what the two links have in common, and takes the uplink's compressor if it needs one.
        """
        alone: dict[str, dict[str, Any]] = {}
        for key, value in parameters.items():
            if key not in SLOTS:
                alone.setdefault(self.owner(key), {})[key] = value
        parts = self.parts()
        # The downlink comes last: it may take its compressor from the uplink.
        for slot in SLOTS:
            for given in (parameters, alone):
                if slot in given:
                    parts[slot] = changed(slot, given[slot], parts, self.parts())
        made: dict[str, Any] = dict(parts)
        return replace(self, **made)

    def owners(self, key: str) -> list[str]:
        """The slots whose parts have that parameter."""
        return [slot for slot, part in self.parts().items() if key in part.parameters()]

    def owner(self, key: str) -> str:
        """The slot whose part has that parameter; none or two are an error that says so.

        A compressor is the uplink's, as on the command line; an uplink without one becomes one that has.
        """
        if key == "compressor":
            return "uplink"
        owners = self.owners(key) or [slot for slot, part in self.parts().items() if key in part.absent]
        if not owners:
            known = {name for part in self.parts().values() for name in part.parameters()}
            raise unknown_name("parameter", key, known, of=self.name)
        if len(owners) > 1:
            raise ConfigError(
                f"{key}: both {' and '.join(owners)} have it; say which, as in {owners[0]}={{'{key}': …}}"
            )
        return owners[0]
