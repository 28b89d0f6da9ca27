"""From what was typed after ``tidebox run`` to how the program ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidebox.cli.artifacts import Artifact, ArtifactDirectory, wanted
from tidebox.cli.inputs import FilesIn, interpreter_of, parse_env, parse_size
from tidebox.cli.output import note
from tidebox.cli.signals import Stopped
from tidebox.cli.streams import BlockingCalls, read_chunks, write_all
from tidebox.config import load_settings
from tidebox.embedded import Engine
from tidebox.errors import ExecFailed, InvalidRequest
from tidebox.model.events import Event, Output
from tidebox.model.launch import WORKSPACE, Launch, plan_code, plan_command
from tidebox.model.limits import Limits, make_limits
from tidebox.model.order import Ending
from tidebox.model.runtimes import Finding
from tidebox.model.switch import Switch

_DESCRIPTORS = {"stdout": 1, "stderr": 2}
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
    image: str
    sizes: dict[str, str | None]
    numbers: dict[str, float | None]
    keep_output: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How it ended, for the report."""

    ending: Ending
    limits: Limits
    image: str
    output: dict[str, bytes]
    artifacts: list[Artifact]
    stopped_by: int | None
    """The signal that we got and passed on."""


def execute(request: Request) -> Finished:
    """Check the request, run it, save what it leaves."""
    limits = _limits(request)
    files = FilesIn(limits.workspace)
    launch = _launch(request, files)
    for given in request.files:
        files.add(given)
    if files.links_left_out:
        note(f"{files.links_left_out} links or special files were not copied in")
    with contextlib.ExitStack() as stack:
        directory = None
        if request.artifacts:
            directory = ArtifactDirectory(request.artifacts_dir, replace=request.force)
            stack.callback(directory.close)
        run = _Run(request, limits, launch, files.files)
        try:
            ending = asyncio.run(run.ending())
        except asyncio.CancelledError:
            raise Stopped(run.stopped_by or signal.SIGINT) from None
        saved = []
        if directory is not None and ending.captured is not None:
            found = wanted(ending.captured.files, request.artifacts, files.files)
            saved = [directory.save(path, content) for path, content in found.items()]
    return Finished(
        ending=ending,
        limits=limits,
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


def _launch(request: Request, files: FilesIn) -> Launch:
    env = parse_env(request.env)
    if request.code is not None:
        launch = plan_code(request.language or "python", request.code, arguments=request.words, env=env)
    elif not request.words:
        raise InvalidRequest("nothing to run: give FILE, -c CODE or -- COMMAND", field="command")
    elif request.is_command:
        if request.language is not None:
            raise InvalidRequest("--language is for FILE and -c, a command names its own program", field="language")
        launch = plan_command(request.words, env=env)
    elif request.words[0] == "-":
        source = files.read_program("-")
        launch = plan_code(request.language or "python", source, arguments=request.words[1:], env=env)
    else:
        path, *arguments = request.words
        name, source = os.path.basename(path), files.read_program(path)
        if request.language is not None:
            interpreter = [plan_code(request.language, source).command[0]]
        else:
            interpreter = interpreter_of(path, source)
        files.place(name, source)
        launch = plan_command([*interpreter, f"{WORKSPACE}/{name}", *arguments], env=env)
    if launch.program.mode != "exec":
        return launch
    # No parked interpreter is of use here; started in place of one, a missing program is told from one that fails.
    if launch.program.path:
        files.place(launch.program.path.removeprefix(WORKSPACE + "/"), launch.program.source)
    return replace(launch, direct=True)


def _warn_of(missing: Iterable[Finding]) -> None:
    names = ", ".join(finding.guarantee.value for finding in missing)
    if names:
        note(f"weak isolation: not enforced here: {names}")


class _Run:
    """One program in an engine of its own."""

    def __init__(self, request: Request, limits: Limits, launch: Launch, files: dict[str, bytes]) -> None:
        self.stopped_by: int | None = None
        self._running = False
        self.kept: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._request = request
        self._limits = limits
        self._launch = launch
        self._files = files

    async def ending(self) -> Ending:
        """Run it to its end; afterwards nothing of it is left."""
        settings = load_settings()
        engine = Engine(settings, pool=False)
        cancel = Switch()
        stdin = self._request.stdin
        self._writer = BlockingCalls()
        with self._signals_to(cancel):
            try:
                if settings.allow_weak_isolation:
                    _warn_of((await engine.probe()).missing)
                self._running = True
                return await engine.run(
                    self._launch,
                    self._keep if self._request.keep_output else self._show,
                    limits=self._limits,
                    image=self._request.image,
                    stdin=None if stdin is None else read_chunks(stdin),
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
                await engine.close()

    async def _keep(self, event: Event) -> None:
        if isinstance(event, Output):
            self.kept[event.stream].append(event.data)

    async def _show(self, event: Event) -> None:
        if isinstance(event, Output):
            await self._writer.call(write_all, _DESCRIPTORS[event.stream], event.data)

    @contextlib.contextmanager
    def _signals_to(self, cancel: Switch) -> Iterator[None]:
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
