"""A client of the language server over stdio, as editors have it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests.patience import patient

COMMAND = [sys.executable, "-c", "import sys; from tidebox.cli.main import main; sys.exit(main())", "lsp"]
_SECONDS = 60.0


class Editor:
    """An editor, and all that its server tells it."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.client = LanguageClient("test-editor", "1")
        self.diagnostics: dict[str, list[types.Diagnostic]] = {}
        self.published: list[str] = []
        self.notices: list[str] = []
        self.output: dict[tuple[str, str], str] = {}
        """(run, stream) -> what it printed."""
        self.started: list[Any] = []
        self.ended: list[Any] = []
        self.logged: list[str] = []
        self.messages: list[str] = []
        self.documents_shown: list[types.ShowDocumentParams] = []
        self.progress: list[tuple[Any, Any]] = []
        self.capabilities: types.ServerCapabilities | None = None
        self._changed = asyncio.Event()
        self._versions: dict[str, int] = {}
        self._listen()

    def _listen(self) -> None:
        feature = self.client.feature

        def note(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def noted(params: Any) -> Any:
                result = function(params)
                self._changed.set()
                return result

            return noted

        def diagnostics(params: types.PublishDiagnosticsParams) -> None:
            self.diagnostics[params.uri] = list(params.diagnostics)
            self.published.append(params.uri)

        def output(params: Any) -> None:
            key = params.run_id, params.stream
            self.output[key] = self.output.get(key, "") + params.text

        def shown(params: types.ShowDocumentParams) -> types.ShowDocumentResult:
            self.documents_shown.append(params)
            return types.ShowDocumentResult(success=True)

        feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(note(diagnostics))
        feature("tidebox/output")(note(output))
        feature("tidebox/notice")(note(lambda params: self.notices.append(params.text)))
        feature("tidebox/runStarted")(note(self.started.append))
        feature("tidebox/runEnded")(note(self.ended.append))
        feature(types.WINDOW_LOG_MESSAGE)(note(lambda params: self.logged.append(params.message)))
        feature(types.WINDOW_SHOW_MESSAGE)(note(lambda params: self.messages.append(params.message)))
        feature(types.WINDOW_SHOW_DOCUMENT)(note(shown))
        feature(types.WINDOW_WORK_DONE_PROGRESS_CREATE)(note(lambda params: None))
        feature(types.PROGRESS)(note(lambda params: self.progress.append((params.token, params.value))))

    async def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        own: bool = True,
        progress: bool = False,
        options: Any = None,
    ) -> None:
        """Start the server, and shake hands. ``own`` is whether the editor knows our notifications."""
        await self.client.start_io(*COMMAND, *arguments, env={**os.environ, **(env or {})})
        uri = None if self.folder is None else self.folder.as_uri()
        folders = None if uri is None else [types.WorkspaceFolder(uri=uri, name="folder")]
        window = types.WindowClientCapabilities(
            work_done_progress=progress, show_document=types.ShowDocumentClientCapabilities(support=True)
        )
        params = types.InitializeParams(
            capabilities=types.ClientCapabilities(window=window, experimental={"tidebox": True} if own else None),
            client_info=types.ClientInfo(name="test-editor"),
            root_uri=uri,
            workspace_folders=folders,
            initialization_options=options,
        )
        async with asyncio.timeout(patient(_SECONDS)):
            answer = await self.client.initialize_async(params)
        self.capabilities = answer.capabilities
        self.client.initialized(types.InitializedParams())

    async def stop(self) -> None:
        """Say goodbye, and wait until the server is gone."""
        async with asyncio.timeout(patient(_SECONDS)):
            await self.client.shutdown_async(None)
            self.client.exit(None)
            server = self.client._server
            if server is not None:
                await server.wait()
            await self.client.stop()  # type: ignore[no-untyped-call]

    def uri(self, name: str) -> str:
        """The URI of a file of the folder."""
        assert self.folder is not None
        return (self.folder / name).as_uri()

    def write(self, name: str, text: str) -> str:
        """Put a file on the disk; its URI."""
        assert self.folder is not None
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self.uri(name)

    def show(self, uri: str, text: str, language: str = "python") -> None:
        """Open a document, or change what is shown of it."""
        version = self._versions[uri] = self._versions.get(uri, 0) + 1
        if version == 1:
            item = types.TextDocumentItem(uri=uri, language_id=language, version=version, text=text)
            self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
            return
        whole = types.TextDocumentContentChangeWholeDocument(text=text)
        document = types.VersionedTextDocumentIdentifier(uri=uri, version=version)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))

    async def execute(self, command: str, argument: Any = None) -> Any:
        """Execute a command; its answer."""
        params = types.ExecuteCommandParams(command=command, arguments=[] if argument is None else [argument])
        async with asyncio.timeout(patient(_SECONDS)):
            return await self.client.workspace_execute_command_async(params)

    async def run(self, **given: Any) -> Any:
        """Run something."""
        return await self.execute("tidebox.run", given)

    async def add_folder(self, folder: Path) -> None:
        """Have one more folder open, which the helpers mean from now on."""
        self.folder = folder
        added = [types.WorkspaceFolder(uri=folder.as_uri(), name=folder.name)]
        event = types.WorkspaceFoldersChangeEvent(added=added, removed=[])
        self.client.workspace_did_change_workspace_folders(types.DidChangeWorkspaceFoldersParams(event))

    async def lenses(self, uri: str) -> list[types.CodeLens]:
        """The lenses of a document."""
        params = types.CodeLensParams(types.TextDocumentIdentifier(uri))
        async with asyncio.timeout(patient(_SECONDS)):
            return list(await self.client.text_document_code_lens_async(params) or [])

    async def until(self, fact: Callable[[], Any]) -> Any:
        """Wait for something that the server tells."""
        async with asyncio.timeout(patient(_SECONDS)):
            while not (found := fact()):
                self._changed.clear()
                await self._changed.wait()
        return found


@asynccontextmanager
async def editor(folder: Path | None, *arguments: str, **options: Any) -> AsyncIterator[Editor]:
    """An editor with a language server."""
    opened = Editor(folder)
    await opened.start(*arguments, **options)
    try:
        yield opened
    finally:
        await opened.stop()
