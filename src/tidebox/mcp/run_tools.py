"""The tools that run programs in the interpreter service: ``run_code`` and ``sandbox_run``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mcp_types import CallToolResult

from tidebox.errors import InvalidRequest, TideboxError, UnknownLanguage
from tidebox.mcp import arguments
from tidebox.mcp.progress import ProgressReporter, Report
from tidebox.mcp.tool_results import Tail, answer, fitted, largest_picture, show_both
from tidebox.model.languages import ALWAYS, BUILT_IN
from tidebox.model.limits import KIB
from tidebox.model.run import Reason
from tidebox.sdk.interpreter.client import AsyncInterpreter, abandon
from tidebox.sdk.interpreter.entries import LogChunk, LogGap, LogTruncated, RunEnd
from tidebox.sdk.interpreter.results import Artifact, Run

# Longer code does not fit into an argument of a command everywhere.
_MAX_ARGUMENT_BYTES = 96 * KIB
# Everything that code leaves in its workspace.
_ALL_FILES = ("**",)
_MAX_ARTIFACTS = 50
_MAX_PICTURES = 8
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

WORDS: dict[str, str] = {
    Reason.EXIT_ZERO.value: "the program ended by itself",
    Reason.EXIT_NONZERO.value: "the program ended with an error; see stderr",
    Reason.SIGNALED.value: "the program was killed by a signal",
    Reason.STARTUP_TIMEOUT.value: "the sandbox did not start in time; try again",
    Reason.EXECUTION_TIMEOUT.value: "the program ran out of time and was killed; give a larger timeout_sec",
    Reason.CANCELED_BY_USER.value: "the call was cancelled and the program killed",
    Reason.SESSION_EXPIRED.value: "the session of the run expired; run in a fresh workspace, with base_image",
    Reason.SESSION_DELETED.value: "the session of the run was deleted; run in a fresh workspace, with base_image",
    Reason.OOM_KILLED.value: "the program used more memory than it may and was killed; use less",
    Reason.PIDS_LIMIT_EXCEEDED.value: "the program started more processes than it may",
    Reason.LOG_CAP_EXCEEDED.value: "the program printed more than it may and was killed; print less",
    Reason.QUEUE_TTL_EXPIRED.value: "the server was too busy to start the program; try again later",
    Reason.IMAGE_PULL_FAILED.value: 'the image cannot be used; "host" always can',
    Reason.PROVISION_FAILED.value: "what the program needs could not be prepared; correct that and call again",
    Reason.COMPILE_FAILED.value: "the program could not be compiled; see stderr",
    Reason.COMPILE_TIMEOUT.value: "compiling the program took too long; make it smaller",
    Reason.EXEC_FAILED.value: "the program could not be started; is the command right?",
    Reason.POLICY_DENIED.value: "the server's policy does not allow this; ask for less",
    Reason.RUNTIME_UNAVAILABLE.value: "the runtime does not work on the server; leave runtime out",
    Reason.RUNTIME_ERROR.value: "the sandbox failed; try again",
    Reason.NODE_LOST.value: "the server that ran the program was lost; try again",
    Reason.SERVER_SHUTDOWN.value: "the server was stopped before the program ended; try again",
    Reason.SERVER_RESTARTED.value: "the server was restarted before the program ended; try again",
}
"""Texts for models, by reason: why a run ended, and what to do about it."""
_RAN = frozenset(
    reason.value
    for reason in (
        Reason.EXIT_ZERO,
        Reason.EXIT_NONZERO,
        Reason.SIGNALED,
        Reason.EXECUTION_TIMEOUT,
        Reason.COMPILE_FAILED,
        Reason.COMPILE_TIMEOUT,
        Reason.CANCELED_BY_USER,
        Reason.OOM_KILLED,
        Reason.PIDS_LIMIT_EXCEEDED,
        Reason.LOG_CAP_EXCEEDED,
    )
)
"""Reasons of runs whose program ran, however it ended."""


@dataclass(slots=True)
class _Ended:
    run: Run
    end: RunEnd
    stdout: Tail
    stderr: Tail
    dropped: bool
    """Whether the server did not keep all of the output."""


async def _main_file(client: AsyncInterpreter, name: str) -> str:
    """Return the name of the main file in a language that the server's operator has added."""
    wanted = name.strip().lower()
    for runtime in (await client.runtimes()).runtimes:
        for language in runtime.languages:
            if wanted in (language.name, *language.aliases):
                return language.file
    return "main"  # and the server says what it is not


async def run_code(client: AsyncInterpreter, given: arguments.RunCode, report: Report | None) -> CallToolResult:
    """Run a snippet in a fresh sandbox."""
    files = _files(given.files)
    code = given.code.encode("utf-8", "surrogatepass")
    try:
        language = BUILT_IN.named(given.language)
    except UnknownLanguage:
        language = None  # one that the server's operator has added, or none: the server knows
    own = named = None
    short = len(code) <= _MAX_ARGUMENT_BYTES and "\0" not in given.code
    if language is not None and language.name in ALWAYS and short:
        command = [language.run[0], language.evaluate, given.code]
    else:
        own = await _main_file(client, given.language) if language is None else language.file_for(code)
        if own in files:
            raise InvalidRequest(f"files: {own} is where the code goes; choose another name", field="files")
        files[own] = code
        named = given.language
        command = [own]
    packages = None
    if given.packages:
        if language is None or not language.packages:
            raise InvalidRequest(f"packages: there are none for {given.language}", field="packages")
        packages = {language.packages: given.packages}
    options = {
        "language": named,
        "base_image": "host",
        "files": files or None,
        "artifacts": _ALL_FILES,
        "packages": packages,
        "egress": _egress(given.allow_hosts),
        "timeout": given.timeout_sec,
    }
    ended = await _run(client, command, options, report)
    return await _answer(client, ended, captured=True, own=own)


