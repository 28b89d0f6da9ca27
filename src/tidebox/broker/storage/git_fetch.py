"""Files from a git repository: fetched by the server, outside any box, from hosts that the operator named.

No working tree is ever checked out, so that no hook, filter, attribute or link of the repository does anything here:
objects are fetched into a bare repository, a patch is applied to its index, and the tree comes out as an archive, which
is staged as any other upload is. Neither history nor ``.git`` reach the workspace.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidebox.errors import FetchFailed, Forbidden, InvalidRequest, PayloadTooLarge, RuntimeUnavailable
from tidebox.model.git_source import GitSource
from tidebox.untrusted_files.staging import Stage

MAX_PATCH_BYTES = 1 << 20
MAX_DEPTH = 1000

_PORTS = {"https": 443, "http": 80, "git": 9418}
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]{0,254}")
_MAX_URL = 2048
_MAX_MESSAGE = 300
_NOT_FOUND = 127  # as a shell says that there is no such command
_MEMORY_KIB = 2 * 1024 * 1024
_LIMITED = 'ulimit -c 0; ulimit -f "$1" && ulimit -t "$2" && ulimit -v "$3" && shift 3 && exec "$@"'
_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "credential.helper=",
    "http.followRedirects=false",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=15",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.unpackLimit=1",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "pack.threads=1",
    "core.packedGitLimit=256m",
    "core.deltaBaseCacheLimit=64m",
    "tar.umask=0022",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRules:
    """Allowed schemes and hosts of git repositories, and limits."""

    schemes: tuple[str, ...] = ("https",)
    hosts: tuple[str, ...] = ()
    """Names, ``*.name`` for everything below one, ``name:port`` for another port, ``*`` for all; none turns it off."""
    timeout: float = 60.0
    max_bytes: int = 256 << 20
    """Of the pack that is fetched."""


def check(source: GitSource, rules: GitRules) -> None:
    """Refuse what would not be fetched, before anything is tried."""
    if not rules.hosts:
        raise Forbidden("git repositories are turned off on this server")
    if len(source.url) > _MAX_URL or not source.url.isascii() or not source.url.isprintable() or " " in source.url:
        raise InvalidRequest("not the URL of a git repository", field="git.url")
    try:
        parts = urlsplit(source.url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise InvalidRequest("not the URL of a git repository", field="git.url") from None
    if parts.scheme not in rules.schemes or parts.scheme not in _PORTS:
        allowed = ", ".join(scheme for scheme in rules.schemes if scheme in _PORTS)
        raise Forbidden(f"git repositories are fetched by {allowed or 'nothing'} only", field="git.url")
    if "@" in parts.netloc:
        raise InvalidRequest("a URL with a user name or password in it would end up in logs", field="git.url")
    if not host or not parts.path.strip("/"):
        raise InvalidRequest("not the URL of a git repository", field="git.url")
    if not any(_matches(host, port, _PORTS[parts.scheme], entry.lower()) for entry in rules.hosts):
        raise Forbidden("repositories of this host are not fetched; SANDBOX_GIT_HOSTS names those that are", host=host)
    if source.ref is not None and (not _REF.fullmatch(source.ref) or ".." in source.ref or "//" in source.ref):
        raise InvalidRequest("not the name of a branch, a tag or a commit", field="git.ref")
    if not 1 <= source.depth <= MAX_DEPTH:
        raise InvalidRequest(f"the depth must be between 1 and {MAX_DEPTH}", field="git.depth")
    if source.patch is not None and len(source.patch.encode("utf-8", "surrogatepass")) > MAX_PATCH_BYTES:
        raise PayloadTooLarge(
            f"the patch is longer than {MAX_PATCH_BYTES} bytes", field="git.patch", limit=MAX_PATCH_BYTES
        )


def _matches(host: str, port: int | None, usual: int, entry: str) -> bool:
    name, colon, number = entry.rpartition(":")
    if not colon or not number.isdigit():
        name, number = entry, str(usual)
    if str(port or usual) != number:
        return False
    return name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:]))


class GitFetch:
    """One fetch, on a thread of its own; ``stop`` ends it from another."""

    def __init__(self, source: GitSource, rules: GitRules, repository: Path) -> None:
        check(source, rules)
        self._source = source
        self._rules = rules
        self._repository = repository
        self._deadline = time.monotonic() + rules.timeout
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def into(self, stage: Stage) -> str:
        """Fetch, apply the patch, and stage the files; the id of the commit."""
        self._git("init", "--quiet", "--bare", "--template=", ".")
        depth = f"--depth={self._source.depth}"
        ref = self._source.ref or "HEAD"
        self._git("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", depth, "--", self._source.url, ref)
        commit = self._git("rev-parse", "--verify", "FETCH_HEAD^{commit}").decode().strip()
        self._archive(self._patched(commit), stage)
        return commit

    def _patched(self, commit: str) -> str:
        if self._source.patch is None:
            return commit
        self._git("read-tree", commit)
        patch = self._source.patch.encode("utf-8", "surrogateescape")
        try:
            self._git("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch)
        except FetchFailed as error:
            raise InvalidRequest(f"the patch does not apply: {error.message}", field="git.patch") from None
        return self._git("write-tree").decode().strip()

    def _archive(self, tree: str, stage: Stage) -> None:
        # Attributes are looked for in a working tree, of which there is none: files come as they are committed, and
        # the tree need not be read as a whole before, which may be larger than anything.
        process = self._start(("archive", "--format=tar", "--worktree-attributes", tree), stdin=False)
        assert isinstance(process.stdout, io.BufferedReader)
        timer = threading.Timer(max(self._deadline - time.monotonic(), 0), self.stop)
        timer.start()
        try:
            with process.stdout as output:
                stage.unpack_tar(output)
            process.wait()
        except InvalidRequest:
            # What is wrong with a tree is told; what is cut off because git was stopped is not its fault.
            if self._stopped:
                raise _too_slow(self._rules) from None
            raise
        finally:
            timer.cancel()
            self._end(process)
            _, problem = process.communicate()
        if process.returncode:
            raise self._failure(process.returncode, problem)

    def _git(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        process = self._start(arguments, stdin=stdin is not None)
        try:
            output, problem = process.communicate(stdin, timeout=max(self._deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            raise _too_slow(self._rules) from None
        finally:
            self._end(process)
            process.communicate()
        if process.returncode:
            raise self._failure(process.returncode, problem)
        return output

    def _start(self, arguments: Sequence[str], *, stdin: bool) -> subprocess.Popen[bytes]:
        options = [word for option in (*_OPTIONS, *self._protocols()) for word in ("-c", option)]
        blocks = self._rules.max_bytes // 512
        seconds = int(self._rules.timeout) + 1
        limits = [str(blocks), str(seconds), str(_MEMORY_KIB)]
        with self._lock:
            if self._stopped:
                raise _too_slow(self._rules)
            try:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _LIMITED, "sh", *limits, "git", *options, *arguments],
                    cwd=self._repository,
                    env=self._environment(),
                    stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise RuntimeUnavailable(f"git cannot be started: {error.strerror}") from error
            return self._process

    def _protocols(self) -> list[str]:
        return ["protocol.allow=never", *(f"protocol.{scheme}.allow=always" for scheme in self._rules.schemes)]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._repository),
            "LANG": "C.UTF-8",
            "GIT_DIR": str(self._repository),
            "GIT_INDEX_FILE": str(self._repository / "index"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "SSH_ASKPASS": "/bin/false",
            "GIT_SSH_COMMAND": "/bin/false",
            "GIT_ALLOW_PROTOCOL": ":".join(self._rules.schemes),
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_OPTIONAL_LOCKS": "0",
        }

    def _failure(self, code: int, problem: bytes) -> FetchFailed | PayloadTooLarge | RuntimeUnavailable:
        if self._stopped:
            return _too_slow(self._rules)
        if code == _NOT_FOUND:
            return RuntimeUnavailable("git is not installed on this server")
        text = problem.decode("utf-8", "replace")
        if self._is_full():
            limit = self._rules.max_bytes
            return PayloadTooLarge(f"the repository is larger than {limit} bytes", field="git.url", limit=limit)
        lines = [line for line in text.splitlines() if line.startswith(("fatal:", "error:"))] or text.splitlines()
        message = "".join(character for character in (lines or ["git failed"])[0] if character.isprintable())
        return FetchFailed(f"git: {message[:_MAX_MESSAGE]}", step="git")

    def _is_full(self) -> bool:
        """Whether a pack has become as large as it may: git was killed when it went on."""
        packs = (self._repository / "objects" / "pack").glob("*")
        return any(pack.stat().st_size >= self._rules.max_bytes // 512 * 512 for pack in packs)

    def stop(self) -> None:
        """End it as soon as may be."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is not None:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # Its helpers too, which talk to the network: they are all of one process group.
        # Until it was waited for, its id is nobody else's.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _too_slow(rules: GitRules) -> FetchFailed:
    return FetchFailed(f"git: the repository did not come within {rules.timeout:g} seconds", step="git")
