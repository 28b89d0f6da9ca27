"""Clients of a Tidebox server, for threads and for asyncio.

``Client`` and ``AsyncClient`` run programs in fresh boxes, ``Access`` and ``AsyncAccess`` give sandboxes that live on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidebox.protocols.fathom import Load, Status
    from tidebox.sdk.accumulator import Accumulator
    from tidebox.sdk.asynchronous import AsyncClient, AsyncExecution
    from tidebox.sdk.errors import (
        ClientClosed,
        ConnectionLost,
        SandboxRecreated,
        ServerProtocolError,
        ServerRefused,
        ServerUnreachable,
        VersionRefused,
    )
    from tidebox.sdk.result import Health, Output, Result
    from tidebox.sdk.sandboxes.access import AsyncAccess
    from tidebox.sdk.sandboxes.blocking import Access, Files, Process, Sandbox, Watch
    from tidebox.sdk.sandboxes.files import AsyncFiles
    from tidebox.sdk.sandboxes.process import AsyncProcess
    from tidebox.sdk.sandboxes.results import Chunk, Ending, ExecResult, FileInfo
    from tidebox.sdk.sandboxes.sandbox import AsyncSandbox
    from tidebox.sdk.sandboxes.watch import AsyncWatch, Change
    from tidebox.sdk.synchronous import Client, Execution

# Name -> where it lives: whoever uses one client does not load what the other needs.
_LAZY = {
    "Access": "sandboxes.blocking",
    "Accumulator": "accumulator",
    "AsyncAccess": "sandboxes.access",
    "AsyncClient": "asynchronous",
    "AsyncExecution": "asynchronous",
    "AsyncFiles": "sandboxes.files",
    "AsyncProcess": "sandboxes.process",
    "AsyncSandbox": "sandboxes.sandbox",
    "AsyncWatch": "sandboxes.watch",
    "Change": "sandboxes.watch",
    "Chunk": "sandboxes.results",
    "Client": "synchronous",
    "ClientClosed": "errors",
    "ConnectionLost": "errors",
    "Ending": "sandboxes.results",
    "ExecResult": "sandboxes.results",
    "Execution": "synchronous",
    "FileInfo": "sandboxes.results",
    "Files": "sandboxes.blocking",
    "Health": "result",
    "Load": "result",
    "Output": "result",
    "Process": "sandboxes.blocking",
    "Result": "result",
    "Sandbox": "sandboxes.blocking",
    "SandboxRecreated": "errors",
    "ServerProtocolError": "errors",
    "ServerRefused": "errors",
    "ServerUnreachable": "errors",
    "Status": "result",
    "VersionRefused": "errors",
    "Watch": "sandboxes.blocking",
}

__all__ = [
    "Access",
    "Accumulator",
    "AsyncAccess",
    "AsyncClient",
    "AsyncExecution",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncWatch",
    "Change",
    "Chunk",
    "Client",
    "ClientClosed",
    "ConnectionLost",
    "Ending",
    "ExecResult",
    "Execution",
    "FileInfo",
    "Files",
    "Health",
    "Load",
    "Output",
    "Process",
    "Result",
    "Sandbox",
    "SandboxRecreated",
    "ServerProtocolError",
    "ServerRefused",
    "ServerUnreachable",
    "Status",
    "VersionRefused",
    "Watch",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
