"""Programs run on a server as an engine of this process runs them: the same arguments, events, ending and errors."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tidebox.errors import (
    BoxGone,
    Conflict,
    ExecFailed,
    Expired,
    InternalError,
    InvalidRequest,
    PolicyUnsupported,
    ProvisionFailed,
    QueueExpired,
    RuntimeUnavailable,
    ShuttingDown,
    StartupTimeout,
    TideboxError,
    UnknownImage,
)
from tidebox.model.box import Captured
from tidebox.model.events import EgressSeen, OutputEvent, Preparing
from tidebox.model.execution_request import ExecutionOutcome, Sink
from tidebox.model.images import HOST
from tidebox.model.languages import BUILT_IN
from tidebox.model.launch import WORKSPACE, Launch, inside_workspace
from tidebox.model.limits import MIB, Limits
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.packages import NO_PACKAGES, Packages
from tidebox.model.result import ExecError, Outcome, Usage
from tidebox.model.run import Reason
from tidebox.sdk.errors import ConnectionLost, ServerProtocolError
from tidebox.sdk.interpreter.client import AsyncInterpreter, abandon
from tidebox.sdk.interpreter.entries import InputClosed, LogChunk, LogGap, LogTruncated, Progress, Reached
from tidebox.sdk.interpreter.results import Run
from tidebox.sdk.interpreter.run_log import AsyncRunLog

if TYPE_CHECKING:
    from tidebox.model.requested_egress import RequestedEgress

# What a request may have of files within it; more goes into a session of its own.
_INLINE_BYTES, _INLINE_FILES, _INLINE_DEPTH = MIB, 1000, 10
# Such a session outlives its run by this, if nobody is there to delete it.
_SESSION_SPARE_SECONDS = 600.0
_ABANDON_SECONDS = 10.0
# Limits that a request can name; the others are the server's to set.
_ASKED = ("timeout", "memory", "pids", "cpus", "output", "workspace")
_LOG_CAP = "log_cap"

_OUTCOMES = {
    Reason.EXIT_ZERO: Outcome.EXITED,
    Reason.EXIT_NONZERO: Outcome.EXITED,
    Reason.EXEC_FAILED: Outcome.EXITED,
    Reason.SIGNALED: Outcome.SIGNALED,
    Reason.EXECUTION_TIMEOUT: Outcome.TIMEOUT,
    Reason.OOM_KILLED: Outcome.OOM,
    Reason.LOG_CAP_EXCEEDED: Outcome.OUTPUT_LIMIT,
    Reason.CANCELED_BY_USER: Outcome.CANCELLED,
    Reason.COMPILE_FAILED: Outcome.COMPILE_FAILED,
    Reason.COMPILE_TIMEOUT: Outcome.COMPILE_TIMEOUT,
}
_ERRORS: dict[Reason, type[TideboxError]] = {
    Reason.STARTUP_TIMEOUT: StartupTimeout,
    Reason.SESSION_EXPIRED: Expired,
    Reason.SESSION_DELETED: Expired,
    Reason.QUEUE_TTL_EXPIRED: QueueExpired,
    Reason.IMAGE_PULL_FAILED: UnknownImage,
    Reason.PROVISION_FAILED: ProvisionFailed,
    Reason.POLICY_DENIED: PolicyUnsupported,
    Reason.RUNTIME_UNAVAILABLE: RuntimeUnavailable,
    Reason.SERVER_SHUTDOWN: ShuttingDown,
    Reason.SERVER_RESTARTED: BoxGone,
    Reason.NODE_LOST: BoxGone,
}


class ServerEngine:
    """Runs programs by the interpreter service of a server: each in a fresh workspace, or all in that of a session."""

    def __init__(self, client: AsyncInterpreter, session_id: str | None = None) -> None:
        self.languages = BUILT_IN
        self._client = client
        self._session_id = session_id
        self._own_session: str | None = None
        """A session that was made for one run."""
        self.run_id: str | None = None
        """The last run that was started."""
        self.limits: Limits | None = None
        """The limits that the server gave it: never more than were asked for, maybe less."""

    async def start(
        self,
        launch: Launch,
        *,
        limits: Limits,
        runtime: str | None = None,
        image: str = HOST,
        packages: Packages = NO_PACKAGES,
        egress: RequestedEgress | None = None,
        files: Mapping[str, bytes] | None = None,
        artifacts: Iterable[str] = (),
        interactive: bool = False,
    ) -> Run:
        """Start a program and leave it to the server; its id finds it again."""
        _check_limits(limits)
        placed = _placed(launch, files or {})
        terms: dict[str, Any] = {
            "session_id": self._session_id,
            "runtime": runtime,
            "base_image": image if self._session_id is None else None,
            "packages": packages.shown() if packages else None,
            "egress": None if egress is None else egress.shown(),
            "env": dict(launch.program.env),
            "timeout": limits.timeout,
            "memory": limits.memory,
            "pids": limits.pids,
            "cpus": limits.cpus,
            "workspace": limits.workspace if limits.workspace != Limits().workspace else None,
        }
        if _fit_inline(placed):
            terms["files"] = placed
        elif terms["workspace"] is not None:
            raise InvalidRequest(
                "workspace: with files of more than 1 MiB the size is the server's own to set; leave it out",
                field="workspace",
            )
        elif self._session_id is not None:
            await self._client.upload_files(self._session_id, placed)
        else:
            self._own_session = await self._session_with(placed, runtime, image, packages, egress, limits)
            terms |= {"session_id": self._own_session, "base_image": None, "packages": None}
        command = list(launch.command)
        if launch.compilation is not None:
            # The server knows how it is compiled, and where.
            file = launch.compilation.file.removeprefix(WORKSPACE + "/")
            terms["language"] = launch.language
            command = [file, *launch.arguments]
        run = await self._client.start_run(command, artifacts=list(artifacts), interactive=interactive, **terms)
        self.run_id, self.limits = run.id, _in_force(run, limits)
        return run

    async def _session_with(
        self,
        files: Mapping[str, bytes],
        runtime: str | None,
        image: str,
        packages: Packages,
        egress: RequestedEgress | None,
        limits: Limits,
    ) -> str:
        """A session that has the files in it, for one run."""
        session = await self._client.create_session(
            runtime=runtime,
            base_image=image,
            packages=packages.shown() if packages else None,
            egress=None if egress is None else egress.shown(),
            ttl=limits.timeout + _SESSION_SPARE_SECONDS,
        )
        try:
            await self._client.upload_files(session.id, files)
        except BaseException:
            await self._delete(session.id)
            raise
        return session.id

    async def _delete(self, session_id: str) -> None:
        try:
            async with asyncio.timeout(_ABANDON_SECONDS):
                await self._client.delete_session(session_id)
        except (TideboxError, TimeoutError):
            pass  # its time will be over

    async def run(
        self,
        launch: Launch,
        sink: Sink,
        *,
        limits: Limits,
        runtime: str | None = None,
        image: str = HOST,
        packages: Packages = NO_PACKAGES,
        egress: RequestedEgress | None = None,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        files: Mapping[str, bytes] | None = None,
        artifacts: Iterable[str] = (),
        cancel: OneShotFlag | None = None,
        on_egress: Callable[[EgressSeen], None] | None = None,
    ) -> ExecutionOutcome:
        """Run one program in a fresh box of the server.

        Cancelling the call cancels the run, unless ``cancel`` has asked for that before: then it is left to the server.
        """
        patterns = tuple(artifacts)
        if stdin == b"":
            stdin = None
        # A task of its own: a caller that is cancelled meanwhile must still learn which run there is to cancel.
        starting = asyncio.get_running_loop().create_task(
            self.start(
                launch,
                limits=limits,
                runtime=runtime,
                image=image,
                packages=packages,
                egress=egress if egress is None or on_egress is None else replace(egress, events=True),
                files=files,
                artifacts=patterns,
                interactive=stdin is not None,
            )
        )
        try:
            run = await asyncio.shield(starting)
            following = _RunFollower(self._client, run, launch, self.limits or limits, sink, on_egress)
            ended = await following.end(stdin, cancel)
            ending = _ending(launch, ended, following.outcome)
            captured = None
            if patterns:
                captured = await self._capture(ended, launch)
        except BaseException:
            if not (cancel is not None and cancel.is_set() and starting.done()):
                await abandon(self._client, starting)
                if self._own_session is not None:
                    await self._delete(self._own_session)
            raise
        if self._own_session is not None:
            await self._delete(self._own_session)
        self.limits = following.limits
        return replace(ending, captured=captured)

    async def _capture(self, run: Run, launch: Launch) -> Captured:
        """The files that the run left."""
        left_out = sum((run.resource_usage.files_left_out or {}).values())
        # The file that holds the code is ours, not something the program made.
        main = launch.program.path.removeprefix(WORKSPACE + "/") if launch.program.source else ""
        found: dict[str, bytes] = {}
        for artifact in (await self._client.list_artifacts(run.id)).items:
            if artifact.is_link:
                left_out += 1
            elif artifact.path != main:
                found[artifact.path] = await self._client.download_artifact(run.id, artifact.path)
        return Captured(found, left_out)


class _RunFollower:
    """One run and its log, up to its end."""

    def __init__(
        self,
        client: AsyncInterpreter,
        run: Run,
        launch: Launch,
        limits: Limits,
        sink: Sink,
        on_egress: Callable[[EgressSeen], None] | None,
    ) -> None:
        self._client = client
        self._on_egress = on_egress
        self._run = run
        self._sink = sink
        self.limits = limits
        self.outcome: Outcome | None = None
        """Why this side ended it, if it did."""
        self._left = limits.output
        self._printed = 0
        # What the server puts into the log for a program that it could not start; a caller that is told
        # that by an error does not want it as output, too.
        self._not_started = (
            {ExecError(launch.command[0], number).stderr for number in errno.errorcode} if launch.direct else set()
        )
        self._held_back: LogChunk | None = None
        self._cancelling: asyncio.Task[Any] | None = None

    async def end(self, stdin: bytes | AsyncIterator[bytes] | None, cancel: OneShotFlag | None) -> Run:
        """The run when it is over."""
        if cancel is not None:
            cancel.on_set(self._cancel)
        try:
            async with await self._client.stream_log(self._run.id) as log:
                if stdin is None:
                    await self._read(log)
                else:
                    await self._talk(log, stdin)
            return await self._client.wait_run(self._run.id)
        finally:
            if cancel is not None:
                cancel.forget(self._cancel)
            if self._cancelling is not None:
                self._cancelling.cancel()
                await asyncio.wait([self._cancelling])

    def _cancel(self) -> None:
        if self._cancelling is None:
            self._cancelling = asyncio.get_running_loop().create_task(self._client.cancel_run(self._run.id))

    async def _talk(self, log: AsyncRunLog, stdin: bytes | AsyncIterator[bytes]) -> None:
        """Send input while output is read."""
        try:
            async with asyncio.TaskGroup() as group:
                feeding = group.create_task(_feed(log, stdin))
                await self._read(log)
                feeding.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _read(self, log: AsyncRunLog) -> None:
        refused: Conflict | None = None
        closed: str | None = None
        while True:
            try:
                entry = await log.read()
            except Conflict as error:
                # A program that ends before it has read its input is not at fault; one whose input broke a rule is.
                refused = refused or error
                continue
            if entry is None:
                break
            if isinstance(entry, LogChunk):
                await self._take(entry)
            elif isinstance(entry, Progress):
                await self._sink(Preparing(entry.message))
            elif isinstance(entry, Reached):
                if self._on_egress is not None:
                    self._on_egress(entry.seen)
            elif isinstance(entry, LogTruncated) and entry.reason == _LOG_CAP:
                # The server drops what follows, so this is all that the program may print.
                self.limits = replace(self.limits, output=self._printed)
                self._end(Outcome.OUTPUT_LIMIT)
            elif isinstance(entry, InputClosed):
                closed = entry.reason
            elif isinstance(entry, LogGap):
                raise ServerProtocolError(f"{entry.lost} pieces of the output are not in the server's log any more")
        if closed is not None:
            raise refused or Conflict(f"the server closed the input of the program: {closed}", reason=closed)
        if self._held_back is not None and (log.end is None or log.end.reason_code != Reason.EXEC_FAILED.value):
            await self._show(self._held_back)

    async def _take(self, chunk: LogChunk) -> None:
        if self._held_back is not None:
            held, self._held_back = self._held_back, None
            await self._show(held)
        elif not self._printed and chunk.stream == "stderr" and chunk.data in self._not_started:
            self._held_back = chunk
            return
        await self._show(chunk)

    async def _show(self, chunk: LogChunk) -> None:
        if self.outcome is Outcome.OUTPUT_LIMIT:
            return
        data = chunk.data
        if len(data) > self._left:
            data = data[: self._left]
            self._end(Outcome.OUTPUT_LIMIT)
        self._left -= len(data)
        self._printed += len(data)
        if data:
            await self._sink(OutputEvent(chunk.stream, data))

    def _end(self, outcome: Outcome) -> None:
        """End the run; the first reason stands."""
        self.outcome = self.outcome or outcome
        self._cancel()


async def _feed(log: AsyncRunLog, stdin: bytes | AsyncIterator[bytes]) -> None:
    try:
        if isinstance(stdin, bytes):
            await log.write(stdin)
        else:
            async for chunk in stdin:
                await log.write(chunk)
        await log.end_input()
    except ConnectionLost:
        if log.end is None:
            raise


def _check_limits(limits: Limits) -> None:
    default = Limits()
    for item in fields(limits):
        if item.name not in _ASKED and getattr(limits, item.name) != getattr(default, item.name):
            raise InvalidRequest(f"{item.name}: that limit is the server's own to set; leave it out", field=item.name)


def _placed(launch: Launch, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a run by their paths in the workspace, with the program where that is one."""
    given = {inside_workspace(name).removeprefix(WORKSPACE + "/"): content for name, content in files.items()}
    if launch.program.source and launch.program.path:
        given.setdefault(launch.program.path.removeprefix(WORKSPACE + "/"), launch.program.source)
    return given


