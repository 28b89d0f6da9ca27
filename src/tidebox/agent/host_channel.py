"""The agent's channel to the host: encodes messages and counts activity."""

from __future__ import annotations

from tidebox.wire.messages import Error, Pong, Touched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidebox.agent.outbox import HostOutbox
    from tidebox.wire.cbor import Buffer
    from tidebox.wire.connection import AgentConnection
    from tidebox.wire.fields import DataMessage, Message

_NO_ACTIVITY = (Pong, Touched, Error)


class HostChannel:
    """Encodes messages into the outbox and counts the activity that core.touch asks for."""

    def __init__(self, connection: AgentConnection, outbox: HostOutbox) -> None:
        self._connection = connection
        self.outbox = outbox
        self.activity = 0

    def speaks(self, generation: int) -> bool:
        """Whether this agent speaks that generation: what it does not know it ignores, as an older one would."""
        return self._connection.generation >= generation

    def send(self, id: int, message: Message) -> None:
        """Queue a message; FrameTooLarge when it does not fit into a frame."""
        self.outbox.put((self._connection.encode(message, id),))
        if not isinstance(message, _NO_ACTIVITY):
            self.activity += 1

    def send_data(self, id: int, message_type: type[DataMessage], data: Buffer) -> None:
        """Queue a data message without copying its bytes."""
        self.outbox.put(self._connection.data_pieces(message_type, data, id))
        self.activity += 1

    def send_pieces(self, pieces: Sequence[Buffer]) -> None:
        """Queue a frame that is already encoded."""
        self.outbox.put(pieces)
        self.activity += 1
