"""Ownership of boxes: whose a box is, and whether its owner lives.

An owner is a process that has boxes. It holds a lock on a file of its own for as long as it lives; its boxes carry
the name of that file, and of the installation whose directory the file is in. So a process with the same directory can
tell which boxes nobody will ever remove, and never takes those of another installation for its own.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

INSTALLATION, OWNER = "tidebox.installation", "tidebox.owner"
_INSTALLATION_FILE = "installation"
_LOCKS = "owners"


class OwnerFile:
    """This process, as the owner of boxes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._locks = directory / _LOCKS
        self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.installation = _installation(directory / _INSTALLATION_FILE)
        self.name = secrets.token_hex(8)
        # It is not among the others before it is locked: one without a lock is taken for dead.
        pending = directory / f".{self.name}"
        self._lock = os.open(pending, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _try_to_lock(self._lock)
        pending.rename(self._locks / self.name)

    @property
    def labels(self) -> dict[str, str]:
        """Labels that everything of this owner carries."""
        return {INSTALLATION: self.installation, OWNER: self.name}

    def lives(self, owner: str) -> bool:
        """Whether the owner of that name, of the same installation, still lives."""
        if owner == self.name:
            return True
        if not (owner.isascii() and owner.isalnum()):
            return False
        try:
            descriptor = os.open(self._locks / owner, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            return not _try_to_lock(descriptor)
        finally:
            os.close(descriptor)

    def forget(self, owner: str) -> None:
        """Nothing of a dead owner is left."""
        if owner.isascii() and owner.isalnum() and not self.lives(owner):
            (self._locks / owner).unlink(missing_ok=True)

    def dead(self) -> list[str]:
        """The owners that are no more."""
        return [path.name for path in self._locks.iterdir() if not self.lives(path.name)]

    def close(self, *, nothing_left: bool) -> None:
        """Live no longer as an owner; the name stays where something of it does."""
        if nothing_left:
            (self._locks / self.name).unlink(missing_ok=True)
        os.close(self._lock)


def _installation(path: Path) -> str:
    """The name of an installation, made when it is first asked for."""
    if not path.exists():
        pending = path.with_name(f".{secrets.token_hex(8)}")
        pending.write_text(secrets.token_hex(8))
        try:
            # Whole or not at all, and the first one stays.
            os.link(pending, path)
        except FileExistsError:
            pass
        finally:
            pending.unlink()
    return path.read_text().strip()


def _try_to_lock(descriptor: int) -> bool:
    """Whether nobody else has the lock; it is then ours until the descriptor is closed."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
