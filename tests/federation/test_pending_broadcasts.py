"""A broadcast is kept until the last client has confirmed it, and no longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laconic.compression.packet import Body
from laconic.federation.pending_broadcasts import PendingBroadcasts

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.lists(st.integers(0, 5), max_size=6)),
        st.tuples(st.just("confirm"), st.integers(0, 5)),
        st.tuples(st.just("restart")),
    )
)


def bodies(round: int) -> dict[str, Body]:
    return {"mean": Body(0, bytes([round]))}


@given(ACTIONS)
def test_every_client_gets_the_last_broadcast(actions: list[tuple]) -> None:
    pending, expected = PendingBroadcasts(), {}
    for round, (name, *rest) in enumerate(actions):
        if name == "deliver":
            pending.must_deliver(round, bodies(round), rest[0])
            expected |= dict.fromkeys(rest[0], round)
        elif name == "confirm":
            pending.confirm(rest[0])
            expected.pop(rest[0], None)
        else:
            state, pending = pending.state_dict(), PendingBroadcasts()
            pending.load_state_dict(state)
        assert pending.clients() == expected
        for client in range(6):
            assert pending.bodies(client) == (bodies(expected[client]) if client in expected else {})
        assert set(pending._bodies) == set(expected.values())
