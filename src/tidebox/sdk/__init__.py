"""Clients of a Tidebox server: ``Client`` for threads, ``AsyncClient`` for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidebox.sdk.accumulator import Accumulator
    from tidebox.sdk.asynchronous import AsyncClient, AsyncExecution
    from tidebox.sdk.errors import (
        ClientClosed,
        ConnectionLost,
        ServerProtocolError,
        ServerRefused,
        ServerUnreachable,
        VersionRefused,
    )
    from tidebox.sdk.frames import Load, Status
    from tidebox.sdk.result import Health, Output, Result
    from tidebox.sdk.synchronous import Client, Execution

# Name -> where it lives: whoever uses one client does not load what the other needs.
_LAZY = {
    "Accumulator": "accumulator",
    "AsyncClient": "asynchronous",
    "AsyncExecution": "asynchronous",
    "Client": "synchronous",
    "ClientClosed": "errors",
    "ConnectionLost": "errors",
    "Execution": "synchronous",
    "Health": "result",
    "Load": "frames",
    "Output": "result",
    "Result": "result",
    "ServerProtocolError": "errors",
    "ServerRefused": "errors",
    "ServerUnreachable": "errors",
    "Status": "frames",
    "VersionRefused": "errors",
}

__all__ = [
    "Accumulator",
    "AsyncClient",
    "AsyncExecution",
    "Client",
    "ClientClosed",
    "ConnectionLost",
    "Execution",
    "Health",
    "Load",
    "Output",
    "Result",
    "ServerProtocolError",
    "ServerRefused",
    "ServerUnreachable",
    "Status",
    "VersionRefused",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
