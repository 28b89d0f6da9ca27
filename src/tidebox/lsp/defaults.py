"""Defaults of workspace folders, kept with the user's other settings: a folder may be a stranger's, and has no say."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from tidebox.errors import InvalidRequest
from tidebox.lsp.arguments import Defaults, convert

FILE = "workspaces.json"
_MAX_BYTES = 1024 * 1024
_MAX_FOLDERS = 1000


class DefaultsFile:
    """The JSON file of per-workspace defaults: folder -> keys given to ``configure``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def get(self, folder: str) -> dict[str, Any]:
        """Return the defaults of a folder."""
        kept = self._read().get(folder, {})
        try:
            convert(Defaults, kept)
        except InvalidRequest as error:
            raise InvalidRequest(f"{self._path}: {error.message}", field="configure") from None
        return kept

    def change(self, folder: str, said: dict[str, Any]) -> dict[str, Any]:
        """Store the given keys, and delete those that are null; return all that remain."""
        everything = self._read()
        kept = {**everything.pop(folder, {}), **said}
        kept = {name: value for name, value in kept.items() if value is not None}
        convert(Defaults, kept)
        if kept:
            everything[folder] = kept
        while len(everything) > _MAX_FOLDERS:
            del everything[next(iter(everything))]
        self._write(everything)
        return kept

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                content = json.loads(file.read(_MAX_BYTES))
            if not isinstance(content, dict) or not all(isinstance(each, dict) for each in content.values()):
                raise ValueError
            return content
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            raise InvalidRequest(f"{self._path} cannot be understood; remove it", field="configure") from None

    def _write(self, content: dict[str, dict[str, Any]]) -> None:
        text = json.dumps(content, indent=1)
        if len(text) > _MAX_BYTES:
            raise InvalidRequest(f"more than {_MAX_BYTES} bytes of defaults", field="configure")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = self._path.with_name(f".{FILE}-{secrets.token_hex(8)}")
        # Variables may be secrets.
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            os.replace(written, self._path)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
