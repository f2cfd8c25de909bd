"""The histories of test_conservation.py with clients whose states are on disk, and who really lose what is not durable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.optimizers.adaptive import AMS
from laconic.federation.database import Database
from laconic.federation.disk_store import DiskStore
from laconic.federation.store import ClientStore
from tests.algorithms.test_conservation import (
    CLIENTS,
    DOWNLINKS,
    HISTORY,
    NO_LIMIT,
    UPLINKS,
    GivenUpdates,
    World,
    live_through,
)


class DiskWorld(World):
    """Next to nothing is kept in memory, so that states are really read back."""

    def make_store(self, unseen: Callable[[], int]) -> ClientStore:
        return DiskStore(Database(cache=3000), unseen, at_once=True)

    def restart_clients(self) -> None:
        """What killing the process comes to; the file has no name, so it cannot be opened again."""
        self.store.database.rollback()


@settings(max_examples=60, **NO_LIMIT)
@given(st.sampled_from(list(UPLINKS)), st.sampled_from(list(DOWNLINKS)), HISTORY)
def test_nothing_is_lost_or_doubled_on_disk(uplink: str, downlink: str, history: list[tuple[list[str], bool]]) -> None:
    live_through(uplink, downlink, history, DiskWorld)


@pytest.mark.long
@settings(max_examples=1000, **NO_LIMIT)
@given(st.sampled_from(list(UPLINKS)), st.sampled_from(list(DOWNLINKS)), HISTORY)
def test_nothing_is_lost_or_doubled_on_disk_in_a_thousand_histories(
    uplink: str, downlink: str, history: list[tuple[list[str], bool]]
) -> None:
    live_through(uplink, downlink, history, DiskWorld)


def test_with_no_faults_every_update_counts_on_disk() -> None:
    world = DiskWorld(Algorithm(GivenUpdates(), UPLINKS["lazy"], AMS(), DOWNLINKS["mirrored"]))
    for _ in range(4):
        world.round(["answers"] * CLIENTS, False)
        world.restart_clients()
        world.check()
    assert world.server.clients.sequences.tolist() == [4] * CLIENTS
