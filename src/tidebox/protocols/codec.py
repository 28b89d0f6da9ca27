"""Messages as texts: whatever is wrong with one that came, or is to be sent, is one error of ``tidebox.errors``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from tidebox.errors import InvalidRequest, ServerProtocolError

Message = TypeVar("Message")
Fields = TypeVar("Fields", bound=msgspec.Struct)

_SHOWN_CHARACTERS = 256
_BROKEN = (msgspec.DecodeError, UnicodeError, RecursionError)
_encode = msgspec.json.Encoder().encode


class ErrorBody(msgspec.Struct):
    """The error of every error answer and ``error`` frame."""

    code: str
    message: str
    retryable: bool = False
    request_id: str | None = None
    details: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class ErrorEnvelope(msgspec.Struct):
    """An error answer."""

    error: ErrorBody


class _Tagged(msgspec.Struct):
    type: str


def encode(message: Any) -> bytes:
    """The text of a message; raises InvalidRequest for what is no text."""
    try:
        return _encode(message)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"not something that can be sent: {shown(error)}") from None


def text_of(message: Any) -> str:
    """The text of a message of the server, which holds nothing that cannot be sent."""
    return _encode(message).decode()


def decode(kind: type[Message], text: bytes | str) -> Message:
    """The answer of a server; raises ServerProtocolError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except _BROKEN as error:
        raise ServerProtocolError(f"the server's answer is not one of this protocol: {shown(error)}") from None


def convert(kind: type[Message], value: Any) -> Message:
    """The same of JSON that was read already."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ServerProtocolError(f"not a message of this protocol: {shown(error)}") from None


def request_reader(kind: Any, what: str) -> Callable[[bytes | str], Any]:
    """Reads requests of clients; raises InvalidRequest."""
    read = msgspec.json.Decoder(kind).decode

    def decode(text: bytes | str) -> Any:
        try:
            return read(text)
        except _BROKEN as error:
            raise InvalidRequest(f"{what}: {shown(error)}") from None

    return decode


def frame_reader(union: Any) -> Callable[[bytes | str], Any]:
    """Reads frames of servers: None for a type that a later server may know and we do not.

    Raises ServerProtocolError.
    """
    known = frozenset(kind.__struct_config__.tag for kind in union.__args__)
    read = msgspec.json.Decoder(union).decode

    def decode(text: bytes | str) -> Any:
        try:
            return read(text)
        except _BROKEN as error:
            try:
                if msgspec.json.decode(text, type=_Tagged).type not in known:
                    return None
            except _BROKEN:
                pass
            kind = "a frame that is not in the protocol"
            if not isinstance(error, msgspec.ValidationError):
                kind = "something that is not JSON"
            raise ServerProtocolError(f"the server sent {kind}: {shown(error)}") from None

    return decode


def from_fields(kind: type[Fields], given: Mapping[str, Any]) -> Fields:
    """A request whose fields may be the texts of a query; what is not a field of it is ignored. Raises InvalidRequest.

    A flag that is there without a value is set.
    """
    found = {}
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name not in given:
            if field.required:
                raise InvalidRequest(f"{name}: must be given", field=name)
            continue
        is_flag = getattr(field.type, "__origin__", field.type) is bool
        value = True if is_flag and given[name] == "" else given[name]
        try:
            found[name] = msgspec.convert(value, field.type, strict=False)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidRequest(f"{name}: {shown(error)}", field=name) from None
        # Texts like 1e3 and 1.0 are taken for whole numbers otherwise.
        if isinstance(value, str) and type(found[name]) is int and str(found[name]) != value:
            raise InvalidRequest(f"{name}: give a whole number in digits", field=name)
    return kind(**found)


def to_fields(message: msgspec.Struct) -> dict[str, str]:
    """A request as the fields of a query; what was not said is left out."""
    said = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in said.items()}


def shown(error: object) -> str:
    """A short description of the error, of characters that can all be sent."""
    return encodable(str(error)[:_SHOWN_CHARACTERS])


def encodable(text: str) -> str:
    """A text without half surrogate pairs, which a message may quote."""
    return text.encode("utf-8", "backslashreplace").decode()
