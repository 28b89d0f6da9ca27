"""The directory a server keeps its state in: who uses it, and the key and the name that are kept there."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType

from tidebox.errors import Conflict, InvalidRequest
from tidebox.model.node import is_node_id

_LOCK = "server.lock"
_KEY = "api-key"
_NODE = "node-id"


class DataDir:
    """The data directory in the hands of one server; released with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        """Make the directory if there is none, and take it; raises what keeps a server from using it."""
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise InvalidRequest(f"the data directory {path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise Conflict(f"another server (process {holder or 'unknown'}) uses the data directory {path}") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)

    @property
    def key_file(self) -> Path:
        """Where the key of the single user is kept."""
        return self.path / _KEY

    def api_key(self) -> str:
        """The key of the single user, made if there is none yet."""
        try:
            try:
                return self._read_key()
            except FileNotFoundError:
                return self._make_key()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise InvalidRequest(f"the key file {self.key_file} cannot be used: {reason}") from None

    def _read_key(self) -> str:
        descriptor = os.open(self.key_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor) as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
                raise InvalidRequest(f"the key file {self.key_file} can be used by others: give it mode 600")
            key = file.read(4096).strip()
        if not key:
            raise InvalidRequest(f"the key file {self.key_file} is empty: remove it, and a new key is made")
        return key

    def _make_key(self) -> str:
        key = f"tb_{secrets.token_urlsafe(32)}"
        self._write(_KEY, key)
        return key

    def node_id(self) -> str:
        """The name by which servers on one database know the one of this directory, made if there is none yet."""
        path = self.path / _NODE
        try:
            if not path.exists():
                self._write(_NODE, f"node-{secrets.token_hex(6)}")
            found = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise InvalidRequest(f"the file {path} cannot be used: {reason}") from None
        if not is_node_id(found):
            raise InvalidRequest(f"the file {path} has no node id: remove it, and a new one is made")
        return found

    def home(self) -> str:
        """A name of this very directory: a copy of it has another one."""
        return f"{self.node_id()}.{(self.path / _NODE).stat().st_ino}"

    def _write(self, name: str, text: str) -> None:
        # Renamed into place: a server that is killed in between must not leave half of it.
        fresh = self.path / f"{name}.new"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
        fresh.rename(self.path / name)

    def sweep(self, sockets: Path) -> None:
        """Remove the sockets of a server that was killed: its boxes died with it."""
        for left in sockets.glob("*.sock"):
            left.unlink(missing_ok=True)

    def release(self) -> None:
        """Let another server have it."""
        os.close(self._lock)

    def __enter__(self) -> DataDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
