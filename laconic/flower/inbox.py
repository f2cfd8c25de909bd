"""Receives nodes' messages. A message that Flower itself cannot read must not stop the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from logging import getLogger

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from laconic.core.errors import PacketError
from laconic.flower import wire

LOG = getLogger("flwr.laconic")
UNREADABLE = (DecodeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What Flower raises for a malformed message. Errors of the connection are others."""


class Inbox:
    """Pulls replies to messages by their ids."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._one_by_one = False
        """Whether to pull messages one by one, which is slower. Flower loses the messages that it pulls with a bad one."""

    def pull(self, identifiers: Sequence[str]) -> Iterator[tuple[str, Message | PacketError]]:
        """The replies that have arrived, by the id of the message that they answer; errors for failed or unreadable ones."""
        if not self._one_by_one:
            try:
                replies = [*self._grid.pull_messages(identifiers)]
            except UNREADABLE as error:
                LOG.warning("laconic: a message is unreadable for Flower: %s", wire.sanitized(repr(error)))
                self._one_by_one = True
            else:
                yield from ((reply.metadata.reply_to_message_id, self._opened(reply)) for reply in replies)
                return
        for identifier in identifiers:
            try:
                yield from [(identifier, self._opened(reply)) for reply in self._grid.pull_messages([identifier])]
            except UNREADABLE as error:
                yield identifier, PacketError("record", f"unreadable for Flower: {wire.sanitized(repr(error))}")

    def _opened(self, message: Message) -> Message | PacketError:
        """The message, or the failure that Flower reports instead of one. A failure is no violation."""
        if not message.has_error():
            return message
        if message.error.code == ErrorCode.INVALID_FAB:
            listed = f"its hash {self._grid.run.fab_hash} is not in the list of the node's --apps"
            return PacketError("failed", f"the node's owner has not approved this app: {listed}")
        return PacketError("failed", wire.sanitized(message.error.reason))
