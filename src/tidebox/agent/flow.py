"""How much may be on its way: the window of a peer with flow control, and the brake for peers without it."""

from __future__ import annotations

from tidebox.wire.messages import EXEC_LIMITS, OUTPUT_ACK_OVERHEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tidebox.agent.loop import Loop, Timer

MAX_EXECUTIONS = EXEC_LIMITS.max_executions
INPUT_LIMIT = EXEC_LIMITS.input_limit
OUTPUT_LIMIT = EXEC_LIMITS.output_limit
CHUNK_SIZE = EXEC_LIMITS.output_chunk_size

# What a peer without flow control may have queued for one program or connection before it is held back.
UNPACED_INPUT_LIMIT = 8 << 20
# A sink that takes nothing for this long while it holds everybody else back has its input dropped, with an error.
PATIENCE_SECONDS = 1.0


class OutputWindow:
    """Output of one exec that its client has not consumed yet; without flow control it never closes."""

    __slots__ = ("_enforced", "_sent", "_consumed")

    def __init__(self, enforced: bool) -> None:
        self._enforced = enforced
        self._sent = 0
        self._consumed = 0

    @property
    def room(self) -> int:
        """Bytes that the next message may carry."""
        if not self._enforced:
            return CHUNK_SIZE
        return min(CHUNK_SIZE, self._consumed + OUTPUT_LIMIT - self._sent - OUTPUT_ACK_OVERHEAD)

    def sent(self, size: int) -> None:
        """A message with so many bytes went out."""
        self._sent += size + OUTPUT_ACK_OVERHEAD

    def acknowledged(self, consumed: int) -> None:
        """The client's count; one that goes back, or beyond what was sent, changes nothing for the better."""
        self._consumed = min(max(self._consumed, consumed), self._sent)

    def lift(self) -> None:
        """Nobody counts any more."""
        self._enforced = False


class InputBrake:
    """Stops reading from the host while a sink of a peer without flow control is over its limit.

    That holds back everybody, so it lasts only as long as the sink makes progress.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._held: dict[object, tuple[Timer, Callable[[], None]]] = {}

    @property
    def on(self) -> bool:
        """Reading from the host has to wait."""
        return bool(self._held)

    def hold(self, sink: object, give_up: Callable[[], None]) -> None:
        """The sink is over its limit; ``give_up`` is called if it then takes nothing."""
        if sink not in self._held:
            self._held[sink] = (self._patience(sink), give_up)

    def progress(self, sink: object, relieved: bool) -> None:
        """The sink took something, perhaps enough."""
        held = self._held.get(sink)
        if held is None:
            return
        if relieved:
            self.release(sink)
            return
        timer, give_up = held
        timer.cancel()
        self._held[sink] = (self._patience(sink), give_up)

    def release(self, sink: object) -> None:
        """The sink is below its limit, or gone."""
        held = self._held.pop(sink, None)
        if held is not None:
            held[0].cancel()

    def _patience(self, sink: object) -> Timer:
        return self._loop.later(PATIENCE_SECONDS, lambda: self._run_out(sink))

    def _run_out(self, sink: object) -> None:
        held = self._held.pop(sink, None)
        if held is not None:
            held[1]()
