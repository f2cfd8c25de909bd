"""The server's table of clients."""

from __future__ import annotations

import torch
from torch import nn

from laconic.algorithms.downlinks.base import LOST
from laconic.core.layout import Layout
from laconic.federation.client_table import ClientTable

LAYOUT = Layout.of(nn.Linear(2, 1))


def test_a_client_takes_16_bytes_and_8_more_once_a_subspace_was_redrawn() -> None:
    table = ClientTable(LAYOUT, 1000)
    assert _bytes(table) == 16_000
    table.renew()
    assert _bytes(table) == 24_000


def test_a_state_that_was_lost_before_the_first_redraw_is_still_lost_after_it() -> None:
    table, resumed = ClientTable(LAYOUT, 3), ClientTable(LAYOUT, 3)
    table.forget(0)
    table.forget(1)
    table.advance(1, 5, {}, {}, version=2)
    resumed.load_state_dict(table.state_dict())
    for each in (table, resumed):
        each.renew()
        assert [each.period(client) for client in range(3)] == [LOST, 0, 0]
        each.advance(0, 1, {}, {}, version=0, period=1)
        each.forget(2)
        again = ClientTable(LAYOUT, 3)
        again.load_state_dict(each.state_dict())
        assert [again.period(client) for client in range(3)] == [1, 0, LOST]


def _bytes(table: ClientTable) -> int:
    """The bytes of the arrays in a checkpoint, without the states of links."""
    arrays = [value for value in table.state_dict().values() if isinstance(value, torch.Tensor)]
    return sum(array.nbytes for array in arrays if len(array) == 1000)
