"""Workspace scan: select the files that a run is given, without ignored, linked, binary and huge ones."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from tidebox.errors import InvalidRequest
from tidebox.model.limits import KIB, MIB
from tidebox.untrusted_files import gitignore
from tidebox.untrusted_files.file_names import shown, split_name
from tidebox.untrusted_files.gitignore import Gitignore
from tidebox.untrusted_files.globs import MatchBudget

NEVER = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__"})
"""Names that are never sent, and neither is what lies below them."""
# What is large without being text; other binary files are told by their bytes.
BINARY = frozenset(
    {
        *(".7z", ".a", ".avi", ".bin", ".bmp", ".bz2", ".class", ".dll", ".dylib", ".exe", ".gif", ".gz", ".ico"),
        *(".iso", ".jar", ".jpeg", ".jpg", ".mov", ".mp3", ".mp4", ".o", ".onnx", ".otf", ".pdf", ".png", ".pt"),
        *(".pyc", ".pyo", ".rar", ".so", ".sqlite", ".sqlite3", ".tar", ".tgz", ".tif", ".tiff", ".ttf", ".war"),
        *(".wasm", ".webm", ".webp", ".whl", ".woff", ".woff2", ".xz", ".zip", ".zst"),
    }
)
LARGE_BYTES = MIB
"""A file of more is left out, unless it is named."""
MAX_FILES = 1000
MAX_BYTES = 48 * MIB
MAX_DEPTH = 10
_MAX_LOOKED_AT = 50_000
_MAX_RULE_BYTES = MIB
"""Total size of all .gitignore files: each pattern is kept in memory."""
_PATTERN_SECONDS = 5.0
"""Total time for matching .gitignore patterns."""
_SNIFFED = 8 * KIB
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Signature:
    """Size, time and inode of a file, to detect that it changed."""

    size: int
    modified: int
    inode: int


@dataclass(slots=True)
class ScanResult:
    """Files of a workspace to send, and those left out."""

    texts: dict[str, bytes] = field(default_factory=dict)
    """Path -> content, of what the editor has open or the caller gave."""
    files: dict[str, Signature] = field(default_factory=dict)
    """Path -> what is on the disk."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> paths, of what was not sent though it could have been meant."""
    bytes: int = 0

    def leave_out(self, path: str, reason: str) -> None:
        """Record a file that is not sent, with the reason."""
        self.left_out.setdefault(reason, []).append(path)

    def notices(self) -> list[str]:
        """Describe in words which files were left out, and why."""
        said = []
        for reason, paths in self.left_out.items():
            some = ", ".join(shown(path) for path in paths[:_SHOWN])
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            said.append(f"not sent, {reason}: {some}{more}")
        return said


