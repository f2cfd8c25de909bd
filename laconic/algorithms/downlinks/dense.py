"""The dense downlink: the whole model to every participant."""

from __future__ import annotations

from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import BroadcastModel, ClientModelVersion, Downlink
from laconic.compression import decode_body
from laconic.compression.packet import Body
from laconic.core.layout import Layout
from laconic.core.part import BOUNDED, State, part


@part("downlink", "dense")
class DenseDownlink(Downlink):
    """The whole model, 32 d bits per participant."""

    sensitivity = BOUNDED

    def send(self, broadcast: BroadcastModel, client: ClientModelVersion, context: RoundContext) -> Body:
        return broadcast.whole

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        # Clients in one process share the decoded model.
        if "model" not in body.memo:
            body.memo["model"] = decode_body(body, layout).dense()
        return body.memo["model"], state
