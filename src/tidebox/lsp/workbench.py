"""The commands: what the editor asks for, done with the server's interpreter service."""

from __future__ import annotations

import asyncio
import functools
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lsprotocol import types

from tidebox.errors import InvalidRequest, TideboxError, UnknownLanguage
from tidebox.lsp import arguments, targets
from tidebox.lsp.arguments import ConfigureArguments, Defaults, OpenArtifactsArguments, ReadOutputParams
from tidebox.lsp.defaults import DefaultsFile
from tidebox.lsp.diagnostics.parsing import find_problems
from tidebox.lsp.diagnostics.path_mapping import LocatedProblem, SentFiles, SourceLocation, elsewhere, locate_problems
from tidebox.lsp.folders import Folder, choose_folder, file_of, name_of
from tidebox.lsp.local_copies import LocalCopies
from tidebox.lsp.publishing import PublishedDiagnostics, make_diagnostics
from tidebox.lsp.running import FinishedRun, run_to_end, summarize
from tidebox.lsp.views import EditorView
from tidebox.lsp.workspace_scan import MAX_BYTES, ScanResult, WorkspaceScanner, new_patience
from tidebox.lsp.workspace_sync import WorkspaceSync
from tidebox.model.limits import MIB
from tidebox.model.run import Reason
from tidebox.sdk.interpreter.client import AsyncInterpreter

_FILE = "${file}"
_MAX_FOLDERS = 100
_KEPT_FILES = 16
MAX_READ_BYTES = 16 * MIB

Token = str | int | None


@dataclass(frozen=True, slots=True)
class Document:
    """A document that the editor has open."""

    text: str
    language: str


class Editor(Protocol):
    """The editor, as the workbench uses it."""

    def roots(self) -> list[str]:
        """The directories of its workspace folders."""

    def documents(self) -> Mapping[str, Document]:
        """URI -> what it has open, as it shows it."""

    def settings(self) -> Defaults:
        """Its own settings."""

    def publish(self, uri: str, diagnostics: list[types.Diagnostic]) -> None:
        """Show the diagnostics of a document, in place of those it had."""

    def view(self, command: list[str], uri: str | None, token: Token) -> EditorView:
        """Where a run is shown; ``token`` is what the editor calls the request for it."""

    async def open(self, uri: str, *, external: bool) -> None:
        """Show a document, or a page in a browser, if it can."""


@dataclass(slots=True)
class _FolderState:
    """State kept for one workspace folder."""

    folder: Folder
    scanner: WorkspaceScanner
    sync: WorkspaceSync


@dataclass(frozen=True, slots=True)
class _Job:
    """A run that is fully specified and ready to start."""

    state: _FolderState
    spec: Defaults
    uri: str | None
    command: list[str]
    language: str
    """Where there is one, the server knows by it what runs ``main``; the command is for where it does not."""
    main: str | None
    scanned: ScanResult
    whole: bool
    """Whether it is the whole document that runs, and not a part of it."""
    uris: dict[str, str]
    """Path -> URI, of documents that lie elsewhere than their path says."""

    @property
    def said(self) -> list[str]:
        """The command line to show, or the language and the file."""
        return [self.language, self.main] if self.language and self.main is not None else self.command


