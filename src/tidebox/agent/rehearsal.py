"""An exec for nobody, played through once while the agent waits.

The agent is a fork: the first time it writes to a page, that page is copied, and a program that is handed to a parked
interpreter would wait for every one of those copies. So the agent moves the bytes of an exec that is none beforehand:
a request decoded, input delivered, output read, an exit reported, all into a socket that is thrown away.
"""

from __future__ import annotations

import _socket
import os
import resource

from tidebox.agent.execution import Execution, Stream
from tidebox.agent.flow import InputBrake
from tidebox.agent.host import Host
from tidebox.agent.outbox import Outbox
from tidebox.wire.connection import AgentConnection, Inbound
from tidebox.wire.envelope import encode_message
from tidebox.wire.messages import ExecRequest, ExecStderr, ExecStdin, ExecStdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tidebox.agent.loop import Loop

_ID = 1


def rehearse(loop: Loop, generation: int, decide: Callable[[ExecRequest], object]) -> None:
    """Play an exec through; ``decide`` is what a request is given to."""
    near, far = _socket.socketpair()
    connection = AgentConnection(generation)
    host = Host(connection, Outbox(loop))
    host.outbox.connect(far)
    request = ExecRequest(cmd="tidebox:python", args=["x"], env=["A=b"], cwd="/workspace")
    frames = (request, ExecStdin(data=b"x"), ExecStdin(data=b""))
    connection.reader.feed(b"".join(encode_message(message, _ID, generation) for message in frames))
    stdin_read, stdin = os.pipe()
    stdout, stdout_write = os.pipe()
    stderr, stderr_write = os.pipe()
    for fd in (stdin, stdout, stderr):
        os.set_blocking(fd, False)
    streams = [Stream(stdout, ExecStdout), Stream(stderr, ExecStderr)]
    execution = Execution(
        _ID, host, loop, InputBrake(loop), streams, None, stdin, True, lambda ended: ended.report_exit({}), _nothing
    )
    execution.listen()
    os.write(stdout_write, b"x")
    for fd in (stdout_write, stderr_write):
        os.close(fd)
    item = connection.next_item()
    while isinstance(item, Inbound):
        if isinstance(item.message, ExecRequest):
            decide(item.message)
        elif isinstance(item.message, ExecStdin):
            execution.stdin(item.message.data)
        item = connection.next_item()
    # The output is there already, so this does not wait.
    loop.turn()
    execution.ended(0, resource.getrusage(resource.RUSAGE_CHILDREN))
    host.outbox.flush()
    execution.release()
    os.close(stdin_read)
    near.close()
    far.close()


def _nothing() -> None:
    pass
