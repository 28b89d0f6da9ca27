"""uvicorn's HTTP/1.1 with bounds: what is too long, too slow or ambiguous is refused, in the server's one envelope.

The request line, the headers and the framing of a body are read before anybody is asked for a credential.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sized
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tidebox.api import problems
from tidebox.api.asgi import is_known
from tidebox.api.connection_limits import ConnectionState
from tidebox.api.paced_reader import PacedReader
from tidebox.model.ids import new_id

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
HEAD_SECONDS = 10.0
# What may come that is neither a head nor content: sizes and extensions of chunks, empty lines between requests.
MAX_FRAMING_BYTES = 16 * 1024
# How long a client may send nothing of a body that is waited for; before it has shown a credential, how long the whole
# body, and taking the answer, may last.
REQUEST_SECONDS = 30.0
# Chunks cost by their number: a piece of what was received with so many is dense, and a body has only so many of these.
DENSE_CHUNKS = 64
MAX_DENSE_PIECES = 32

_HOST = re.compile(rb"[A-Za-z0-9._~%:\[\]-]*")


class BoundedHttp(HttpToolsProtocol):
    """One HTTP/1.1 connection, with limits on size, time and number of what an unauthenticated client sends."""

    server_state: ConnectionState
    _in_head = True
    """Whether the next that comes belongs to a request line or headers."""
    _has_cycle = False
    """Whether the request that is being read was handed on."""
    _is_complete = False
    """Whether the request that was handed on last was read to its end."""
    _running: RequestResponseCycle | None = None
    _uneventful_bytes = 0
    _eventful = False
    _body_bytes = 0
    _seen_body_bytes = 0
    _chunks = 0
    _dense_pieces = 0
    _timer: asyncio.TimerHandle | None = None
    _refusal: problems.ApiProblem

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._pacer = PacedReader(self.loop, transport, self._parse)
        self.flow = _PacedFlow(transport, self._pacer, self.pipeline)
        self._refusal = _NOT_HTTP
        if not self.server_state.admission.admit(transport, self._address):
            self._refuse(_TOO_MANY)
            return
        self._arm(HEAD_SECONDS, self._refuse, _SLOW_HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._pacer.end()
        self._unset_keepalive_if_required()
        self.server_state.admission.leave(self.transport)
        if self._running is not None:
            _disconnect(self._running)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._pacer.feed(data)

    def _parse(self, data: bytes) -> None:
        self._eventful = False
        self._chunks = 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._pacer.end()
            if self._should_upgrade():
                self._disarm()
                self.server_state.admission.busy(self.transport)
                self.handle_websocket_upgrade()
            else:
                # It is answered as if it had not asked; what comes after it may be meant for another protocol.
                self.cycle.keep_alive = False
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        self._uneventful_bytes = 0 if self._eventful else self._uneventful_bytes + len(data)
        if self._uneventful_bytes > (MAX_HEAD_BYTES if self._in_head else MAX_FRAMING_BYTES):
            self._refuse(_LONG_HEAD if self._in_head else _LONG_FRAMING)
        elif self._chunks > DENSE_CHUNKS:
            self._dense_pieces += 1
            if self._dense_pieces > MAX_DENSE_PIECES:
                self._refuse(_SMALL_CHUNKS)

    # What the parser finds

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._eventful = self._in_head = True
        self._has_cycle = False
        self._arm(HEAD_SECONDS, self._refuse, _SLOW_HEAD)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._fail(_TRAILERS)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._eventful = True
        self._unset_keepalive_if_required()
        self._check_head()
        self._is_complete = False
        self._body_bytes = self._seen_body_bytes = self._dense_pieces = 0
        self.server_state.admission.busy(self.transport)
        if self._in_progress:
            self._arm(REQUEST_SECONDS, self._check_client)  # of those before it, which this one waits for
        super().on_headers_complete()
        self._has_cycle = True

    def on_body(self, body: bytes) -> None:
        self._eventful = True
        self._chunks += 1
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._eventful = self._is_complete = True
        super().on_message_complete()
        if self._running is not None and self._running.response_complete:
            self._wait_idle()

    # Requests

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self._arm(REQUEST_SECONDS, self._check_client)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or (self._running is not None and not self._running.response_complete):
            return  # or the next, which was waiting, is in progress
        if self._in_head:
            self._arm(HEAD_SECONDS, self._refuse, _SLOW_HEAD)
        elif self._is_complete:
            self._wait_idle()
        elif self.expect_100_continue and not self._body_bytes:
            # Whether the client still sends its body, or another request in its place, nobody can tell.
            self.transport.close()
        else:
            # The rest of the body is of no use to anybody, but until it is read its client may not read the answer.
            self._arm(HEAD_SECONDS, self.transport.abort)

    def _wait_idle(self) -> None:
        """Note the connection as idle until the next request; uvicorn's keep-alive timeout bounds that."""
        if not self.transport.is_closing():
            self._disarm()
            self.server_state.admission.idle(self.transport)

    def _check_client(self) -> None:
        """Check for a stalled client: one that neither sends its body nor reads its answer."""
        running = self._running
        if running is None or self.transport.is_closing():
            return
        reading = running is self.cycle and not self._is_complete
        stalled = reading and self._pacer.waits_for_client and self._body_bytes == self._seen_body_bytes
        if stalled or ((reading or self.flow.write_paused) and not is_known(running.scope)):
            self._refuse(_SLOW_BODY)
            return
        self._seen_body_bytes = self._body_bytes
        self._arm(REQUEST_SECONDS, self._check_client)

    # Refusals

    def _check_head(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._fail(_LONG_HEAD)
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._fail(_VERSION)
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (version == "1.1" and not hosts) or not all(map(_HOST.fullmatch, hosts)):
            self._fail(_HOSTS)
        for name, value in self.headers:
            # Nothing else is undone here, and HTTP/1.0 has no chunks: a proxy may see another end of the body.
            if name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
                self._fail(_ENCODING)
        if not self.url.startswith(b"/"):
            self.url = _path_of(self.url, hosts)
        if not self.url.startswith(b"/") or not self.url.isascii():
            self._fail(_TARGET)
        # A handshake has neither, and would not be answered at all.
        strange = version == "1.0" or any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        if strange and self.parser.should_upgrade() and self._should_upgrade():
            self._fail(_HANDSHAKE)

    def _fail(self, problem: problems.ApiProblem) -> None:
        self._refusal = problem
        raise ValueError(problem.message)  # ends the parser, and the connection with this refusal

    def _refuse(self, problem: problems.ApiProblem) -> None:
        if self.transport.is_closing():
            return
        self._pacer.end()
        self._disarm()
        self.server_state.refusals.note(problem.message, self._address)
        in_progress = self._in_progress
        if in_progress and not self._has_cycle:
            # The requests before it are answered; the answer to the last of them ends the connection.
            self.cycle.keep_alive = False
            self._arm(REQUEST_SECONDS, self._check_client)
        elif in_progress and (self.pipeline or self.cycle.response_started):
            self.transport.abort()
        else:
            if in_progress:
                _disconnect(self.cycle)
            self._answer(problem)

    def _answer(self, problem: problems.ApiProblem) -> None:
        headers, content = problems.render(problem, new_id("req"))
        status = HTTPStatus(problem.status)
        lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
        lines += [b"%s: %s" % header for header in (*headers, (b"connection", b"close"))]
        self.transport.write(b"\r\n".join([*lines, b"", content]))
        self.transport.close()

    @property
    def _in_progress(self) -> bool:
        """Whether a request is to be answered yet."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _arm(self, seconds: float, act: Any, *arguments: Any) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, act, *arguments)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _PacedFlow(FlowControl):
    """uvicorn's flow control of request bodies, carried out by the paced reader."""

    def __init__(self, transport: asyncio.Transport, pacer: PacedReader, waiting: Sized) -> None:
        super().__init__(transport)
        self._pacer = pacer
        self._waiting = waiting

    def pause_reading(self) -> None:
        self._pacer.stop()

    def resume_reading(self) -> None:
        # Asked for after each answer, also while others are due to requests that were read long ago.
        if not self._waiting:
            self._pacer.go_on()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell the app that the client of a request is disconnected."""
    cycle.disconnected = True
    cycle.message_event.set()


def _path_of(target: bytes, hosts: list[bytes]) -> bytes:
    """The path and query of a target in absolute form that names the same host as the header; or nothing."""
    scheme, _, rest = target.partition(b"://")
    authority, slash, path = rest.partition(b"/")
    if scheme.lower() not in (b"http", b"https") or [authority.lower()] != [host.lower() for host in hosts]:
        return b""
    return slash + path


def _invalid(message: str) -> problems.ApiProblem:
    return problems.of_status(HTTPStatus.BAD_REQUEST, message)


_NOT_HTTP = _invalid("this is not valid HTTP")
_VERSION = _invalid("this server speaks HTTP/1.1")
_HOSTS = _invalid("a request must have one Host header, with a host and a port")
_ENCODING = _invalid("a body must be sent as it is, with its length or in chunks")
_TARGET = _invalid("the target must be a path, in ASCII")
_HANDSHAKE = _invalid("a WebSocket upgrade must be HTTP/1.1 and have no body")
_TRAILERS = _invalid("headers must come before the body")
_LONG_FRAMING = _invalid("the sizes of chunks, or the lines between requests, are too long")
_SMALL_CHUNKS = _invalid("the chunks of the body are too small")
_LONG_HEAD = problems.of_status(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request line and headers are too long")
_SLOW_HEAD = problems.of_status(HTTPStatus.REQUEST_TIMEOUT, "the request line and headers took too long")
_SLOW_BODY = problems.of_status(HTTPStatus.REQUEST_TIMEOUT, "the body, or taking the answer, took too long")
_TOO_MANY = problems.of_status(
    HTTPStatus.SERVICE_UNAVAILABLE, "too many connections are open", headers=((b"retry-after", b"1"),)
)
