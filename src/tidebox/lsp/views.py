"""Report runs to the editor: by ``tidebox/…`` notifications where it knows them, else by its log and messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lsprotocol import types

from tidebox.lsp.running import View, summarize
from tidebox.model.events import StreamName
from tidebox.sdk.interpreter.entries import RunEnd
from tidebox.sdk.interpreter.results import Run

_MAX_PARTIAL = 4000


class EditorConnection(Protocol):
    """The connection to the editor."""

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""

    async def drained(self) -> None:
        """Wait until what was sent has been read: a slow editor slows down what it is told, and nothing else."""


class EditorView(View, Protocol):
    """A view that also shows the end."""

    async def ended(self, run_id: str, end: RunEnd, url: str | None, cut: Sequence[StreamName]) -> None:
        """Report the end; the streams in ``cut`` were not shown in full."""


class ExtensionView:
    """Reports by ``tidebox/…`` notifications, which the VS Code extension knows."""

    def __init__(
        self, connection: EditorConnection, command: list[str], uri: str | None, token: str | int | None
    ) -> None:
        self._connection = connection
        self._command = command
        self._uri = uri
        self._token = token

    async def started(self, run: Run) -> None:
        """Report that the run was created."""
        said = {
            "run_id": run.id,
            "command": self._command,
            "uri": self._uri,
            "log_stream_url": run.log_stream_url,
            "token": self._token,
        }
        self._connection.notify("tidebox/runStarted", said)

    async def output(self, run_id: str, stream: StreamName, text: str) -> None:
        """Send a piece of output."""
        self._connection.notify("tidebox/output", {"run_id": run_id, "stream": stream, "text": text})
        await self._connection.drained()

    async def notice(self, run_id: str | None, text: str) -> None:
        """Send a notice to the user."""
        self._connection.notify("tidebox/notice", {"run_id": run_id, "text": text})

    async def ended(self, run_id: str, end: RunEnd, url: str | None, cut: Sequence[StreamName]) -> None:
        """Report the end; the streams in ``cut`` were not shown in full."""
        said = {
            "run_id": run_id,
            "phase": end.phase.value,
            "exit_code": end.exit_code,
            "reason": end.reason_code,
            "summary": summarize(end),
            "artifacts": bool(end.artifact_bytes),
            "url": url,
            "cut": list(cut),
        }
        self._connection.notify("tidebox/runEnded", said)


class PlainView:
    """For every other editor: whole lines in its log, and the end as a message."""

    def __init__(self, connection: EditorConnection, command: list[str]) -> None:
        self._connection = connection
        self._name = " ".join(command)[:200]
        self._partial: dict[StreamName, str] = {}

    async def started(self, run: Run) -> None:
        """Report that the run was created."""
        self._log(f"$ {self._name}")

    async def output(self, run_id: str, stream: StreamName, text: str) -> None:
        """Send a piece of output."""
        whole, newline, rest = (self._partial.pop(stream, "") + text).rpartition("\n")
        if len(rest) > _MAX_PARTIAL:
            whole, newline, rest = whole + newline + rest, "\n", ""
        if newline:
            self._log(whole)
        if rest:
            self._partial[stream] = rest
        await self._connection.drained()

    async def notice(self, run_id: str | None, text: str) -> None:
        """Send a notice to the user."""
        self._log(f"tidebox: {text}")

    async def ended(self, run_id: str, end: RunEnd, url: str | None, cut: Sequence[StreamName]) -> None:
        """Report the end; the streams in ``cut`` were not shown in full."""
        for rest in self._partial.values():
            self._log(rest)
        kind = types.MessageType.Info if end.ok else types.MessageType.Error
        text = f"{self._name}: {summarize(end)}"
        self._connection.notify(types.WINDOW_SHOW_MESSAGE, types.ShowMessageParams(kind, text))

    def _log(self, text: str) -> None:
        self._connection.notify(types.WINDOW_LOG_MESSAGE, types.LogMessageParams(types.MessageType.Info, text))
