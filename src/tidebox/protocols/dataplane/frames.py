"""Frames of the dataplane's sockets, in both directions, each a JSON text.

A server reads with ``decode_request``, which raises InvalidRequest; a client with ``decode_frame``, which raises
ServerProtocolError. Fields of a peer that are not here are ignored. Whether a program is a possible one is found out
where it is started.
"""

from __future__ import annotations

import base64
import signal
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tidebox.errors import InvalidRequest, ServerProtocolError
from tidebox.model.command_size import MAX_WORDS_BYTES
from tidebox.model.limits import KIB, MIB
from tidebox.protocols.codec import ErrorBody, encode, frame_reader, request_reader, shown
from tidebox.protocols.documents import check_values

MAX_FRAME_BYTES = 16 * MIB
"""The longest frame that a client takes."""
MAX_TERMINAL_SIDE = 0xFFFF
# Of a word in JSON each byte can be written as \u00XX.
_MAX_WORDS_CHARACTERS = MAX_WORDS_BYTES * 6
# Far less than the longest frame that a server takes.
_INPUT_BYTES = 256 * KIB

_T = TypeVar("_T")
Encoding = Literal["utf8", "base64"]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]

# Frames from the client


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


class Start(msgspec.Struct, tag="start", omit_defaults=True):
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
    input_acks: bool = False
    """Whether to be told how much of its input the program has taken."""

    def words(self) -> tuple[list[str] | str | None, dict[str, str]]:
        """The command to run, and its environment."""
        return _words("command", self.command, _decode_command), _words("env", self.env, _decode_env) or {}


def raw(words: Any) -> msgspec.Raw:
    """A command or an environment as ``Start`` has it."""
    return msgspec.Raw(encode(words))


class Stdin(msgspec.Struct, tag="stdin", omit_defaults=True):
    """Input for the program."""

    data: str = ""
    encoding: Encoding = "utf8"
    eof: bool = False

    def bytes(self) -> bytes:
        """The bytes for the program's standard input."""
        try:
            return plain(self.data, self.encoding)
        except ValueError:
            raise InvalidRequest("data: not valid base64", field="data") from None


def input_frames(data: bytes) -> Iterator[bytes]:
    """The texts of the frames that bring input to a program."""
    for start in range(0, len(data), _INPUT_BYTES):
        piece = data[start : start + _INPUT_BYTES]
        try:
            yield encode(Stdin(piece.decode()))
        except UnicodeDecodeError:
            yield encode(Stdin(base64.b64encode(piece).decode(), "base64"))


class Resize(Terminal, tag="resize"):
    """The terminal has another size now."""


class Signal(msgspec.Struct, tag="signal"):
    """Signal the program."""

    signal: str

    def number(self) -> int:
        """The signal, given as ``INT`` or ``SIGINT``."""
        try:
            return signal.Signals["SIG" + self.signal.upper().removeprefix("SIG")].value
        except KeyError:
            raise InvalidRequest(f"signal: there is no {shown(self.signal)}", field="signal") from None


class Ping(msgspec.Struct, tag="ping"):
    """Say that you live."""


class Close(msgspec.Struct, tag="close"):
    """The client is done."""


Request = Auth | Start | Stdin | Resize | Signal | Ping | Close

# Frames from the server


class AuthOk(msgspec.Struct, tag="auth_ok"):
    """The token is good."""

    sandbox_id: str
    granted_capabilities: list[str]
    expires_at: str | None = None


class Ready(msgspec.Struct, tag="ready", omit_defaults=True):
    """The program runs; one that may be left running has an id, and the place in its output that comes next."""

    pid: int
    process_id: str | None = None
    offset: int | None = None
    input_acks: bool = False
    """Whether ``input_taken`` frames follow, as was asked for; older servers know none."""


class InputTaken(msgspec.Struct, tag="input_taken"):
    """How many bytes of the program's input, since it was ``ready``, do not wait at the server any more."""

    bytes: int


class OutputFrame(msgspec.Struct):
    """Bytes as the program wrote them, as text where they are some; ``offset`` is where the output goes on."""

    data: str
    encoding: Encoding = "utf8"
    offset: int | UnsetType | None = UNSET

    def bytes(self) -> bytes:
        """The bytes that the program wrote."""
        try:
            return plain(self.data, self.encoding)
        except ValueError:
            raise ServerProtocolError("the sandbox sent output that is not base64") from None


class Stdout(OutputFrame, tag="stdout"):
    """A piece of standard output."""


class Stderr(OutputFrame, tag="stderr"):
    """A piece of standard error."""


class ExecUsage(msgspec.Struct, omit_defaults=True):
    """The resources a program used, as far as the server knows."""

    cpu_time_ms: Number | None = None
    peak_memory_mb: Number | None = None
    oom_kills: Count | None = None


class Ending(msgspec.Struct, kw_only=True):
    """How a program ended."""

    exit_code: int | None
    signal: str | None
    duration_ms: Number
    resource_usage: ExecUsage


class Exit(Ending, tag="exit", omit_defaults=True):
    """The program is over; nothing of it follows."""

    timed_out: bool = False


class Pong(msgspec.Struct, tag="pong"):
    """The answer to a ping."""


class Error(msgspec.Struct, tag="error"):
    """Something was refused, or failed."""

    error: ErrorBody


Frame = AuthOk | Ready | InputTaken | Stdout | Stderr | Exit | Pong | Error


class WatchFrame(msgspec.Struct):
    """A frame from the server where files are watched, each of which has some of the fields.

    ``ready``: from now on changes below ``path`` are told. ``created``, ``modified``, ``removed`` and ``moved``, from
    ``source``. ``overflow``: more happened than could be told. ``error``, ``auth_ok`` and ``pong`` as everywhere.
    """

    type: str
    path: str | UnsetType = UNSET
    recursive: bool | UnsetType = UNSET
    entry: Literal["file", "directory"] | UnsetType = UNSET
    source: str | UnsetType | None = UNSET
    error: ErrorBody | UnsetType = UNSET


# Texts

_decode_request = request_reader(Request, "not a frame of this protocol")
_decode_command = msgspec.json.Decoder(list[str] | str | None).decode
_decode_env = msgspec.json.Decoder(dict[str, str] | None).decode
decode_frame: Callable[[bytes | str], Frame | None] = frame_reader(Frame)


def decode_request(text: str | None) -> Request:
    """The frame in a message of a client; raises InvalidRequest."""
    if text is None:
        raise InvalidRequest("frames are text messages, not binary ones")
    request: Request = _decode_request(text)
    return request


def _words(field: str, given: msgspec.Raw, read: Callable[[msgspec.Raw], _T]) -> _T:
    if len(memoryview(given)) > _MAX_WORDS_CHARACTERS:
        raise InvalidRequest(f"{field}: more than {MAX_WORDS_BYTES} bytes in all", field=field)
    check_values(bytes(given))
    try:
        return read(given)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{field}: {shown(error)}", field=field) from None


def plain(data: str, encoding: Encoding) -> bytes:
    """The bytes that were sent as text; raises ValueError."""
    return data.encode() if encoding == "utf8" else base64.b64decode(data, validate=True)


def signal_name(number: int | None) -> str | None:
    """A signal as it is named in messages: ``INT``."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)  # the real-time ones between the first and the last have no name


def signal_number(name: str | None) -> int | None:
    """The signal that ended a program; None if none did, or one that this machine does not know."""
    if name is None or f"SIG{name}" in signal.Signals.__members__:
        return None if name is None else signal.Signals[f"SIG{name}"].value
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 4 else None