class Workbench:
    """Runs, their diagnostics and their artifacts, for one editor."""

    def __init__(
        self,
        client: AsyncInterpreter,
        editor: Editor,
        *,
        page_url: Callable[[str], str | None],
        directory: Path,
        config_dir: Path,
    ) -> None:
        """``page_url`` gives the page of a run, where there is one; ``directory`` is for copies of what runs left."""
        self._client = client
        self._editor = editor
        self._page_url = page_url
        self._published = PublishedDiagnostics(editor.publish)
        self._copies = LocalCopies(client, directory)
        self._kept = DefaultsFile(config_dir)
        self._states: dict[Folder, _FolderState] = {}
        self._last: tuple[Folder, arguments.RunArguments] | None = None
        """Spec of the last run and its folder, for a quick re-run."""
        self._last_run: str | None = None

    async def close(self) -> None:
        """Delete the sessions of all folders and close the client."""
        for state in self._states.values():
            await state.sync.close()
        await self._client.close()

    async def warm_up(self) -> None:
        """Ask the server something, so that it has loaded what runs need when the first one comes."""
        try:
            await self._client.runtimes()
        except TideboxError:
            pass  # the run will say so

    async def run(self, given: arguments.RunArguments, cancelled: asyncio.Event, token: Token = None) -> dict[str, Any]:
        """Run something to its end."""
        folder, given = self._resolve(given)
        state = await self._state_of(folder)
        job = await asyncio.to_thread(self._prepare, given, state, self._editor.documents())
        self._last = folder, given
        view = self._editor.view(job.said, job.uri, token)
        for notice in job.scanned.notices():
            await view.notice(None, notice)
        async with job.state.sync.run_files(job.scanned, _options(job.spec), cancelled) as synced:
            ended = await self._follow(job, synced.options, view, cancelled)
        run, end = ended.run, ended.end
        self._last_run = run.id
        link = self._page_url(run.id)
        if cut := ended.output.cut():
            link = link or await self._copies.log(run.id)
            await view.notice(run.id, f"{' and '.join(cut)} cut at 100 KB; all of it: {link}")
        if ended.dropped:
            await view.notice(run.id, "the server did not keep all of the output")
        await self._show(job, ended, link)
        await view.ended(run.id, end, self._page_url(run.id), cut)
        answer = {"run_id": run.id, "phase": end.phase.value, "exit_code": end.exit_code}
        return answer if run.log_stream_url is None else {**answer, "log_stream_url": run.log_stream_url}

    async def _follow(
        self, job: _Job, options: dict[str, Any], view: EditorView, cancelled: asyncio.Event
    ) -> FinishedRun:
        if job.language and job.main is not None:
            try:
                words = {**options, "language": job.language}
                return await run_to_end(self._client, [job.main], words, view, cancelled)
            except UnknownLanguage as error:
                if not job.command:
                    raise
                await view.notice(None, f"{error.message}; tried: {' '.join(job.command)}")
        return await run_to_end(self._client, job.command, options, view, cancelled)

    def configure(self, given: ConfigureArguments, said: Mapping[str, Any]) -> dict[str, Any]:
        """Keep defaults for a folder; ``said`` are the keys as they came, also those that are null."""
        folder = choose_folder(self._editor.roots(), given.uri)
        changes = {name: value for name, value in said.items() if name != "uri"}
        kept = self._kept.change(folder.root, changes) if changes else self._kept.get(folder.root)
        return dict(kept)

    async def open_artifacts(self, given: OpenArtifactsArguments) -> dict[str, Any]:
        """List what a run left, and open the list."""
        run_id = given.run_id or self._last_run
        if run_id is None:
            raise InvalidRequest("run_id: nothing was run yet", field="run_id")
        items, listed = await self._copies.artifacts(run_id)
        answer: dict[str, Any] = {"run_id": run_id, "items": items, "uri": listed}
        page = self._page_url(run_id)
        if page is not None:
            answer["url"] = page
        await self._editor.open(page or listed, external=page is not None)
        return answer

    async def read_output(self, given: ReadOutputParams) -> dict[str, Any]:
        """All that a run printed to one stream, also what was not shown, up to a limit; and whether there is more."""
        content = await self._client.read_log(given.run_id, stream=given.stream)
        text = content[:MAX_READ_BYTES].decode("utf-8", "replace")
        return {"text": text, "cut": len(content) > MAX_READ_BYTES}

    def _resolve(self, given: arguments.RunArguments) -> tuple[Folder, arguments.RunArguments]:
        """Return folder and arguments of a run: of the last run, changed, if no document and no command is given."""
        if given.uri is None and given.command is None and self._last is not None:
            folder, last = self._last
            return folder, arguments.merged(last, given)
        return choose_folder(self._editor.roots(), given.uri), given

    def _prepare(self, given: arguments.RunArguments, state: _FolderState, documents: Mapping[str, Document]) -> _Job:
        """Decide everything about a run, and look at its files."""
        folder = state.folder
        spec = arguments.merged(self._defaults(folder), given)
        names, contents = arguments.split_files(spec.files)
        texts, uris = _texts(state, given.uri, documents)
        path = _main(state, given.uri, texts, uris)
        usual = None if path is None else _usual_target(path, texts[path])
        if spec.command:
            command = tuple(path if word == _FILE and path is not None else word for word in spec.command)
            target = targets.RunTarget(command)
        elif path is not None and usual is not None:
            target = usual
        else:
            raise InvalidRequest(f"{path or 'uri'}: nothing is known that runs it; give a command", field="command")
        whole = given.command is None or target == usual
        scanned = state.scanner.scan({**texts, **contents}, names, whole=folder.whole)
        return _Job(state, spec, given.uri, list(target.command), target.language, path, scanned, whole, uris)

    async def _state_of(self, folder: Folder) -> _FolderState:
        """Return the state of a folder; the least recently used one is dropped when there are too many."""
        state = self._states.pop(folder, None)
        if state is None:
            scanner = WorkspaceScanner(folder.root)
            state = _FolderState(folder, scanner, WorkspaceSync(self._client, scanner))
        self._states[folder] = state
        if len(self._states) > _MAX_FOLDERS:
            await self._states.pop(next(iter(self._states))).sync.close()
        return state

    def _defaults(self, folder: Folder) -> Defaults:
        return arguments.merged(self._editor.settings(), arguments.convert(Defaults, self._kept.get(folder.root)))

    async def _show(self, job: _Job, ended: FinishedRun, link: str | None) -> None:
        """Publish diagnostics of a finished run, or its exit summary where no frame is in the folder."""
        end = ended.end
        problems, marks = await asyncio.to_thread(self._find, job, ended)
        if not end.ok and end.reason_code != Reason.CANCELED_BY_USER.value and not any(not m.warning for m in marks):
            path = self._about(job)
            words = summarize(end)
            if (found := elsewhere(problems)) is not None:
                message, frame = found
                words = f"{message}\nin the sandbox at {frame.path}:{frame.line}; {words}"
            if path is not None:
                marks = [LocatedProblem(SourceLocation(path, 1), words, warning=False), *marks]
            link = link or await self._copy_of(ended)
        # Marks and what is related to them are often of the same few files.
        lines_of = functools.lru_cache(_KEPT_FILES)(lambda path: job.state.scanner.lines(job.scanned, path))

        def line_of(path: str, line: int) -> str:
            lines = lines_of(path)
            return lines[line - 1] if line <= len(lines) else ""

        found_marks = await asyncio.to_thread(
            make_diagnostics,
            marks,
            lambda path: job.uris.get(path) or job.state.folder.uri_of(path),
            line_of,
            code=f"exit {end.exit_code}" if end.exit_code is not None else end.reason_code or end.phase.value,
            link=link,
            run_id=ended.run.id,
        )
        self._published.replace((job.uri or job.state.folder.root, tuple(job.said)), found_marks, whole=job.whole)

    async def _copy_of(self, ended: FinishedRun) -> str | None:
        """Return the URI of a local list of artifacts, or of a copy of the log, for a run that has no page."""
        try:
            if ended.end.artifact_bytes:
                return (await self._copies.artifacts(ended.run.id))[1]
            return await self._copies.log(ended.run.id)
        except (TideboxError, OSError):
            return None  # it is a link, and the run is over

    def _find(self, job: _Job, ended: FinishedRun) -> tuple[list[Any], list[LocatedProblem]]:
        problems = find_problems(ended.output.tail("stdout"), ended.output.tail("stderr"))
        if ended.end.reason_code == Reason.CANCELED_BY_USER.value:
            return problems, []
        sent = SentFiles(
            (*job.scanned.texts, *job.scanned.files),
            lambda path: len(job.state.scanner.lines(job.scanned, path)),
        )
        marks = locate_problems(problems, sent)
        # A program that worked has caught the errors that it printed.
        return problems, [each for each in marks if each.warning or not ended.end.ok]

    def _about(self, job: _Job) -> str | None:
        """The file that a run is about."""
        known = {*job.scanned.texts, *job.scanned.files}
        for path, uri in job.uris.items():
            if uri == job.uri:
                return path
        words = [posixpath.normpath(word.partition("::")[0]) for word in job.said]
        return next((word for word in words if word in known), None)


