"""The language server itself: the protocol's requests, and the editor as the workbench sees it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from lsprotocol import types
from lsprotocol.converters import get_converter
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInternalError,
    JsonRpcInvalidParams,
    JsonRpcRequestCancelled,
)
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

import tidebox
from tidebox.errors import InternalError, InvalidRequest, TideboxError
from tidebox.lsp import arguments
from tidebox.lsp.arguments import ConfigureArguments, Defaults, OpenArtifactsArguments, ReadOutputParams
from tidebox.lsp.folders import choose_folder, file_of, name_of
from tidebox.lsp.targets import find_lenses
from tidebox.lsp.views import EditorView, ExtensionView, PlainView
from tidebox.lsp.workbench import Document, Token, Workbench
from tidebox.lsp.workspace_sync import NotStarted

_log = structlog.get_logger("tidebox.lsp")

PREFIXES = ("tldw.sandbox.", "tidebox.")
COMMANDS = ("run", "configure", "openArtifacts")
RUN = "tldw.sandbox.run"
READ_OUTPUT = "tidebox/readOutput"
_SECTION = "tidebox"
_CLOSE_SECONDS = 15.0

MakeWorkbench = Callable[["EditorServer", str | None], Workbench]


class RequestFailed(JsonRpcException):
    """A valid request that failed while it was carried out."""

    CODE = types.LSPErrorCodes.RequestFailed.value
    MESSAGE = "Request failed"


class Protocol(LanguageServerProtocol):
    """pygls's protocol, but that a request to execute a command is one task, which cancelling it cancels."""

    _server: EditorServer

    @lsp_method(types.EXIT)
    def lsp_exit(self, *args: Any) -> None:  # type: ignore[override]
        self._server.ended.set()

    @lsp_method(types.WORKSPACE_EXECUTE_COMMAND)
    async def lsp_workspace__execute_command(  # type: ignore[override]
        self, params: types.ExecuteCommandParams
    ) -> Any:
        return await self._server.execute(params)

    @property
    def was_shut_down(self) -> bool:
        """Whether the client said that it would end."""
        return self._shutdown


