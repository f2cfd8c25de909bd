"""Who runs the clients: in this process, on a cluster, or on machines of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from laconic.federation.messages import Instruction, MalformedReply, Reply


class Engine(ABC):
    """Delivers instructions to clients, and their replies to the server."""

    in_order: bool = True
    """Whether replies come in the order of the instructions. If not, the round puts them in order, which takes memory."""

    @abstractmethod
    def run(self, instructions: Iterable[Instruction]) -> Iterable[Reply | MalformedReply]:
        """The replies of one exchange. A client that does not answer is left out."""

    def participants(self, drawn: list[int]) -> list[int]:
        """The clients that take part in a round: the drawn ones, or others where none of these can be reached."""
        return drawn

    def is_available(self, client: int) -> bool:
        """Whether a client can be asked now."""
        return True

    def stop_waiting(self) -> None:  # noqa: B027 - most engines wait for nobody
        """Enough replies are here: end the exchange with those that have arrived."""
