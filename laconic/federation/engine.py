"""The interface of engines, which run clients: in this process, on a Ray cluster, or on remote machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from laconic.federation.messages import Instruction, MalformedReply, Reply

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(ABC):
    """Delivers instructions to clients and returns their replies."""

    in_order: bool = True
    """Whether replies arrive in the order of the instructions. If not, the round buffers and sorts them."""

    @abstractmethod
    def run(self, instructions: Iterable[Instruction]) -> Iterable[Reply | MalformedReply]:
        """The replies of one exchange. A client that does not answer has none."""

    def participants(self, drawn: list[int]) -> list[int]:
        """The participants of a round: the drawn clients, or others if none of the drawn ones is available."""
        return drawn

    def is_available(self, client: int) -> bool:
        """Whether a client can receive an instruction now."""
        return True

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Apply a function of the server, such as encoding, to items; the results are in order. Engines may use threads."""
        return map(function, items)

    def stop_waiting(self) -> None:  # noqa: B027 - most engines do not wait
        """End the exchange with the replies that have arrived."""
