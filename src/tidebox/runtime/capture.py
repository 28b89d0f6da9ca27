"""Copy files out of a dead box's workspace through its directory descriptor.

All processes of the box are dead, so nothing changes under us; how hostile names, types and links are met is told in
``tidebox.untrusted_files.trees``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tidebox.model.box import Captured, CapturedFile, CapturedTree, CaptureRule
from tidebox.untrusted_files.globs import Glob, MatchBudget
from tidebox.untrusted_files.trees import TreeEntry, copy_file, directory_beneath, open_regular, opened, walk

MAX_DEPTH = 32
"""Depth of directories down to which files are looked for."""
_MAX_LINK_TARGET = 1024
SECONDS = 5.0
"""Time that matching all patterns may take altogether; those that people write take a thousandth of it."""
_SECRETS = Glob("run/secrets/**")
# Such a name fits into no URL and no header.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def capture(workspace: int, rule: CaptureRule) -> Captured:
    """The files that match ``rule``, in the order of their names; what matches and is refused is counted."""
    files: dict[str, bytes] = {}
    skipped = total = 0
    patience = MatchBudget(SECONDS)
    for entry in _matching(workspace, rule, patience):
        content = None
        if len(files) < rule.max_files and _is_text(entry.path):
            content = _read(entry, min(rule.max_file_bytes, rule.max_total_bytes - total))
        if content is None:
            skipped += 1
            continue
        total += len(content)
        files[entry.path] = content
    return Captured(files, skipped + patience.lost)


def capture_into(workspace: int, target: Path, rule: CaptureRule) -> CapturedTree:
    """Copy the files that match ``rule`` below ``target``, in the order of their names; links are only noted."""
    found: list[CapturedFile] = []
    skipped: Counter[str] = Counter()
    total = 0
    patience = MatchBudget(SECONDS)
    with opened(target) as root:
        for entry in _matching(workspace, rule, patience):
            reason = _reason_to_skip(entry, rule, len(found), total)
            if reason is not None:
                skipped[reason] += 1
            elif entry.is_link:
                destination = os.readlink(entry.name, dir_fd=entry.directory)
                found.append(CapturedFile(path=entry.path, size=0, link_target=_shown_target(destination)))
            else:
                with directory_beneath(root, entry.path.split("/")[:-1]) as directory:
                    copy_file(entry.directory, entry.name, directory, entry.name, entry.status.st_size)
                total += entry.status.st_size
                found.append(CapturedFile(path=entry.path, size=entry.status.st_size))
    if patience.lost:
        skipped["patterns"] += 1
    return CapturedTree(files=tuple(found), skipped=dict(skipped))


def _reason_to_skip(entry: TreeEntry, rule: CaptureRule, count: int, total: int) -> str | None:
    if not (entry.is_file or entry.is_link):
        return "kind"
    if not _is_text(entry.path) or _CONTROL.search(entry.path):
        return "name"
    if count >= rule.max_files:
        return "count"
    if entry.is_link:
        return None
    # What a file takes is at most its size, but a hole is read, and sent, as bytes too.
    if entry.status.st_size > rule.max_file_bytes:
        return "file_size"
    return "total_size" if total + entry.status.st_size > rule.max_total_bytes else None


def _matching(workspace: int, rule: CaptureRule, patience: MatchBudget) -> Iterator[TreeEntry]:
    """Yield the files that match the patterns of ``rule``, as long as matching does not take too long."""
    wanted = selector(rule, patience)
    for entry in walk(workspace, max_depth=MAX_DEPTH):
        if not entry.is_directory and wanted(entry.path):
            yield entry
        if patience.lost:
            return


def selector(rule: CaptureRule, patience: MatchBudget) -> Callable[[str], bool]:
    """Whether the rule names what is at a path."""
    patterns = [Glob(pattern) for pattern in rule.patterns]

    def wanted(path: str) -> bool:
        if path in rule.exclude or _SECRETS.matches(path):
            return False
        return any(patience.matches(pattern, path) for pattern in patterns)

    return wanted


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown_target(destination: str) -> str:
    return destination.encode("utf-8", "backslashreplace").decode()[:_MAX_LINK_TARGET]


def _read(entry: TreeEntry, limit: int) -> bytes | None:
    try:
        descriptor = open_regular(entry.directory, entry.name)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > limit:
            return None
        return file.read(limit)
