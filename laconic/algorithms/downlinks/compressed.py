"""The compressed model itself, without state on either side: FLASC's downlink, and half precision for any algorithm."""

from __future__ import annotations

from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import BroadcastModel, ClientModelVersion, Downlink
from laconic.algorithms.link import CompressedLink
from laconic.compression import decode_body
from laconic.compression.packet import Body
from laconic.core.layout import Layout
from laconic.core.part import BOUNDED, State, part
from laconic.core.randomness import Draw


@part("downlink", "compressed")
class CompressedDownlink(CompressedLink, Downlink):
    """C(w) to every participant, the same for all; the server keeps w.

    Clients start from C(w), so C must stay close to w itself, not only on average over rounds: float16, uniform:8, or top_k
    for vectors with few large entries, such as adapters.
    """

    sensitivity = BOUNDED

    def send(self, broadcast: BroadcastModel, client: ClientModelVersion, context: RoundContext) -> Body:
        generator = context.randomness.numpy(Draw.DOWNLINK, context.round)
        return broadcast.for_version(0, lambda: self.compression.encode(broadcast.model, broadcast.layout, generator))

    def receive(self, body: Body, state: State, initial: Tensor, layout: Layout, lost: bool) -> tuple[Tensor, State]:
        # Clients in one process share the decoded model.
        if "model" not in body.memo:
            body.memo["model"] = decode_body(body, layout).dense()
        return body.memo["model"], state

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count."""
        return self.compression.paper_bits(layout, body)
