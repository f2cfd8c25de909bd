"""A federation in one process: Flower's public Grid, over ClientApps that are called as Flower calls them.

It delivers, loses, delays and repeats messages as it is told to. What it stands in for is Flower; nothing of Laconic's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Filter = Callable[[int, Message], Message | None]
"""Node and reply -> the reply as it arrives; None if it is lost."""


def failure(reply: Message, reason: str, code: int = 8) -> Message:
    """What Flower delivers in the place of a reply whose process has failed."""
    error = Message(Error(code=code, reason=reason), reply_to=reply)
    error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return error


class LoopbackGrid(Grid):
    def __init__(self) -> None:
        self.nodes: dict[int, tuple[Callable[[], ClientApp], dict]] = {}
        self.replies: dict[str, Message] = {}
        self.spoil: Filter = lambda node, reply: reply
        self.before_push: Callable[[list[Message]], None] = lambda messages: None
        self.sent: list[tuple[str, int]] = []
        """Type and node of every message."""
        self.looks = 0
        """How often somebody has asked who is here."""
        self._numbers = count(1)
        # Flower sets these in every process that it starts; a message cannot be made without them.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def add(self, node: int, make: Callable[[], ClientApp], **config: object) -> None:
        """`make` is called for every message, as Flower starts a process for each."""
        self.nodes[node] = make, {key.replace("_", "-"): value for key, value in config.items()}

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **keywords):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.before_push(messages)
        identifiers = []
        for message in messages:
            identifier, node = str(next(self._numbers)), message.metadata.dst_node_id
            identifiers.append(identifier)
            self.sent.append((message.metadata.message_type, node))
            message.metadata.__dict__["_message_id"] = identifier
            if node not in self.nodes:
                continue
            make, config = self.nodes[node]
            reply = self.spoil(node, make()(message, Context(1, node, config, RecordDict(), {})))
            if reply is not None:
                self.replies[identifier] = reply
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(each) for each in message_ids if each in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError
