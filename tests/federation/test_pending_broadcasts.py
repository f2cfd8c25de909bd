"""What clients are owed is kept until the last of them has heard it, and no longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laconic.compression.packet import Body, Stream
from laconic.federation.pending_broadcasts import PendingBroadcasts

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("owe"), st.lists(st.integers(0, 5), max_size=6)),
        st.tuples(st.just("settle"), st.integers(0, 5)),
        st.tuples(st.just("restart")),
    )
)


def bodies(round: int) -> dict[Stream, Body]:
    return {Stream.MEAN: Body(0, bytes([round]))}


@given(ACTIONS)
def test_every_client_is_owed_the_last_it_was_promised(actions: list[tuple]) -> None:
    debts, expected = PendingBroadcasts(), {}
    for round, (name, *rest) in enumerate(actions):
        if name == "owe":
            debts.owe(round, bodies(round), rest[0])
            expected |= dict.fromkeys(rest[0], round)
        elif name == "settle":
            debts.settle(rest[0])
            expected.pop(rest[0], None)
        else:
            debts = PendingBroadcasts.restored(debts.state())
        assert debts.clients() == expected
        for client in range(6):
            assert debts.of(client) == (bodies(expected[client]) if client in expected else {})
        assert set(debts._bodies) == set(expected.values())
