"""``tidebox`` with all that a server loads already loaded: forks a server for each request on its standard input.

A request is one message: the arguments and the environment as JSON, with the descriptors of standard output, standard
error and of the pipe that is told the server's pid, and when it has ended its exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from tidebox.cli.main import main

# What the command loads late, so that it starts early.
LATE = (
    "cryptography.hazmat.backends.openssl.backend",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "jwt",
    "limits.aio.storage.memory",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "tidebox.api.app",
    "tidebox.api.dataplane.surface",
    "tidebox.api.interpreter.stream",
    "tidebox.api.listener",
    "tidebox.api.rest",
    "tidebox.broker.providers.local",
    "tidebox.broker.stock",
    "tidebox.broker.tokens",
    "tidebox.cli.serve",
    "tidebox.runtime.native.runtime",
    "tidebox.server",
    "tidebox.store.sql.store",
    "tidebox.store.sql.upgrade",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)


def take_requests() -> bool:
    """Fork until there are no more requests; true in a server."""
    requests = socket.socket(fileno=os.dup(0))
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    told: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            for pid in list(told):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    _tell(told[pid], os.waitstatus_to_exitcode(status))
                    os.close(told.pop(pid))
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 3)
            if not message:
                return False
            out, err, report = descriptors
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for sock in (requests, woken, wake):
                    sock.close()
                _become(json.loads(message), out, err)
                for descriptor in (*descriptors, *told.values()):
                    os.close(descriptor)
                return True
            os.close(out)
            os.close(err)
            told[pid] = report
            _tell(report, pid)


def _become(request: dict[str, Any], out: int, err: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((null, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, number)
    os.close(null)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["tidebox", *request["arguments"]]


def _tell(report: int, number: int) -> None:
    try:
        os.write(report, b"%d\n" % number)
    except BrokenPipeError:
        pass  # nobody wants to know any more


if __name__ == "__main__":
    for name in LATE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if take_requests():
        sys.exit(main())
