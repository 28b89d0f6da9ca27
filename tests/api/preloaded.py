"""``tidebox`` with all that a server loads already loaded: forks a command for each request on its standard input.

A request is one message: the arguments, the environment and the directory as JSON, with the descriptors of the standard
streams and of the pipe that is told the command's pid, and when it has ended its exit code.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
from typing import Any

import tidebox.api
import tidebox.broker
import tidebox.store.sql
from tidebox.cli.main import main

# What the command loads late, so that it starts early; building the models of requests and answers is most of it.
PACKAGES = (tidebox.api, tidebox.broker, tidebox.store.sql)
LATE = (
    "cryptography.hazmat.backends.openssl.backend",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "encodings.idna",
    "jwt",
    "limits.aio.storage.memory",
    "pydantic.root_model",
    "pydantic.v1",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "tidebox.cli.serve",
    "tidebox.runtime.native.runtime",
    "tidebox.server",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def take_requests() -> bool:
    """Fork until there are no more requests; true in a command."""
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
            message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
            if not message:
                return False
            *streams, report = descriptors
            pid = os.fork()
            if pid == 0:
                # Of a run that is killed nothing is left.
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for sock in (requests, woken, wake):
                    sock.close()
                _become(json.loads(message), streams)
                for descriptor in (*descriptors, *told.values()):
                    os.close(descriptor)
                return True
            for stream in streams:
                os.close(stream)
            told[pid] = report
            _tell(report, pid)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["tidebox", *request["arguments"]]


def _tell(report: int, number: int) -> None:
    try:
        os.write(report, b"%d\n" % number)
    except BrokenPipeError:
        pass  # nobody wants to know any more


if __name__ == "__main__":
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if take_requests():
        sys.exit(main())
