"""Which folder a document belongs to, and what it is called there."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidebox.errors import InvalidRequest
from tidebox.lsp.targets import suffix_of


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that programs are run for; ``whole`` is whether it is a workspace, all of which is sent."""

    root: str
    whole: bool

    def path_of(self, uri: str) -> str | None:
        """The path of a document below the folder; None if it lies elsewhere."""
        full = file_of(uri)
        if full is None:
            return None
        for root, named in ((self.root, full), (os.path.realpath(self.root), os.path.realpath(full))):
            below = os.path.relpath(named, root)
            if below != "." and not below.startswith("..") and not os.path.isabs(below):
                return below
        return None

    def uri_of(self, path: str) -> str:
        """The URI of a file below the folder."""
        return Path(self.root, path).as_uri()


def file_of(uri: str) -> str | None:
    """The file that a URI names on this machine."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = unquote(parts.path)
    return os.path.normpath(path) if path.startswith("/") and "\0" not in path else None


def choose_folder(roots: Iterable[str], uri: str | None) -> Folder:
    """The innermost workspace folder that has the document, or the first; else the directory that it is in."""
    folders = [Folder(root, True) for root in roots if _is_workspace(root)]
    if uri is None:
        if not folders:
            raise InvalidRequest("there is no workspace folder: give a uri", field="uri")
        return folders[0]
    having = [folder for folder in folders if folder.path_of(uri) is not None or file_of(uri) == folder.root]
    if having:
        return max(having, key=lambda folder: len(folder.root))
    full = file_of(uri)
    if full is not None:
        return Folder(os.path.dirname(full), False)
    # A document that has no file yet belongs to the workspace, if there is one.
    return folders[0] if folders else Folder("/nonexistent", False)


def name_of(uri: str, language: str) -> str:
    """A name for a document that has no file."""
    stem = posixpath.basename(unquote(urlsplit(uri).path)) or "untitled"
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in stem)[:64]
    return kept if posixpath.splitext(kept)[1] else kept + suffix_of(language)


def _is_workspace(root: str) -> bool:
    """Whether a folder is one that may be sent as a whole: a home directory, or the whole disk, is not."""
    return os.path.realpath(root) not in (os.path.realpath(os.path.expanduser("~")), "/")
