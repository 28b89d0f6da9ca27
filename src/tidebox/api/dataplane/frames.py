"""The frames of the dataplane's sockets: hostile text in, typed requests out, and what the server says back."""

from __future__ import annotations

import base64
import binascii
import signal
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from tidebox.api.documents import check_values
from tidebox.api.problems import Problem
from tidebox.errors import InvalidRequest
from tidebox.model.events import StreamName
from tidebox.model.words import MAX_WORDS_BYTES

MAX_TERMINAL_SIDE = 0xFFFF
MAX_OFFSET = 2**53
_SHOWN_CHARACTERS = 128
# Of a word in JSON each byte can be written as \u00XX.
_MAX_WORDS_CHARACTERS = MAX_WORDS_BYTES * 6
_T = TypeVar("_T")


class Terminal(msgspec.Struct):
    """The size of a terminal."""

    rows: int
    cols: int

    def size(self) -> tuple[int, int]:
        """Rows and columns, both such that a terminal can have them."""
        for name, value in (("rows", self.rows), ("cols", self.cols)):
            if not 0 < value <= MAX_TERMINAL_SIDE:
                raise InvalidRequest(f"{name}: give a number between 1 and {MAX_TERMINAL_SIDE}", field=name)
        return self.rows, self.cols


class Auth(msgspec.Struct, tag="auth"):
    """Show a token."""

    token: str


class Start(msgspec.Struct, tag="start"):
    """Run a program; or, with ``process_id``, go on with one that was left running."""

    # Read only after they were looked at: a great many small words take long to read.
    command: msgspec.Raw = msgspec.Raw(b"null")
    cwd: str | None = None
    env: msgspec.Raw = msgspec.Raw(b"null")
    stdin: bool = False
    tty: Terminal | None = None
    timeout_ms: int | None = None
    on_disconnect: Literal["kill", "detach"] = "kill"
    process_id: str | None = None
    offset: int = 0

    def words(self) -> tuple[list[str] | str | None, dict[str, str]]:
        """What to run, and its variables."""
        return _words("command", self.command, _decode_command), _words("env", self.env, _decode_env) or {}


class Stdin(msgspec.Struct, tag="stdin"):
    """Input for the program."""

    data: str = ""
    encoding: Literal["utf8", "base64"] = "utf8"
    eof: bool = False

    def bytes(self) -> bytes:
        """What the program is to read."""
        if self.encoding == "utf8":
            return self.data.encode()
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest("data: not valid base64", field="data") from None


class Resize(Terminal, tag="resize"):
    """The terminal has another size now."""


class Signal(msgspec.Struct, tag="signal"):
    """Signal the program."""

    signal: str

    def number(self) -> int:
        """The signal, given as ``INT`` or ``SIGINT``."""
        name = self.signal.upper()
        try:
            return signal.Signals["SIG" + name.removeprefix("SIG")].value
        except KeyError:
            raise InvalidRequest(f"signal: there is no {_shown(self.signal)}", field="signal") from None


class Ping(msgspec.Struct, tag="ping"):
    """Say that you live."""


class Close(msgspec.Struct, tag="close"):
    """The client is done."""


Request = Auth | Start | Stdin | Resize | Signal | Ping | Close

_decode = msgspec.json.Decoder(Request).decode
_decode_command = msgspec.json.Decoder(list[str] | str | None).decode
_decode_env = msgspec.json.Decoder(dict[str, str] | None).decode
_encode = msgspec.json.Encoder().encode


def parse(text: str | None) -> Request:
    """The request in a message; raises InvalidRequest."""
    if text is None:
        raise InvalidRequest("frames are text messages, not binary ones")
    try:
        request: Request = _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"not a frame of this protocol: {_shown(str(error))}") from None
    except RecursionError:
        raise InvalidRequest("the frame is nested too deeply") from None
    return request


def _words(field: str, given: msgspec.Raw, decode: Callable[[msgspec.Raw], _T]) -> _T:
    if len(memoryview(given)) > _MAX_WORDS_CHARACTERS:
        raise InvalidRequest(f"{field}: more than {MAX_WORDS_BYTES} bytes in all", field=field)
    check_values(bytes(given))
    try:
        return decode(given)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{field}: {_shown(str(error))}", field=field) from None


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def signal_name(number: int | None) -> str | None:
    """A signal as clients name it: ``INT``."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)  # the real-time ones between the first and the last have no name


def auth_ok(sandbox_id: str, capabilities: list[str], expires_at: str) -> str:
    """The token is good."""
    return _text(
        {"type": "auth_ok", "sandbox_id": sandbox_id, "granted_capabilities": capabilities, "expires_at": expires_at}
    )


def ready(pid: int, process_id: str | None, offset: int) -> str:
    """The program runs; one that may be left running has an id, and the place in its output that comes next."""
    frame: dict[str, Any] = {"type": "ready", "pid": pid}
    if process_id is not None:
        frame |= {"process_id": process_id, "offset": offset}
    return _text(frame)


def output(stream: StreamName, data: bytes, text: str | None, offset: int | None) -> str:
    """Bytes as the program wrote them, as text where they are some; ``offset`` is where the output goes on."""
    frame: dict[str, Any] = {"type": stream}
    if text is not None:
        frame |= {"data": text, "encoding": "utf8"}
    else:
        frame |= {"data": base64.b64encode(data).decode(), "encoding": "base64"}
    if offset is not None:
        frame["offset"] = offset
    return _text(frame)


def ended(ending: dict[str, Any]) -> str:
    """The program is over; nothing of it follows."""
    return _text({"type": "exit", **ending})


def watching(path: str, recursive: bool) -> str:
    """From now on changes below a path are told."""
    return _text({"type": "ready", "path": path, "recursive": recursive})


def changed(kind: str, path: str, is_directory: bool, source: str | None) -> str:
    """Something is there, is another, or is there no more; of what was moved, where it was before."""
    frame = {"type": kind, "path": path, "entry": "directory" if is_directory else "file"}
    if source is not None:
        frame["source"] = source
    return _text(frame)


OVERFLOW = '{"type":"overflow"}'
PONG = '{"type":"pong"}'


def error(problem: Problem, request_id: str) -> str:
    """Something was refused, or failed."""
    content = {
        "code": problem.code,
        "message": problem.message.encode("utf-8", "backslashreplace").decode(),
        "retryable": problem.retryable,
        "request_id": request_id,
    }
    return _text({"type": "error", "error": content})


def _text(frame: dict[str, Any]) -> str:
    return _encode(frame).decode()
