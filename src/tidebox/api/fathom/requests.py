"""Parsing of client messages: hostile text becomes a typed request, or a refusal that names the field."""

from __future__ import annotations

import re
from typing import NoReturn

import msgspec

from tidebox.model.limits import KIB, MIB
from tidebox.protocols.fathom import VERSION, Code, Execute, Ping, Request

MAX_ID_BYTES = 256
MAX_CODE_BYTES = MIB
MAX_STDIN_BYTES = 4 * MIB
MAX_ENV_VARIABLES = 256
MAX_ENV_NAME_BYTES = 256
# The kernel takes 128 KiB for one variable, name included.
MAX_ENV_VALUE_BYTES = 64 * KIB
MAX_ENV_BYTES = 256 * KIB
# How much longer a text may be in JSON, where each of its bytes can be written as \u00XX.
_ESCAPED = 6
# Of what a client sent, no more than this is repeated to it.
_SHOWN_CHARACTERS = 64


class MessageRefused(Exception):
    """A message that is not acted upon; ``id`` is the execution it speaks of, where that could be read."""

    def __init__(self, code: Code, message: str, id: str | None = None) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
        self.id = id


class _Envelope(msgspec.Struct):
    """The fields that identify a message which is not a valid request."""

    v: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_TYPES = ("execute", "cancel", "ping")
_decode_request = msgspec.json.Decoder(Request).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_env = msgspec.json.Decoder(dict[str, str] | None).decode
_decode_string = msgspec.json.Decoder(str).decode
_decode_integer = msgspec.json.Decoder(int).decode

_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")
_PLACE = re.compile(r" - at `(?P<path>\$[^`]*)`$")


def parse(text: str) -> Request:
    """The request in a text frame; raises MessageRefused."""
    try:
        request: Request = _decode_request(text)
    except msgspec.ValidationError as error:
        _refuse(text, error)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise MessageRefused("INVALID_REQUEST", f"the message is not JSON: {error}") from None
    except RecursionError:
        raise MessageRefused("INVALID_REQUEST", "the message is nested too deeply") from None
    if request.v != VERSION:
        raise _unsupported(request.v, None if isinstance(request, Ping) else _known_id(request.id))
    if not isinstance(request, Ping):
        _check_id(request.id)
    return request


def parse_env(request: Execute) -> dict[str, str]:
    """The environment variables of an execute message."""
    if len(memoryview(request.env)) > MAX_ENV_BYTES * _ESCAPED:
        raise MessageRefused("INVALID_REQUEST", f"env: longer than {MAX_ENV_BYTES} bytes", request.id)
    try:
        env = _decode_env(request.env) or {}
    except msgspec.DecodeError as error:
        place = " (a variable's value)" if "[...]" in str(error) else ""
        raise MessageRefused("INVALID_REQUEST", f"env: {_PLACE.sub('', str(error))}{place}", request.id) from None
    if len(env) > MAX_ENV_VARIABLES:
        raise MessageRefused("INVALID_REQUEST", f"env: more than {MAX_ENV_VARIABLES} variables", request.id)
    total = 0
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise MessageRefused("INVALID_REQUEST", f"env: no variable can have the name {shown(name)}", request.id)
        if "\0" in value:
            raise MessageRefused("INVALID_REQUEST", f"env: a NUL character in the value of {shown(name)}", request.id)
        name_size, value_size = len(name.encode()), len(value.encode())
        if name_size > MAX_ENV_NAME_BYTES:
            message = f"env: the name {shown(name)} is longer than {MAX_ENV_NAME_BYTES} bytes"
            raise MessageRefused("INVALID_REQUEST", message, request.id)
        if value_size > MAX_ENV_VALUE_BYTES:
            message = f"env: the value of {shown(name)} is longer than {MAX_ENV_VALUE_BYTES} bytes"
            raise MessageRefused("INVALID_REQUEST", message, request.id)
        total += name_size + value_size
    if total > MAX_ENV_BYTES:
        raise MessageRefused("INVALID_REQUEST", f"env: longer than {MAX_ENV_BYTES} bytes", request.id)
    return env


def refuse_oversized(text: str, limit: int) -> NoReturn:
    """Refuse a message for its length alone, naming its execution."""
    try:
        id = _id_of(_decode_envelope(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        id = None
    raise MessageRefused("INVALID_REQUEST", f"the message is longer than {limit} bytes", id)


def shown(value: str | int) -> str:
    """Return a value that a client sent, short enough to be quoted in an error."""
    text = str(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "…"
    return repr(text) if isinstance(value, str) else text


def _unsupported(version: int, id: str | None) -> MessageRefused:
    return MessageRefused(
        "INVALID_REQUEST", f"v: version {shown(version)} is not supported; supported is {VERSION}", id
    )


def _known_id(id: str) -> str | None:
    return id if 0 < len(id.encode()) <= MAX_ID_BYTES else None


def _check_id(id: str) -> None:
    if not id:
        raise MessageRefused("INVALID_REQUEST", "id: empty")
    if _known_id(id) is None:
        raise MessageRefused("INVALID_REQUEST", f"id: longer than {MAX_ID_BYTES} bytes")


def _refuse(text: str, error: msgspec.ValidationError) -> NoReturn:
    """Raise the refusal for JSON that is no request: about the envelope first, then the field the decoder named."""
    try:
        envelope = _decode_envelope(text)
    except msgspec.ValidationError:
        raise MessageRefused("INVALID_REQUEST", "the message is not a JSON object") from None
    except msgspec.DecodeError as malformed:
        raise MessageRefused("INVALID_REQUEST", f"the message is not JSON: {malformed}") from None
    except RecursionError:
        raise MessageRefused("INVALID_REQUEST", "the message is nested too deeply") from None
    id = _id_of(envelope)
    _check_version(envelope, id)
    if envelope.type is msgspec.UNSET:
        raise MessageRefused("INVALID_REQUEST", "type: missing", id)
    try:
        type = _decode_string(envelope.type)
    except msgspec.DecodeError as wrong:
        raise MessageRefused("INVALID_REQUEST", f"type: {wrong}", id) from None
    if type not in _TYPES:
        raise MessageRefused("INVALID_REQUEST", f"type: {shown(type)} is none of {', '.join(_TYPES)}", id)
    raise MessageRefused("INVALID_REQUEST", _described(error), id)


def _id_of(envelope: _Envelope) -> str | None:
    if envelope.id is msgspec.UNSET or len(memoryview(envelope.id)) > MAX_ID_BYTES * _ESCAPED + 2:
        return None
    try:
        return _known_id(_decode_string(envelope.id))
    except msgspec.DecodeError:
        return None


def _check_version(envelope: _Envelope, id: str | None) -> None:
    if envelope.v is msgspec.UNSET:
        raise MessageRefused("INVALID_REQUEST", "v: missing", id)
    try:
        version = _decode_integer(envelope.v)
    except msgspec.DecodeError as wrong:
        raise MessageRefused("INVALID_REQUEST", f"v: {wrong}", id) from None
    if version != VERSION:
        raise _unsupported(version, id)


def _described(error: msgspec.ValidationError) -> str:
    """The decoder's words with the field in front: ``limits.timeout_ms: Expected `int`, got `str```."""
    text = str(error)
    place = _PLACE.search(text)
    path = place["path"].removeprefix("$").lstrip(".") if place else ""
    text = text[: place.start()] if place else text
    missing = _MISSING.fullmatch(text)
    if missing is not None:
        path = ".".join(filter(None, (path, missing["name"])))
        text = "missing"
    return f"{path}: {text}" if path else text
