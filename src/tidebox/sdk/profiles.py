"""Servers that the user has logged in to: a file of addresses and keys that nobody else can read."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tidebox.errors import InvalidRequest, NotFound

FILE = "profiles.json"
DEFAULT_PROFILE = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Of a file that holds some addresses and keys.
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Profile:
    """A server and the key for it; None where the key is found otherwise."""

    url: str
    api_key: str | None = field(default=None, repr=False)


class Profiles:
    """The stored servers by name, and which of them is the current one."""

    def __init__(self, path: Path, profiles: Mapping[str, Profile] | None = None, current: str | None = None) -> None:
        self.path = path
        self.profiles = dict(profiles or {})
        self.current = current

    @classmethod
    def load(cls, directory: Path) -> Profiles:
        """Read the file; raises if others could have read or written it."""
        path = directory / FILE
        try:
            text = _read_private(path)
            content = json.loads(text) if text is not None else {}
            found = {name: _profile(said) for name, said in content.get("profiles", {}).items()}
            current = content.get("current")
            if not all(map(_NAME.fullmatch, found)) or not (current is None or isinstance(current, str)):
                raise ValueError
            return cls(path, found, current)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InvalidRequest(f"{path} cannot be understood; remove it and log in again", field="profile") from None

    def get(self, name: str) -> Profile:
        """The profile of that name."""
        try:
            return self.profiles[name]
        except KeyError:
            known = f"; there are {', '.join(sorted(self.profiles))}" if self.profiles else ""
            raise NotFound(f"no profile {name!r}{known}", profile=name) from None

    def put(self, name: str, profile: Profile) -> None:
        """Add or replace a profile, and make it the current one."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest("a profile's name has letters, digits, dots, dashes and underscores", field="profile")
        self.profiles[name] = profile
        self.current = name
        self._save()

    def remove(self, name: str) -> None:
        """Forget a profile with its key."""
        self.get(name)
        del self.profiles[name]
        if self.current == name:
            self.current = None
        self._save()

    def _save(self) -> None:
        content = {"current": self.current, "profiles": {name: asdict(each) for name, each in self.profiles.items()}}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Replaced as a whole, so that a reader never sees half of it, and never readable by others.
        temporary = self.path.with_name(f".{FILE}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
                file.write("\n")
            os.replace(temporary, self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _profile(said: Any) -> Profile:
    url, key = said["url"], said.get("api_key")
    if not isinstance(url, str) or not (key is None or isinstance(key, str)):
        raise TypeError
    return Profile(url, key)


def _read_private(path: Path) -> str | None:
    """Read a file that only the user can read or write; None if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}", field="profile") from error
    with open(descriptor, encoding="utf-8") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise InvalidRequest(f"{path} is not a file of yours; remove it and log in again", field="profile")
        if about.st_mode & 0o077:
            raise InvalidRequest(f"others can read the keys in {path}; type: chmod 600 {path}", field="profile")
        return file.read(_MAX_BYTES)
