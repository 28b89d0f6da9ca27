"""From what was typed after ``tidebox run`` to how the program ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidebox.cli import signals
from tidebox.cli.artifacts import Artifact, ArtifactDirectory, wanted
from tidebox.cli.inputs import FilesIn, language_of_file, named_interpreter, parse_env, parse_size
from tidebox.cli.output import note
from tidebox.cli.signals import Stopped
from tidebox.cli.streams import BlockingCalls, is_null, read_chunks, write_all
from tidebox.config import load_settings
from tidebox.errors import ExecFailed, InvalidRequest
from tidebox.model.events import EgressSeen, Event, OutputEvent, Preparing
from tidebox.model.execution_request import ExecutionOutcome
from tidebox.model.launch import WORKSPACE, Launch, plan_code, plan_command, plan_file
from tidebox.model.limits import Limits, make_limits
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.packages import Packages, make_packages, script_packages
from tidebox.model.runtimes import Finding

if TYPE_CHECKING:
    from tidebox.cli.remote import Server
    from tidebox.embedded import ProgramRunner
    from tidebox.model.requested_egress import RequestedEgress
    from tidebox.sdk.server_engine import ServerEngine

_DESCRIPTORS = {"stdout": 1, "stderr": 2}
_MOST_DENIALS = 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line, understood but not yet checked."""

    words: Sequence[str]
    is_command: bool
    code: str | None
    language: str | None
    stdin: int | None
    env: Sequence[str]
    files: Sequence[str]
    artifacts: Sequence[str]
    artifacts_dir: str
    force: bool
    runtime: str | None
    image: str
    packages: Sequence[str]
    egress: RequestedEgress | None
    sizes: dict[str, str | None]
    numbers: dict[str, float | None]
    keep_output: bool
    server: Server | None = None
    """The server to run on; None to run here."""
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of a run, for the report."""

    ending: ExecutionOutcome
    limits: Limits
    image: str
    output: dict[str, bytes]
    artifacts: list[Artifact]
    stopped_by: int | None
    """The signal that we got and passed on."""


def _prepared(request: Request) -> tuple[Limits, Launch, FilesIn]:
    """Check the request, and read what it needs of this machine."""
    limits = _limits(request)
    files = FilesIn(limits.workspace)
    launch = _launch(request, files, limits.memory)
    for given in request.files:
        files.add(given)
    if files.links_left_out:
        note(f"{files.links_left_out} links or special files were not copied in")
    return limits, launch, files


def start(request: Request) -> str:
    """Start a program on a server, and leave it there; its run's id."""
    limits, launch, files = _prepared(request)
    server = request.server
    assert server is not None

    async def starting() -> str:
        from tidebox.sdk.server_engine import ServerEngine

        async with server.interpreter() as client:
            engine = ServerEngine(client, request.session_id)
            run = await engine.start(
                launch,
                limits=limits,
                runtime=request.runtime,
                image=request.image,
                packages=_packages(request, launch, files),
                egress=request.egress,
                files=files.files,
                artifacts=request.artifacts,
            )
            return run.id

    return signals.run(starting())


def execute(request: Request) -> Finished:
    """Check the request, run it, save what it leaves."""
    limits, launch, files = _prepared(request)
    with contextlib.ExitStack() as stack:
        directory = None
        if request.artifacts:
            directory = ArtifactDirectory(request.artifacts_dir, replace=request.force)
            stack.callback(directory.close)
        run = _Run(request, limits, launch, files.files, _packages(request, launch, files))
        try:
            ending = asyncio.run(run.ending())
        except asyncio.CancelledError:
            if run.there is not None and run.there.run_id is not None:
                note(f"left {run.there.run_id}, which is being cancelled: tidebox runs show {run.there.run_id}")
            raise Stopped(run.stopped_by or signal.SIGINT) from None
        saved = []
        if directory is not None and ending.captured is not None:
            found = wanted(ending.captured.files, request.artifacts, files.files)
            saved = [directory.save(path, content) for path, content in found.items()]
    return Finished(
        ending=ending,
        limits=run.limits_in_force(),
        image=request.image,
        output={name: b"".join(parts) for name, parts in run.kept.items()},
        artifacts=saved,
        stopped_by=run.stopped_by,
    )


def _limits(request: Request) -> Limits:
    given: dict[str, Any] = dict(request.numbers)
    for name, text in request.sizes.items():
        given[name] = None if text is None else parse_size("--output-limit" if name == "output" else f"--{name}", text)
    return make_limits(**given)


def _launch(request: Request, files: FilesIn, memory: int) -> Launch:
    env = parse_env(request.env)
    languages = load_settings().known_languages()
    language = request.language or "python"
    if request.code is not None:
        launch = plan_code(language, request.code, arguments=request.words, env=env, memory=memory, languages=languages)
    elif not request.words:
        raise InvalidRequest("nothing to run: give FILE, -c CODE or -- COMMAND", field="command")
    elif request.is_command:
        if request.language is not None:
            raise InvalidRequest("--language is for FILE and -c, a command names its own program", field="language")
        launch = plan_command(request.words, env=env)
    elif request.words[0] == "-":
        source = files.read_program("-")
        launch = plan_code(language, source, arguments=request.words[1:], env=env, memory=memory, languages=languages)
    else:
        path, *arguments = request.words
        name, source = os.path.basename(path), files.read_program(path)
        files.place(name, source)
        interpreter = named_interpreter(source) if request.language is None else None
        if interpreter is not None:
            launch = plan_command([*interpreter, f"{WORKSPACE}/{name}", *arguments], env=env)
        else:
            language = request.language or language_of_file(path, languages)
            launch = plan_file(language, name, arguments=arguments, env=env, memory=memory, languages=languages)
    if launch.program.mode != "exec":
        return launch
    # No parked interpreter is of use here; started in place of one, a missing program is told from one that fails.
    if launch.program.path:
        files.place(launch.program.path.removeprefix(WORKSPACE + "/"), launch.program.source)
    return replace(launch, direct=True)


