"""Arguments of MCP tools: parsed strictly, and refused with a text that tells a model what to send instead."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from tidebox.errors import InvalidRequest

Kind = TypeVar("Kind", bound=msgspec.Struct)


class File(msgspec.Struct, forbid_unknown_fields=True):
    """A file that is put into the workspace before a program starts."""

    path: str
    content: str | None = None
    content_b64: str | None = None

    def bytes(self) -> bytes:
        """Return the content of the file."""
        return content_of(self.content, self.content_b64, f"file {self.path!r}")


class RunCode(msgspec.Struct, kw_only=True):
    """Arguments of ``run_code``."""

    code: str
    language: str = "python"
    packages: list[str] = []
    allow_hosts: list[str] = []
    files: list[File] = []
    timeout_sec: float | None = None


class SandboxRun(msgspec.Struct, kw_only=True):
    """Arguments of ``sandbox_run``."""

    command: list[str]
    session_id: str | None = None
    base_image: str | None = None
    runtime: str | None = None
    files: list[File] = []
    timeout_sec: float | None = None
    env: dict[str, str] = {}
    allow_hosts: list[str] = []
    capture_patterns: list[str] = []


class Acquire(msgspec.Struct, kw_only=True):
    """Arguments of ``environment_acquire``."""

    thread_id: str
    mode: Literal["ensure", "get"] = "ensure"


class OfSession(msgspec.Struct, kw_only=True):
    """Arguments of tools that need nothing but a session."""

    session_id: str


class EnvironmentExec(msgspec.Struct, kw_only=True):
    """Arguments of ``environment_exec``."""

    session_id: str
    command: str | list[str]
    cwd: str | None = None
    timeout_sec: float | None = None


class ReadFile(msgspec.Struct, kw_only=True):
    """Arguments of ``environment_read_file``."""

    session_id: str
    path: str


class WriteFile(msgspec.Struct, kw_only=True):
    """Arguments of ``environment_write_file``."""

    session_id: str
    path: str
    content: str | None = None
    content_b64: str | None = None

    def bytes(self) -> bytes:
        """Return the content of the file."""
        return content_of(self.content, self.content_b64, "the file")


class ListFiles(msgspec.Struct, kw_only=True):
    """Arguments of ``environment_list_files``."""

    session_id: str
    path: str = "."


def parse(kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """The arguments of a call; raises ``InvalidRequest`` that names what is wrong."""
    known = kind.__struct_fields__
    unknown = [name for name in given if name not in known]
    if unknown:
        names = ", ".join(repr(name[:100]) for name in unknown[:8])
        raise InvalidRequest(f"unknown argument {names}; this tool takes {', '.join(known)}", field=unknown[0])
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"wrong arguments: {error}") from None


def content_of(text: str | None, encoded: str | None, where: str) -> bytes:
    """The bytes of a file that is given as text or as base64."""
    if (text is None) == (encoded is None):
        raise InvalidRequest(f"{where}: give either content (text) or content_b64 (base64)", field="content")
    if text is not None:
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{where}: content_b64 is not valid base64", field="content_b64") from None
