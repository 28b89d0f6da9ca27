"""``python -m tidebox.agent``: the agent without a box, for a machine that is the box, and for tests."""

from __future__ import annotations

import _socket
import os
import sys

from tidebox.agent.init_setup import InitSetup
from tidebox.agent.main import serve
from tidebox.wire.generations import GENERATION

_USAGE = "usage: python -m tidebox.agent (--socket PATH | --fd N) [--generation N] [--no-bootstrap]"


class AgentOptions:
    """The command line."""

    def __init__(self, arguments: list[str]) -> None:
        self.socket: str | None = None
        self.fd = -1
        self.generation = GENERATION
        self.bootstrap = True
        rest = iter(arguments)
        for argument in rest:
            if argument == "--socket":
                self.socket = next(rest)
            elif argument == "--fd":
                self.fd = int(next(rest))
            elif argument == "--generation":
                self.generation = int(next(rest))
            elif argument == "--no-bootstrap":
                self.bootstrap = False
            else:
                raise ValueError(argument)
        if (self.socket is None) == (self.fd < 0) or not 1 <= self.generation <= GENERATION:
            raise ValueError(f"--socket or --fd, and a generation up to {GENERATION}")


def accept_one(path: str) -> int:
    """Listen, take the one host that connects, and listen no more."""
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1)
    try:
        # Private, and still the least: the public class would import all of enum and selectors into the agent.
        fd: int = listener._accept()[0]  # type: ignore[attr-defined]
        return fd
    finally:
        listener.close()
        os.unlink(path)


def main() -> int:
    """Read the command line and serve; the exit code."""
    try:
        options = AgentOptions(sys.argv[1:])
    except (ValueError, StopIteration):
        os.write(2, _USAGE.encode() + b"\n")
        return 2
    fd = options.fd if options.socket is None else accept_one(options.socket)
    os.environ.clear()
    return serve(
        InitSetup(
            sock=fd,
            generation=options.generation,
            user=(os.getuid(), os.getgid()),
            default_user_name="",
            confine=lambda: None,
            builtins={},
            bootstrap=options.bootstrap,
        )
    )


if __name__ == "__main__":
    os._exit(main())
