"""Arguments of the commands, parsed strictly: an unknown key is an error that names it."""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeVar

import msgspec

from tidebox.errors import InvalidRequest
from tidebox.lsp.workspace_scan import checked_name
from tidebox.model.events import StreamName

Given = TypeVar("Given", bound=msgspec.Struct)


class InlineFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file whose content comes with the command."""

    path: str
    content: str | None = None
    content_b64: str | None = None

    def bytes(self) -> bytes:
        """Return the content, decoded."""
        if (self.content is None) == (self.content_b64 is None):
            raise InvalidRequest("files: give content or content_b64", field="files")
        if self.content is not None:
            return self.content.encode("utf-8", "surrogatepass")
        try:
            return base64.b64decode(self.content_b64 or "", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(f"files: {self.path}: content_b64 is not base64", field="files") from None


class RunSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a run that ``run`` and ``configure`` share."""

    command: list[str] | None = None
    files: list[str | InlineFile] | None = None
    env: dict[str, str] | None = None
    base_image: str | None = None
    runtime: str | None = None
    timeout_sec: float | None = None
    startup_timeout_sec: float | None = None
    capture_patterns: list[str] | None = None


class RunArguments(RunSettings, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """The argument of ``run``."""

    uri: str | None = None


class Resources(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Limits of a run."""

    cpu: float | None = None
    memory_mb: int | None = None
    pids: int | None = None


class Defaults(RunSettings, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """Default settings for the runs of a folder."""

    packages: list[str] | dict[str, list[str]] | None = None
    resources: Resources | None = None


class ConfigureArguments(Defaults, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """The argument of ``configure``."""

    uri: str | None = None


class OpenArtifactsArguments(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The argument of ``openArtifacts``."""

    run_id: str | None = None


class ReadOutputParams(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The parameters of ``tidebox/readOutput``."""

    run_id: str
    stream: StreamName


def parse(kind: type[Given], arguments: Any) -> Given:
    """The one argument of a command; none is an empty one."""
    given = list(arguments or [])
    if len(given) > 1:
        raise InvalidRequest("give one argument, an object", field="arguments")
    return convert(kind, given[0] if given and given[0] is not None else {})


def convert(kind: type[Given], value: Any) -> Given:
    """A value of that kind; raises ``InvalidRequest`` naming what is wrong with it."""
    try:
        # Editors written in Lua send an empty list for an empty object.
        return msgspec.convert({} if value == [] else value, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error), field="arguments") from None


def merged(before: Given, after: msgspec.Struct) -> Given:
    """``before``, with what ``after`` says of the same in its place; ``env`` is put together."""
    changes: dict[str, Any] = {}
    for name in before.__struct_fields__:
        value = getattr(after, name, None)
        if value is not None:
            own = getattr(before, name)
            changes[name] = {**own, **value} if name == "env" and own else value
    return msgspec.structs.replace(before, **changes)


def split_files(files: list[str | InlineFile] | None) -> tuple[list[str], dict[str, bytes]]:
    """The names of files of the folder, and the files whose content was given."""
    names, contents = [], {}
    for file in files or []:
        if isinstance(file, str):
            names.append(checked_name(file))
        else:
            contents[checked_name(file.path)] = file.bytes()
    return names, contents