async def sandbox_run(client: AsyncInterpreter, given: arguments.SandboxRun, report: Report | None) -> CallToolResult:
    """Run a command as the interpreter service's document has it."""
    if (given.session_id is None) == (given.base_image is None):
        raise InvalidRequest(
            'give either session_id, to run in a session, or base_image, such as "host", to run in a fresh workspace',
            field="session_id",
        )
    options = {
        "session_id": given.session_id,
        "base_image": given.base_image,
        "runtime": given.runtime,
        "files": _files(given.files) or None,
        "env": given.env or None,
        "egress": _egress(given.allow_hosts),
        "timeout": given.timeout_sec,
        "artifacts": tuple(given.capture_patterns),
    }
    ended = await _run(client, given.command, options, report)
    return await _answer(client, ended, captured=bool(given.capture_patterns), own=None)


def _egress(hosts: list[str]) -> dict[str, Any] | None:
    return {"hosts": hosts} if hosts else None


def _files(given: list[arguments.File]) -> dict[str, bytes]:
    return {file.path: file.bytes() for file in given}


async def _run(client: AsyncInterpreter, command: list[str], options: dict[str, Any], report: Report | None) -> _Ended:
    """Run a command to its end; being cancelled cancels the run."""
    # A task of its own: when this one is cancelled, the id of the run to cancel must still be learnt.
    starting = asyncio.get_running_loop().create_task(client.start_run(command, **options))
    try:
        run = await asyncio.shield(starting)
        return await _follow(client, run, report)
    except BaseException:
        await abandon(client, starting)
        raise


async def _follow(client: AsyncInterpreter, run: Run, report: Report | None) -> _Ended:
    tails = {"stdout": Tail(), "stderr": Tail()}
    dropped = False
    progress = ProgressReporter()
    async with await client.stream_log(run.id) as log, progress.reported(report):
        while (entry := await log.read()) is not None:
            if isinstance(entry, LogChunk):
                tails[entry.stream].add(entry.data)
                progress.add(entry.data)
            elif isinstance(entry, LogTruncated | LogGap):
                dropped = True
        end = log.end
    assert end is not None
    return _Ended(run, end, tails["stdout"], tails["stderr"], dropped or end.log_truncated)


async def _answer(client: AsyncInterpreter, ended: _Ended, *, captured: bool, own: str | None) -> CallToolResult:
    """``own`` is a file that the program was put into, which is none of its making."""
    run, end = ended.run, ended.end
    notes: list[str] = []
    artifacts: list[Artifact] = []
    if captured and end.artifact_bytes != 0:
        try:
            found = (await client.list_artifacts(run.id)).items
        except TideboxError as error:
            # A token may have expired while the program ran: what it printed is still worth having.
            notes.append(f"artifacts could not be listed: {error.message}")
        else:
            artifacts = [item for item in found if item.path != own]
    if ended.dropped:
        notes.append("the server did not keep all of the output: print less, or write to a file")
    if len(artifacts) > _MAX_ARTIFACTS:
        notes.append(f"{len(artifacts)} artifacts, of which the first {_MAX_ARTIFACTS} are listed")

    def make(most: int) -> dict[str, Any]:
        output, cut = show_both(ended.stdout, ended.stderr, most)
        structured: dict[str, Any] = {
            **output,
            "exit_code": end.exit_code,
            "phase": end.phase.value,
            "reason": _reason(end),
            "run_id": run.id,
            "artifacts": [_shown(run.id, item) for item in artifacts[:_MAX_ARTIFACTS]],
            "policy_hash": run.policy_hash,
            "image_digest": run.image_digest,
        }
        if run.log_stream_url is not None:
            structured["log_stream_url"] = run.log_stream_url
        if cut or ended.dropped:
            structured["truncated"] = True
        if cut:
            structured["rest"] = f"more of the log is in the resource tidebox://runs/{run.id}/log"
        if notes:
            structured["notes"] = notes
        return structured

    structured = fitted(make)
    # A program that failed is an answer; one that never ran is not.
    failed = end.reason_code not in _RAN
    return answer(structured, await _pictures(client, run.id, artifacts, structured), failed=failed)


def _reason(end: RunEnd) -> str:
    words = WORDS.get(end.reason_code or "", (end.reason_code or end.phase.value).replace("_", " "))
    if end.message and end.message != end.reason_code:
        words = f"{words} ({end.message})"
    return words


def _shown(run_id: str, item: Artifact) -> dict[str, Any]:
    uri = f"tidebox://runs/{run_id}/artifacts/{quote(item.path)}"
    return {"path": item.path, "size": item.size, "content_type": item.content_type, "uri": uri}


async def _pictures(
    client: AsyncInterpreter, run_id: str, artifacts: list[Artifact], structured: dict[str, Any]
) -> list[bytes]:
    """The pictures among the artifacts, as far as they may fit into the answer."""
    room = largest_picture(structured)
    found: list[bytes] = []
    for item in artifacts:
        if len(found) == _MAX_PICTURES:
            break
        if item.content_type in _PICTURES and not item.is_link and 0 < item.size <= room:
            room -= item.size
            try:
                found.append(await client.download_artifact(run_id, item.path, max_bytes=item.size))
            except TideboxError:
                continue  # it is named in the answer, and can be asked for
    return found