class WorkspaceScanner:
    """Scans one folder; remembers which of its files are text, and which ignored, until they or the rules change."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._binary: dict[str, tuple[Signature, bool]] = {}
        self._files_of_rules: dict[str, tuple[Signature, Gitignore]] = {}
        self._decided: dict[str, tuple[tuple[Gitignore, ...], dict[tuple[str, bool], bool]]] = {}
        """Directory -> the rules for it, and what they say of the names in it."""

    def scan(self, texts: Mapping[str, bytes], named: Iterable[str] = (), *, whole: bool = True) -> ScanResult:
        """Select what to send: ``texts`` in place of files on the disk, files that are ``named``, and the rest.

        ``whole`` is whether the folder is a workspace; of others only what is given goes.
        """
        found = ScanResult(dict(texts))
        found.bytes = sum(map(len, texts.values()))
        patience = new_patience()
        for path in dict.fromkeys(named):
            if path not in found.texts:
                found.files[path] = signature = self._named(path, patience)
                found.bytes += signature.size
        if found.bytes > MAX_BYTES or len(found.texts) + len(found.files) > MAX_FILES:
            raise InvalidRequest(
                f"files: at most {MAX_FILES} of them and {MAX_BYTES // MIB} MiB can be sent", field="files"
            )
        if whole:
            self._add_rest(found)
        return found

    def read(self, path: str, most: int) -> bytes:
        """A file of the folder, at most so much of it."""
        with self._opened(path) as file:
            return file.read(most)

    def _opened(self, path: str) -> BinaryIO:
        """A regular file of the folder. Links are not followed, also not those above it."""
        directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            *parents, name = path.split("/")
            for parent in parents:
                below = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
                os.close(directory)
                directory = below
            file = os.fdopen(os.open(name, _READ, dir_fd=directory), "rb")
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.close()
                raise OSError("not a regular file")
            return file
        finally:
            os.close(directory)

    def lines(self, scanned: ScanResult, path: str) -> list[str]:
        """The lines of a file that was sent, as it is now."""
        content = scanned.texts.get(path)
        if content is None:
            try:
                content = self.read(path, LARGE_BYTES)
            except OSError:
                content = b""
        return content.decode("utf-8", "replace").split("\n")

    def _add_rest(self, found: ScanResult) -> None:
        seen: dict[str, tuple[Signature, bool]] = {}
        for path, signature in self._walk(found):
            if path in found.texts or path in found.files:
                continue
            if signature.size > LARGE_BYTES:
                found.leave_out(path, f"larger than {LARGE_BYTES // MIB} MiB")
                continue
            seen[path] = known = self._known(path, signature)
            if known[1]:
                found.leave_out(path, "binary")
            elif len(found.texts) + len(found.files) >= MAX_FILES:
                found.leave_out(path, f"more than {MAX_FILES} files")
            elif found.bytes + signature.size > MAX_BYTES:
                found.leave_out(path, f"more than {MAX_BYTES // MIB} MiB altogether")
            else:
                found.files[path] = signature
                found.bytes += signature.size
        self._binary = seen

    def _known(self, path: str, signature: Signature) -> tuple[Signature, bool]:
        known = self._binary.get(path)
        if known is not None and known[0] == signature:
            return known
        binary = os.path.splitext(path)[1].lower() in BINARY
        if not binary:
            try:
                binary = b"\0" in self.read(path, _SNIFFED)
            except OSError:
                binary = True  # gone, or not for us to read
        return signature, binary

    def _walk(self, found: ScanResult) -> Iterator[tuple[str, Signature]]:
        """(path, signature) of each regular file, the shallow ones first."""
        looked_at = 0
        patience = new_patience()
        decided_before, self._decided = self._decided, {}
        self._files_of_rules = {base: known for base, known in self._files_of_rules.items() if base in decided_before}
        rule_bytes = 0
        level: list[tuple[str, tuple[Gitignore, ...]]] = [("", ())]
        for _ in range(MAX_DEPTH + 1):
            deeper: list[tuple[str, tuple[Gitignore, ...]]] = []
            for base, rules in level:
                rules = self._rules(base, rules)
                if base in self._files_of_rules:
                    rule_bytes += self._files_of_rules[base][0].size
                    if rule_bytes > _MAX_RULE_BYTES:
                        raise InvalidRequest(
                            f"the {gitignore.FILE} files have more than {_MAX_RULE_BYTES // KIB} KiB", field="files"
                        )
                known = decided_before.get(base)
                decided = known[1] if known is not None and known[0] == rules else {}
                self._decided[base] = rules, decided
                for entry in self._entries(base, _MAX_LOOKED_AT + 1 - looked_at):
                    looked_at += 1
                    if looked_at > _MAX_LOOKED_AT:
                        found.leave_out(base or ".", f"more than {_MAX_LOOKED_AT} files and directories to look at")
                        return
                    path = base + entry.name
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if entry.name in NEVER:
                        continue
                    ignored = decided.get((entry.name, is_directory))
                    if ignored is None:
                        ignored = gitignore.ignores(rules, path, patience, directory=is_directory)
                        decided[entry.name, is_directory] = ignored
                    if ignored:
                        continue
                    if is_directory:
                        deeper.append((path + "/", rules))
                    elif entry.is_file(follow_symlinks=False) and _fits(path):
                        yield path, _signature(entry.stat(follow_symlinks=False))
            level = deeper
        for base, _ in level:
            found.leave_out(base, f"more than {MAX_DEPTH} directories deep")

    def _entries(self, base: str, most: int) -> list[os.DirEntry[str]]:
        """List a directory sorted by name; of a larger one, any ``most`` entries."""
        try:
            with os.scandir(os.path.join(self._root, base)) as entries:
                return sorted(itertools.islice(entries, most), key=lambda entry: entry.name)
        except OSError:
            return []

    def _rules(self, base: str, rules: tuple[Gitignore, ...]) -> tuple[Gitignore, ...]:
        try:
            with self._opened(base + gitignore.FILE) as file:
                signature = _signature(os.fstat(file.fileno()))
                known = self._files_of_rules.get(base)
                if known is None or known[0] != signature:
                    text = file.read(gitignore.MAX_BYTES).decode("utf-8", "replace")
                    known = self._files_of_rules[base] = signature, Gitignore(base, text.split("\n"))
        except OSError:
            self._files_of_rules.pop(base, None)
            return rules
        return (*rules, known[1])

    def behind_link(self, path: str) -> bool:
        """Whether a path of the folder is a link, or lies behind one."""
        full = self._root
        for part in path.split("/"):
            full = os.path.join(full, part)
            if os.path.islink(full):
                return True
        return False

    def ignored(self, path: str, patience: MatchBudget | None = None) -> bool:
        """Whether a path is one that is never sent; ``patience`` is what is left for a number of them."""
        parts = path.split("/")
        if not NEVER.isdisjoint(parts):
            return True
        rules: tuple[Gitignore, ...] = ()
        patience = patience or new_patience()
        for depth, _ in enumerate(parts):
            base = "".join(part + "/" for part in parts[:depth])
            rules = self._rules(base, rules)
            below = "/".join(parts[: depth + 1])
            if gitignore.ignores(rules, below, patience, directory=depth + 1 < len(parts)):
                return True
        return False

    def _named(self, path: str, patience: MatchBudget) -> Signature:
        """Return the signature of a file that the caller named; it may be binary or large, but not ignored."""
        if self.ignored(path, patience):
            raise InvalidRequest(f"files: {shown(path)} is never sent: git ignores it", field="files")
        try:
            with self._opened(path) as file:
                return _signature(os.fstat(file.fileno()))
        except OSError as error:
            raise InvalidRequest(f"files: {shown(path)}: {error.strerror or error}", field="files") from None


def new_patience() -> MatchBudget:
    """Return a fresh time budget for matching the patterns of a folder."""
    return MatchBudget(_PATTERN_SECONDS)


def _signature(about: os.stat_result) -> Signature:
    return Signature(about.st_size, about.st_mtime_ns, about.st_ino)


def checked_name(name: str, what: str = "files") -> str:
    """Return the normalized form of a path relative to the workspace, as a caller wrote it."""
    try:
        return "/".join(split_name(name, MAX_DEPTH)) or _empty(what)
    except InvalidRequest as error:
        raise InvalidRequest(f"{what}: {error.message}", field=what) from None


def _empty(what: str) -> str:
    raise InvalidRequest("no name", field=what)


def _fits(path: str) -> bool:
    """Whether a box can have a file of that name."""
    try:
        split_name(path, MAX_DEPTH)
    except InvalidRequest:
        return False
    return True