class EditorServer(LanguageServer):
    """One editor's server."""

    protocol: Protocol

    def __init__(self, make_workbench: MakeWorkbench, drained: Callable[[], Awaitable[None]]) -> None:
        super().__init__("tidebox", tidebox.__version__, protocol_cls=Protocol, converter_factory=get_converter)
        # It logs what is sent, which is programs and what they print.
        logging.getLogger("pygls").setLevel(logging.CRITICAL + 1)
        self.ended = asyncio.Event()
        self._drained = drained
        self._make_workbench = make_workbench
        self._workbench: Workbench | None = None
        self._settings = Defaults()
        self._executing: set[asyncio.Task[Any]] = set()
        for prefix in PREFIXES:
            for name in COMMANDS:
                # Listed; what executes them is the protocol above.
                self.command(prefix + name)(lambda: None)
        self.feature(types.INITIALIZE)(self._on_initialize())
        self.feature(types.INITIALIZED)(self._on_initialized())
        self.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(self._on_configuration())
        self.feature(READ_OUTPUT)(self._on_read_output())
        self.feature(types.TEXT_DOCUMENT_CODE_LENS, types.CodeLensOptions(resolve_provider=False))(self._on_lens())

    async def close(self) -> None:
        """Kill what runs, and leave nothing on the server."""
        for task in self._executing:
            task.cancel()
        if self._executing:
            await asyncio.wait(self._executing, timeout=_CLOSE_SECONDS)
        if self._workbench is not None:
            await self._workbench.close()

    # Handlers, as functions: pygls marks what it is given.

    def _on_initialize(self) -> Callable[[types.InitializeParams], None]:
        def initialize(params: types.InitializeParams) -> None:
            self._workbench = self._make_workbench(self, params.client_info.name if params.client_info else None)
            if params.initialization_options is not None:
                self._take_settings(params.initialization_options)

        return initialize

    def _on_initialized(self) -> Callable[[types.InitializedParams], Any]:
        async def initialized(params: types.InitializedParams) -> None:
            if self._workbench is not None:
                await self._workbench.warm_up()

        return initialized

    def _on_configuration(self) -> Callable[[types.DidChangeConfigurationParams], None]:
        def change(params: types.DidChangeConfigurationParams) -> None:
            if isinstance(params.settings, Mapping) and _SECTION in params.settings:
                self._take_settings(params.settings[_SECTION])

        return change

    def _on_lens(self) -> Callable[[types.CodeLensParams], Any]:
        async def lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
            return self._lenses(params.text_document.uri)

        return lenses

    def _on_read_output(self) -> Callable[[Any], Any]:
        async def read_output(params: Any) -> Any:
            said = params._asdict() if hasattr(params, "_asdict") else params
            return await self._guarded("readOutput", lambda workbench: workbench.read_output(_wanted(said)))

        return read_output

    def _take_settings(self, given: Any) -> None:
        try:
            self._settings = arguments.convert(Defaults, given or {})
        except InvalidRequest as error:
            text = f"the settings of tidebox: {error.message}"
            self.window_show_message(types.ShowMessageParams(types.MessageType.Error, text))

    def _lenses(self, uri: str) -> list[types.CodeLens]:
        document = self.documents().get(uri)
        if document is None:
            return []
        try:
            path = choose_folder(self.roots(), uri).path_of(uri) or name_of(uri, document.language)
        except InvalidRequest:
            return []
        found = []
        for lens in find_lenses(path, document.text):
            # For a whole file the folder may have a command of its own.
            said = {"uri": uri, "command": list(lens.command)} if lens.command else {"uri": uri}
            place = types.Range(types.Position(lens.line, 0), types.Position(lens.line, 0))
            found.append(types.CodeLens(place, types.Command(title=lens.title, command=RUN, arguments=[said])))
        return found

    async def execute(self, params: types.ExecuteCommandParams) -> Any:
        """Execute a command."""
        name = next((params.command.removeprefix(p) for p in PREFIXES if params.command.startswith(p)), "")
        if name not in COMMANDS:
            raise JsonRpcInvalidParams(message=f"there is no command {params.command[:200]!r}")
        return await self._guarded(name, lambda workbench: self._execute(workbench, name, params))

    async def _guarded(self, name: str, action: Callable[[Workbench], Awaitable[Any]]) -> Any:
        """Run an action of the workbench; map its exceptions to JSON-RPC errors."""
        task = asyncio.current_task()
        assert task is not None
        self._executing.add(task)
        try:
            if self._workbench is None:
                raise InvalidRequest("not initialized", field="command")
            return await action(self._workbench)
        except NotStarted:
            raise JsonRpcRequestCancelled from None
        except InvalidRequest as error:
            raise JsonRpcInvalidParams(message=error.message, data=_data(error)) from None
        except TideboxError as error:
            raise RequestFailed(message=error.message, data=_data(error)) from None
        except (OSError, TimeoutError) as error:
            raise RequestFailed(message=str(error)) from None
        except Exception:
            _log.exception("command_failed", command=name)
            raise JsonRpcInternalError(message=InternalError("a defect of tidebox; see its log").message) from None
        finally:
            self._executing.discard(task)

    async def _execute(self, workbench: Workbench, name: str, params: types.ExecuteCommandParams) -> Any:
        if name == "run":
            given = arguments.parse(arguments.RunArguments, params.arguments)
            async with _Progress(self, params.work_done_token) as progress:
                return await workbench.run(given, progress.cancelled, params.work_done_token)
        if name == "configure":
            said = params.arguments[0] if params.arguments else {}
            parsed = arguments.parse(ConfigureArguments, params.arguments)
            return await asyncio.to_thread(workbench.configure, parsed, said if isinstance(said, dict) else {})
        return await workbench.open_artifacts(arguments.parse(OpenArtifactsArguments, params.arguments))

    # The editor, as the workbench sees it.

    def roots(self) -> list[str]:
        """The directories of its workspace folders."""
        uris = list(self.workspace.folders) or ([self.workspace.root_uri] if self.workspace.root_uri else [])
        return [path for uri in uris if (path := file_of(uri)) is not None]

    def documents(self) -> Mapping[str, Document]:
        """URI -> what it has open, as it shows it."""
        return {
            uri: Document(document.source, document.language_id or "")
            for uri, document in list(self.workspace.text_documents.items())
        }

    def settings(self) -> Defaults:
        """Its own settings."""
        return self._settings

    def publish(self, uri: str, diagnostics: list[types.Diagnostic]) -> None:
        """Show the diagnostics of a document, in place of those it had."""
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=diagnostics))

    def view(self, command: list[str], uri: str | None, token: Token) -> EditorView:
        """Where a run is shown; ``token`` is what the editor calls the request for it."""
        experimental = self.client_capabilities.experimental
        if isinstance(experimental, Mapping) and experimental.get("tidebox"):
            return ExtensionView(self, command, uri, token)
        return PlainView(self, command)

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self.protocol.notify(method, params)

    async def drained(self) -> None:
        """Wait until what was sent has been read."""
        await self._drained()

    async def open(self, uri: str, *, external: bool) -> None:
        """Show a document, or a page in a browser, if it can."""
        window = self.client_capabilities.window
        if window is not None and window.show_document is not None and window.show_document.support:
            shown = types.ShowDocumentParams(uri=uri, external=external, take_focus=not external)
            self.protocol.send_request(types.WINDOW_SHOW_DOCUMENT, shown)

    def can_show_progress(self) -> bool:
        """Whether it takes progress that the server begins."""
        window = self.client_capabilities.window
        return bool(window is not None and window.work_done_progress)


class _Progress:
    """The progress of one run, which the user may cancel."""

    def __init__(self, server: EditorServer, token: types.ProgressToken | None) -> None:
        self._server = server
        self._token = token
        self._begun = False
        self._beginning: asyncio.Task[None] | None = None
        self.cancelled = asyncio.Event()

    async def __aenter__(self) -> _Progress:
        if self._token is not None:
            self._begin(self._token)
        elif self._server.can_show_progress():
            # The run does not wait for the editor's answer.
            self._beginning = asyncio.get_running_loop().create_task(self._create(), name="lsp progress")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait({self._beginning})
        if self._begun and self._token is not None:
            self._server.work_done_progress.end(self._token, types.WorkDoneProgressEnd())
            self._server.work_done_progress.tokens.pop(self._token, None)

    async def _create(self) -> None:
        token = str(uuid.uuid4())
        try:
            await self._server.work_done_progress.create_async(token)
        except JsonRpcException:
            return  # it does not want to know
        self._token = token
        self._begin(token)

    def _begin(self, token: types.ProgressToken) -> None:
        self._begun = True
        progress = self._server.work_done_progress
        progress.begin(token, types.WorkDoneProgressBegin(title="Run in Sandbox", cancellable=True))
        progress.tokens[token].add_done_callback(lambda future: self.cancelled.set() if future.cancelled() else None)


def _wanted(said: Any) -> ReadOutputParams:
    return arguments.parse(ReadOutputParams, [said])


def _data(error: TideboxError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message}
