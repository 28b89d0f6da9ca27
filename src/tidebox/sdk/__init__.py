"""Clients of a Tidebox server, for threads and for asyncio.

``Client`` and ``AsyncClient`` run programs in fresh boxes, ``Access`` and ``AsyncAccess`` give sandboxes that live on,
``Interpreter`` and ``AsyncInterpreter`` use the interpreter service: sessions, runs that are kept, logs, artifacts.
The package may import ``errors``, ``model``, ``protocols`` and ``config``.
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
    from tidebox.sdk.interpreter.admin import AsyncAdmin
    from tidebox.sdk.interpreter.blocking import Admin, Interpreter, RunLog
    from tidebox.sdk.interpreter.client import AsyncInterpreter
    from tidebox.sdk.interpreter.entries import (
        InputClosed,
        LogChunk,
        LogEntry,
        LogGap,
        LogTruncated,
        PhaseChange,
        ProgramStart,
        Progress,
        Reached,
        RunEnd,
    )
    from tidebox.sdk.interpreter.results import Artifact, AuditEvent, Page, Run, RunResult, Session
    from tidebox.sdk.interpreter.run_log import AsyncRunLog
    from tidebox.sdk.result import Health, Output, Result
    from tidebox.sdk.sandboxes.access import AsyncAccess
    from tidebox.sdk.sandboxes.blocking import Access, Files, Process, Sandbox, Watch
    from tidebox.sdk.sandboxes.files import AsyncFiles
    from tidebox.sdk.sandboxes.process import AsyncProcess
    from tidebox.sdk.sandboxes.results import Chunk, Ending, ExecResult, FileInfo, SandboxInfo
    from tidebox.sdk.sandboxes.sandbox import AsyncSandbox
    from tidebox.sdk.sandboxes.watch import AsyncWatch, Change
    from tidebox.sdk.synchronous import Client, Execution

# Name -> where it lives: a program that uses one client does not load what the others need.
_LAZY = {
    "Access": "sandboxes.blocking",
    "Accumulator": "accumulator",
    "Admin": "interpreter.blocking",
    "Artifact": "interpreter.results",
    "AsyncAccess": "sandboxes.access",
    "AsyncAdmin": "interpreter.admin",
    "AsyncClient": "asynchronous",
    "AsyncExecution": "asynchronous",
    "AsyncFiles": "sandboxes.files",
    "AsyncInterpreter": "interpreter.client",
    "AsyncProcess": "sandboxes.process",
    "AsyncRunLog": "interpreter.run_log",
    "AsyncSandbox": "sandboxes.sandbox",
    "AsyncWatch": "sandboxes.watch",
    "AuditEvent": "interpreter.results",
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
    "InputClosed": "interpreter.entries",
    "Interpreter": "interpreter.blocking",
    "Load": "result",
    "LogChunk": "interpreter.entries",
    "LogEntry": "interpreter.entries",
    "LogGap": "interpreter.entries",
    "LogTruncated": "interpreter.entries",
    "Output": "result",
    "Page": "interpreter.results",
    "PhaseChange": "interpreter.entries",
    "Process": "sandboxes.blocking",
    "ProgramStart": "interpreter.entries",
    "Progress": "interpreter.entries",
    "Reached": "interpreter.entries",
    "Result": "result",
    "Run": "interpreter.results",
    "RunEnd": "interpreter.entries",
    "RunLog": "interpreter.blocking",
    "RunResult": "interpreter.results",
    "Sandbox": "sandboxes.blocking",
    "SandboxInfo": "sandboxes.results",
    "SandboxRecreated": "errors",
    "ServerProtocolError": "errors",
    "ServerRefused": "errors",
    "ServerUnreachable": "errors",
    "Session": "interpreter.results",
    "Status": "result",
    "VersionRefused": "errors",
    "Watch": "sandboxes.blocking",
}

__all__ = [
    "Access",
    "Accumulator",
    "Admin",
    "Artifact",
    "AsyncAccess",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncExecution",
    "AsyncFiles",
    "AsyncInterpreter",
    "AsyncProcess",
    "AsyncRunLog",
    "AsyncSandbox",
    "AsyncWatch",
    "AuditEvent",
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
    "InputClosed",
    "Interpreter",
    "Load",
    "LogChunk",
    "LogEntry",
    "LogGap",
    "LogTruncated",
    "Output",
    "Page",
    "PhaseChange",
    "Process",
    "ProgramStart",
    "Progress",
    "Reached",
    "Result",
    "Run",
    "RunEnd",
    "RunLog",
    "RunResult",
    "Sandbox",
    "SandboxInfo",
    "SandboxRecreated",
    "ServerProtocolError",
    "ServerRefused",
    "ServerUnreachable",
    "Session",
    "Status",
    "VersionRefused",
    "Watch",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
