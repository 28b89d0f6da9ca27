"""A server that ours is compared with: a process of its own, on a free port, on the parts that ours stands on."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from tidebox.cli.yardsticks import ENDS_WITH_PARENT


class Beside:
    """The process. ``module`` has a function ``serve`` that takes the descriptor of a listening socket, and more."""

    def __init__(self, module: str, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address: tuple[str, int] = listener.getsockname()
            words = ", ".join(map(repr, (listener.fileno(), *arguments)))
            program = f"{ENDS_WITH_PARENT}from {module} import serve; serve({words})"
            self._process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[listener.fileno()])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def listen(app: Any, descriptor: int) -> None:
    """Serve an application on a socket that listens already, until killed."""
    import uvicorn

    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        lifespan="off",
        log_level="critical",
        timeout_keep_alive=600,
    )
    uvicorn.Server(config).run([socket.socket(fileno=descriptor)])