def _packages(request: Request, launch: Launch, files: FilesIn) -> Packages:
    """Return the packages asked for, of the program's language, and those a Python script names in its metadata."""
    interpreter = os.path.basename(launch.command[0])
    if interpreter == "node":
        return make_packages(node=request.packages)
    if launch.compilation is not None and request.packages:
        raise InvalidRequest(f"--with: there are no packages for {launch.language}", field="packages")
    asked = make_packages(request.packages)
    if not interpreter.startswith("python") or request.is_command:
        return asked
    # A file's program is the first of its words.
    name = "" if request.code is not None or not request.words else os.path.basename(request.words[0])
    return asked | script_packages(launch.program.source or files.files.get(name, b""))


def _warn_of(missing: Iterable[Finding]) -> None:
    names = ", ".join(finding.guarantee.value for finding in missing)
    if names:
        note(f"weak isolation: not enforced here: {names}")


def _tell(event: Preparing) -> None:
    if sys.stderr.isatty():
        note(event.message)


class _Run:
    """One program in an engine of its own."""

    def __init__(
        self, request: Request, limits: Limits, launch: Launch, files: dict[str, bytes], packages: Packages
    ) -> None:
        self.there: ServerEngine | None = None
        """The server's engine, if that runs it."""
        self.stopped_by: int | None = None
        self._running = False
        self.kept: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._request = request
        self._limits = limits
        self._launch = launch
        self._files = files
        self._packages = packages
        self._denied = 0

    async def ending(self) -> ExecutionOutcome:
        """Run it to its end; afterwards nothing of it is left."""
        cancel = OneShotFlag()
        self._writer = BlockingCalls()
        with self._signals_to(cancel):
            async with self._engine() as engine:
                try:
                    self._running = True
                    return await engine.run(
                        self._launch,
                        self._keep if self._request.keep_output else self._show,
                        limits=self._limits,
                        runtime=self._request.runtime,
                        image=self._request.image,
                        packages=self._packages,
                        egress=self._request.egress,
                        on_egress=self._tell_of_egress,
                        stdin=self._stdin(),
                        files=self._files,
                        artifacts=self._request.artifacts,
                        cancel=cancel,
                    )
                except ExecFailed as error:
                    if error.details.get("kind") != "not_found":
                        raise
                    reason = f"there is no {self._launch.command[0]!r} in the image {self._request.image!r}"
                    raise ExecFailed(reason, **error.details) from error
                finally:
                    self._running = False

    @contextlib.asynccontextmanager
    async def _engine(self) -> AsyncIterator[ProgramRunner]:
        """Open the engine that runs it: one of our own, or a server."""
        if self._request.server is not None:
            from tidebox.sdk.server_engine import ServerEngine

            async with self._request.server.interpreter() as client:
                self.there = ServerEngine(client, self._request.session_id)
                yield self.there
            return
        from tidebox.embedded import Engine

        # Here nothing else is run: no other runtime need be there.
        settings = load_settings(**({"default_runtime": self._request.runtime} if self._request.runtime else {}))
        engine = Engine(settings, pool=False)
        try:
            if settings.allow_weak_isolation:
                _warn_of((await engine.probe()).missing)
            yield engine
        finally:
            await engine.close()

    def _stdin(self) -> AsyncIterator[bytes] | None:
        descriptor = self._request.stdin
        if descriptor is None or (self.there is not None and is_null(descriptor)):
            return None
        return read_chunks(descriptor)

    def limits_in_force(self) -> Limits:
        """The limits it had; what a server cut is said."""
        given = self.there.limits if self.there is not None else None
        if given is None:
            return self._limits
        for name in ("timeout", "memory", "cpus", "pids", "workspace"):
            if getattr(given, name) < getattr(self._limits, name):
                note(f"the server allows --{name} {getattr(given, name):g} at most")
        return given

    async def _keep(self, event: Event) -> None:
        if isinstance(event, OutputEvent):
            self.kept[event.stream].append(event.data)
        elif isinstance(event, Preparing):
            _tell(event)

    async def _show(self, event: Event) -> None:
        if isinstance(event, OutputEvent):
            await self._writer.call(write_all, _DESCRIPTORS[event.stream], event.data)
        elif isinstance(event, Preparing):
            _tell(event)

    def _tell_of_egress(self, seen: EgressSeen) -> None:
        if seen.allowed:
            return
        self._denied += 1
        if self._denied <= _MOST_DENIALS:
            where = ", ".join(filter(None, (seen.host, seen.ip)))
            # A name is any text that the program chooses, and this may be a terminal.
            note(f"denied: {(where if where.isprintable() else ascii(where)) or 'a connection'} ({seen.reason})")
        elif self._denied == _MOST_DENIALS + 1:
            note("denied: more of them")

    @contextlib.contextmanager
    def _signals_to(self, cancel: OneShotFlag) -> Iterator[None]:
        """The first signal ends the program with a grace, the second at once; those after it end the cleaning up."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            first, self.stopped_by = self.stopped_by is None, self.stopped_by or number
            if first and self._running:
                cancel.set()
            else:
                task.cancel()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
