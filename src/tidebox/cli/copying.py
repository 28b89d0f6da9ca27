"""Files copied into a sandbox and out of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tidebox.cli import signals
from tidebox.cli.artifacts import BOUNDS, ArtifactDirectory, choose, refusal
from tidebox.cli.finding import find
from tidebox.cli.output import FAILED, note
from tidebox.cli.progress import ProgressLine
from tidebox.cli.remote import Server, print_json
from tidebox.cli.sending import Sources, file_name, receive, target_of
from tidebox.errors import InvalidRequest, NotFound, TideboxError
from tidebox.sdk.sandboxes.results import FileInfo
from tidebox.sdk.sandboxes.sandbox import AsyncSandbox

# Deeper trees are a program's joke.
_MAX_DEPTH = 64
_MAX_ENTRIES = 100_000


def copy(server: Server, source: str, target: str, *, replace: bool, json: bool) -> int:
    """Copy from one side to the other."""
    (from_name, from_path), (to_name, to_path) = _split(source), _split(target)
    if (from_name is None) == (to_name is None):
        raise InvalidRequest("one side of the copy is in a sandbox: NAME:PATH", field="source")

    async def work() -> int:
        async with server.access() as access:
            name = from_name or to_name or ""
            async with await access.get((await find(access, name)).scope.id) as sandbox:
                if to_name is not None:
                    return await _send(sandbox, source, to_path, json=json)
                return await _fetch(sandbox, from_name or "", from_path, target, replace=replace, json=json)

    return signals.run(work())


def _split(given: str) -> tuple[str | None, str]:
    """(sandbox, path); a path here has no sandbox, also if it has a colon behind a slash, or is there."""
    name, colon, path = given.partition(":")
    if not colon or not name or "/" in name or os.path.lexists(given):
        return None, given
    return name, path or "."


async def _send(sandbox: AsyncSandbox, source: str, target: str, *, json: bool) -> int:
    if source == "-":
        size = await sandbox.files.upload(target, sys.stdin.buffer)
        _tell(json, [(target, size)])
        return 0
    sources = Sources([source])
    top = _base_name(source)
    if target.endswith("/") or await _is_directory(sandbox, target):
        target = f"{target.rstrip('/')}/{top}"
    sent = []
    with sources.opened() as files:
        for name, file in files.items():
            path = target + name.removeprefix(top)
            # Whether it may be executed is all that a copy keeps of its permissions.
            executable = os.access(sources.paths[name], os.X_OK)
            sent.append((path, await sandbox.files.upload(path, file, mode=0o755 if executable else 0o644)))
    _tell(json, sent)
    return 0


def _base_name(path: str) -> str:
    return os.path.basename(os.path.abspath(path))


def _directory_for(source: str, target: str) -> Path:
    """Return the directory for a directory's files: one of its name in the target if that is there, else the target."""
    into = Path(target)
    return into / file_name(source) if into.is_dir() else into


def no_file(name: str, path: str) -> NotFound:
    """The error for a path that leads to nothing in a sandbox."""
    return NotFound(f"{name} has no file {path!r}", path=path, advice=f"'tidebox sandbox exec {name} ls' shows some")


async def _is_directory(sandbox: AsyncSandbox, path: str) -> bool:
    try:
        return (await sandbox.files.stat(path)).type == "directory"
    except NotFound:
        return False


async def _fetch(sandbox: AsyncSandbox, name: str, source: str, target: str, *, replace: bool, json: bool) -> int:
    """Copy out of a sandbox. Names here are those that the user typed: the server's could be that of any file."""
    try:
        info = await sandbox.files.stat(source)
    except NotFound:
        raise no_file(name, source) from None
    if info.type != "directory":
        to = target_of(source, target)
        size = await receive(to, info.size, lambda file: sandbox.files.download(source, file))
        if to is not None:
            _tell(json, [(str(to), size)])
        return 0
    if target == "-":
        raise InvalidRequest(f"{source}: a directory cannot go to our output", field="target")
    # All of a workspace has the name of the sandbox.
    into = _directory_for(name if source == "." else source, target)
    files = await _tree(sandbox, source, info.path.rstrip("/"))
    chosen = choose({below: each.size for below, each in files.items()})
    left = BOUNDS.max_total_bytes
    directory = ArtifactDirectory(str(into), replace=replace)
    saved, refused = [], 0
    try:
        with ProgressLine("Receiving", sum(files[below].size for below in chosen)) as progress:
            for below in chosen:
                most = min(BOUNDS.max_file_bytes, left)
                try:
                    with directory.opened(below) as descriptor, os.fdopen(os.dup(descriptor), "wb") as file:
                        size = await sandbox.files.download(files[below].path, progress.writing(file, most))
                except (OSError, TideboxError) as error:
                    refused += 1
                    note(f"{below} was not saved: {refusal(error) if isinstance(error, OSError) else error.message}")
                else:
                    left -= size
                    saved.append((str(into / below), size))
    finally:
        directory.close()
    _tell(json, saved)
    return FAILED if refused else 0


async def _tree(sandbox: AsyncSandbox, top: str, root: str) -> dict[str, FileInfo]:
    """Every regular file below a directory, with its path from there; links and the like are left out."""
    found: dict[str, FileInfo] = {}
    seen = left_out = 0
    waiting = [(top, "")]
    while waiting:
        path, below = waiting.pop()
        entries = await sandbox.files.list(path)
        seen += len(entries)
        if seen > _MAX_ENTRIES:
            raise InvalidRequest(f"{top}: more than {_MAX_ENTRIES} files", field="source")
        for each in entries:
            inside = f"{below}/{each.name}" if below else each.name
            if each.type == "directory" and inside.count("/") < _MAX_DEPTH:
                waiting.append((f"{root}/{inside}", inside))
            elif each.type == "file":
                found[inside] = each
            else:
                left_out += 1
    if left_out:
        note(f"{left_out} links or special files were not copied")
    return found


def _tell(json: bool, copied: list[tuple[str, int]]) -> None:
    if json:
        items: list[dict[str, Any]] = [{"path": path, "size": size} for path, size in copied]
        print_json({"items": items})
