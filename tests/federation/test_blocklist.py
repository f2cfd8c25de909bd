"""Violations: how they are counted, cleared and logged."""

from __future__ import annotations

import pytest

from laconic.core.errors import PacketError
from laconic.federation.blocklist import Blocklist


def test_an_accepted_reply_clears_outliers_and_nothing_else() -> None:
    """An honest client may be an outlier now and then."""
    blocklist, again = Blocklist(3), Blocklist(3)
    for reason in ("outlier", "checksum", "outlier"):
        assert not blocklist.is_blocked(1)
        blocklist.record_violation(1, PacketError(reason, ""))
    assert blocklist.is_blocked(1)
    again.load_state_dict(blocklist.state_dict())
    again.accept([1, 2])
    assert again.counts == {1: 1}
    again.accept([1])
    assert again.counts == {1: 1}


def test_many_refused_replies_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    blocklist = Blocklist(3)
    blocklist.record_violations(
        [*((client, PacketError("outlier", "too long")) for client in range(40)), (50, PacketError("checksum"))]
    )
    assert [record.getMessage() for record in caplog.records] == [
        "laconic: 40 replies were refused for the same reason, the first of client 0: outlier: too long",
        "laconic: the reply of client 50 was refused: checksum",
    ]
    assert blocklist.counts == dict.fromkeys([*range(40), 50], 1)