def _fit_inline(files: Mapping[str, bytes]) -> bool:
    return (
        len(files) <= _INLINE_FILES
        and sum(map(len, files.values())) <= _INLINE_BYTES
        and all(path.count("/") < _INLINE_DEPTH for path in files)
    )


def _in_force(run: Run, asked: Limits) -> Limits:
    told = run.resource_usage.limits
    return replace(
        asked,
        timeout=min(asked.timeout, told.timeout_sec or asked.timeout),
        memory=min(asked.memory, int((told.memory_mb or 0) * MIB) or asked.memory),
        pids=min(asked.pids, int(told.pids or asked.pids)),
        cpus=min(asked.cpus, told.cpu or asked.cpus),
        workspace=min(asked.workspace, int((told.workspace_mb or 0) * MIB) or asked.workspace),
    )


def _ending(launch: Launch, run: Run, decided: Outcome | None) -> ExecutionOutcome:
    """Make the ending of a run; raises if its program did not come to run, or was lost."""
    try:
        reason = Reason(run.reason_code)
    except ValueError:
        raise ServerProtocolError(
            f"the run ended for a reason that this client does not know: {run.reason_code}"
        ) from None
    message = run.message or f"the run ended: {reason.value}"
    if decided is not None:
        outcome = decided
    elif reason is Reason.EXEC_FAILED and (launch.direct or run.exit_code is None):
        kind = "not_found" if run.exit_code == ExecError("", errno.ENOENT).exit_code else "other"
        raise ExecFailed(message, kind=kind, run_id=run.id)
    elif reason is Reason.PIDS_LIMIT_EXCEEDED:
        outcome = Outcome.EXITED if run.signal is None else Outcome.SIGNALED
    elif reason in _OUTCOMES:
        outcome = _OUTCOMES[reason]
    else:
        raise _ERRORS.get(reason, InternalError)(message, reason=reason.value, run_id=run.id)
    used = run.resource_usage
    return ExecutionOutcome(
        outcome=outcome,
        exit_code=run.exit_code if outcome in (Outcome.EXITED, Outcome.COMPILE_FAILED) else None,
        signal=run.signal,
        usage=Usage(
            wall_seconds=used.wall_time_sec or 0.0,
            cpu_seconds=used.cpu_time_sec,
            memory_peak=None if used.peak_rss_mb is None else round(used.peak_rss_mb * MIB),
            pids_peak=used.pids,
            oom_kills=used.oom_kills or 0,
        ),
        captured=None,
    )