def _usual_target(path: str, content: bytes) -> targets.RunTarget | None:
    """Return the usual command of a file, or None if none is known."""
    try:
        return targets.find_target(path, content.decode("utf-8", "replace"))
    except InvalidRequest:
        return None


def _options(spec: Defaults) -> dict[str, Any]:
    """Return the options of the request to the interpreter service."""
    resources = spec.resources or arguments.Resources()
    options = {
        "env": spec.env,
        "base_image": spec.base_image,
        "runtime": spec.runtime,
        "timeout": spec.timeout_sec,
        "startup_timeout": spec.startup_timeout_sec,
        "artifacts": list(spec.capture_patterns or ()),
        "packages": spec.packages,
        "cpus": resources.cpu,
        "memory": None if resources.memory_mb is None else resources.memory_mb * MIB,
        "pids": resources.pids,
    }
    return {name: value for name, value in options.items() if value is not None}


def _texts(
    state: _FolderState, running: str | None, documents: Mapping[str, Document]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return unsaved texts of files that are sent, as path -> content, and their URIs."""
    texts: dict[str, bytes] = {}
    uris: dict[str, str] = {}
    patience = new_patience()
    for uri, document in documents.items():
        path = state.folder.path_of(uri)
        if path is None and uri == running:
            path = name_of(uri, document.language)
        if path is None:
            continue
        # The document itself is what somebody wants to run; of the others that is not known.
        if uri != running and (
            not state.folder.whole or state.scanner.behind_link(path) or state.scanner.ignored(path, patience)
        ):
            continue
        texts[path] = document.text.encode("utf-8", "surrogatepass")
        # As the editor wrote it: there is more than one way to do that, and it knows only its own.
        uris[path] = uri
    return texts, uris


def _main(state: _FolderState, uri: str | None, texts: dict[str, bytes], uris: dict[str, str]) -> str | None:
    """The path of the document to run, whose text is there then."""
    if uri is None:
        return None
    for known, each in uris.items():
        if each == uri:
            return known
    path = state.folder.path_of(uri)
    if path is None:
        if file_of(uri) == state.folder.root:
            return None
        raise InvalidRequest(f"uri: there is no document {uri[:200]}", field="uri")
    try:
        content = state.scanner.read(path, MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"uri: {path}: {error.strerror or error}", field="uri") from None
    if len(content) > MAX_BYTES:
        raise InvalidRequest(f"uri: {path} is larger than {MAX_BYTES // MIB} MiB", field="uri")
    texts[path], uris[path] = content, uri
    return path
