"""Connections that are opened to put secrets into their requests: TLS ends here, on both sides, with HTTP/1.1 between.

Only connections to hosts that a box has secrets for come here. The program meets a certificate of its box's own
authority; the server's is verified as ever. Every request is read whole as far as its head goes, held against the
rules, and sent on; what was put in is hidden where the server sends it back.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h11

from tidebox.egress import sigv4
from tidebox.egress.authority import Authority
from tidebox.egress.interceptor import InterceptedConnection
from tidebox.egress.keys import KeyPair
from tidebox.egress.rate_limits import ByteBudget
from tidebox.egress.relay import ConnectionStopped, Scan
from tidebox.egress.rewriting import MALFORMED, Mask, RequestRefused, Rewriter, Rewritten, Scanner, hidden_values
from tidebox.egress.secrets import Value, read
from tidebox.egress.tls import TlsStream, upstream_context
from tidebox.errors import InvalidRequest
from tidebox.model.injection import Injection

_HANDSHAKE_SECONDS = 15.0
_GOODBYE_SECONDS = 2.0
_GOODBYE_BYTES = 1 << 18
# How long the end of what a server sends waits for what follows, in which a value may go on.
_HOLD_SECONDS = 0.1
_LARGEST_HEAD = 64 * 1024
_LARGEST_SIGNED = 4 << 20
"""Of a body that must be known before its request is signed."""
_MOST_SIGNED, _MOST_SIGNED_IN_ALL = 16 << 20, 256 << 20
"""Of all such bodies of a box that wait at one time, and of all boxes."""
UNVERIFIED = "tls_unverified"
_Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


@dataclass(frozen=True, slots=True)
class TlsInterceptor:
    """Opens the TLS connections of one box and puts secrets into their requests."""

    injection: Injection
    values: Mapping[str, Value]
    authority: Authority
    upstream: ssl.SSLContext
    room: ByteBudget
    """For bodies that are to be signed."""

    def opens(self, host: str) -> bool:
        """Whether connections to a host are opened."""
        return self.injection.opened(host)

    def scan(self) -> Scan | None:
        """Return a scan of the bytes of connections that are not opened; None if there is nothing to find."""
        if not self.injection.placeholders:
            return None
        scanner = Scanner(placeholder for placeholder, _ in self.injection.placeholders)

        def scan(data: memoryview) -> None:
            try:
                scanner.feed(data)
            except RequestRefused as refusal:
                raise ConnectionStopped(refusal.reason) from None

        return scan

    async def run(self, intercepted: InterceptedConnection) -> None:
        """Serve one connection until its end; raises ``ConnectionStopped`` at a limit, nothing that tells a secret."""
        try:
            await _Conversation(self, intercepted).hold()
        except (OSError, ssl.SSLError, h11.ProtocolError, TimeoutError):
            pass  # one of the two is gone, or says what no one can read


@dataclass(frozen=True, slots=True)
class InterceptorFactory:
    """Makes the interceptors of boxes: the secrets, and how servers are verified, are the same for all."""

    values: Mapping[str, Value]
    upstream: ssl.SSLContext
    room: ByteBudget = field(default_factory=lambda: ByteBudget(_MOST_SIGNED_IN_ALL))

    def interceptor(self, injection: Injection, authority: KeyPair) -> TlsInterceptor:
        """Make the interceptor of one box."""
        return TlsInterceptor(
            injection, self.values, Authority(authority), self.upstream, ByteBudget(_MOST_SIGNED, self.room)
        )


def open_with(secrets: Sequence[int], ca_file: str | None) -> InterceptorFactory:
    """Read the secrets; where they cannot be read there are none, and requests that need one are refused."""
    values: dict[str, Value] = {}
    try:
        for descriptor in secrets:
            values |= read(descriptor)
    except InvalidRequest as error:
        sys.stderr.write(f"no secrets are put into requests: {error.message}\n")
    return InterceptorFactory(values, upstream_context(Path(ca_file) if ca_file is not None else None))


class _Conversation:
    """A program and a server, and the requests between them."""

    def __init__(self, interceptor: TlsInterceptor, intercepted: InterceptedConnection) -> None:
        self._intercepted = intercepted
        self._room, self._taken = interceptor.room, 0
        self._rewriter = Rewriter(interceptor.injection, interceptor.values, intercepted.host)
        self._mask = Mask(hidden_values(interceptor.injection, interceptor.values))
        self._client = TlsStream(
            intercepted.client,
            interceptor.authority.context(intercepted.host),
            # What the box sends is what is received here.
            passed=lambda size, received: intercepted.count(size, received),
        )
        self._server = TlsStream(intercepted.upstream, interceptor.upstream, server_hostname=intercepted.host)
        self._inner = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_HEAD)
        self._outer = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)

    async def hold(self) -> None:
        problem = await self._meet_server()
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await self._client.handshake()
        try:
            while True:
                request = await self._next_inner()
                if not isinstance(request, h11.Request):
                    break
                if problem is not None:
                    raise problem
                if not await self._exchange(request):
                    break
        except RequestRefused as refusal:
            self._intercepted.deny(refusal.reason)
            await self._refuse(refusal)
        await self._server.close()
        await self._client.close()
        await self._linger()

    async def _linger(self) -> None:
        """Take what the program still says: else the kernel resets the connection before it has read the answer."""
        client, left = self._intercepted.client, _GOODBYE_BYTES
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_GOODBYE_SECONDS):
            while left > 0 and (data := await asyncio.get_running_loop().sock_recv(client, 1 << 16)):
                left -= len(data)

    async def _meet_server(self) -> RequestRefused | None:
        """Shake hands with the server; why nothing may be said to it, if so."""
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await self._server.handshake()
        except ssl.SSLCertVerificationError as error:
            return RequestRefused(
                502, UNVERIFIED, f"the certificate of {self._intercepted.host} is not valid: {error.verify_message}"
            )
        except (OSError, TimeoutError):
            return RequestRefused(502, "unreachable", f"{self._intercepted.host} does not speak TLS")
        return None

    async def _exchange(self, request: h11.Request) -> bool:
        """One request and its response; whether there can be another."""
        if request.http_version not in (b"1.0", b"1.1"):
            raise RequestRefused(505, MALFORMED, "HTTP/1.1 is spoken here")
        rewritten = self._rewriter.rewrite(
            request.target, [(bytes(name), bytes(value)) for name, value in request.headers]
        )
        self._mask.hide(rewritten.packed)
        headers, body = rewritten.headers, None
        if not any(name == b"host" for name, _ in headers):
            headers = [(b"host", self._intercepted.host.encode()), *headers]
        try:
            if rewritten.signing is not None:
                headers, body = await self._signed(request.method, rewritten, headers)
            changed = h11.Request(method=request.method, target=rewritten.target, headers=headers)
            return await self._pass_on(changed, body)
        finally:
            self._room.give(self._taken)
            self._taken = 0

    async def _pass_on(self, request: h11.Request, body: bytes | None) -> bool:
        await self._send_outer(request)
        sending = asyncio.ensure_future(self._send_body(body))
        answering = asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            switched = await answering
            if switched:
                return False
            if not sending.done():
                # A server that has answered before it heard everything does not want the rest.
                return False
            sending.result()
        finally:
            await _end(sending, answering)
        if self._inner.our_state is not h11.DONE or self._outer.our_state is not h11.DONE:
            return False
        if self._inner.their_state is not h11.DONE or self._outer.their_state is not h11.DONE:
            return False
        self._inner.start_next_cycle()
        self._outer.start_next_cycle()
        return True

    async def _signed(
        self, method: bytes, rewritten: Rewritten, headers: sigv4.Headers
    ) -> tuple[sigv4.Headers, bytes | None]:
        """The headers with a signature, and the body where it had to be known for that."""
        assert rewritten.signing is not None
        rule, keys = rewritten.signing.rule, rewritten.signing.keys
        found = sigv4.scope_in(headers)
        region, service = rule.region or (found and found.region), rule.service or (found and found.service)
        if not region or not service:
            raise RequestRefused(
                400, "unsigned", "give region and service in the rule, or sign the request with any keys"
            )
        body = None
        given = next((value.decode("latin-1") for name, value in headers if name == sigv4.CONTENT_HASH), None)
        if (
            given is not None and (given == sigv4.UNSIGNED or re.fullmatch("[0-9a-f]{64}", given))
        ) or given == "STREAMING-UNSIGNED-PAYLOAD-TRAILER":
            content_hash = given
        elif given is not None:
            raise RequestRefused(400, "unsigned", "a body that is signed in pieces cannot be signed anew")
        elif service == "s3":
            content_hash = sigv4.UNSIGNED
            headers = [*headers, (sigv4.CONTENT_HASH, content_hash.encode())]
        else:
            body = await self._whole_body()
            content_hash = hashlib.sha256(body).hexdigest()
            if any(name == b"transfer-encoding" for name, _ in headers):
                headers = [item for item in headers if item[0] != b"transfer-encoding"]
                headers.append((b"content-length", b"%d" % len(body)))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = sigv4.SigningScope(region, service)
        target = rewritten.target.decode("latin-1")
        return sigv4.sign(method.decode(), target, headers, keys, scope, content_hash, stamp), body

    async def _whole_body(self) -> bytes:
        body = bytearray()
        # A program that waits for leave to send it has it.
        if self._inner.they_are_waiting_for_100_continue:
            await self._send_inner(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(event := await self._next_inner(), h11.Data):
            body += event.data
            if len(body) > _LARGEST_SIGNED:
                raise RequestRefused(413, "limit", f"a body of more than {_LARGEST_SIGNED} bytes cannot be signed")
            if not self._room.take(len(event.data)):
                raise RequestRefused(503, "limit", "too many bodies wait to be signed")
            self._taken += len(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        self._rewriter.scanner.check_whole(bytes(body))
        return bytes(body)

    async def _send_body(self, body: bytes | None) -> None:
        if body is not None:
            if body:
                await self._send_outer(h11.Data(data=body))
            return await self._send_outer(h11.EndOfMessage())
        scanner = self._rewriter.scanner
        while True:
            event = await self._next_inner()
            if isinstance(event, h11.Data):
                scanner.feed(bytes(event.data))
                await self._send_outer(event)
            elif isinstance(event, h11.EndOfMessage):
                self._check_trailers(event)
                return await self._send_outer(event)
            else:
                raise ConnectionResetError

    def _check_trailers(self, end: h11.EndOfMessage) -> None:
        for part in (part for item in end.headers for part in item):
            self._rewriter.scanner.check_whole(bytes(part))

    async def _answer(self) -> bool:
        """Pass the response on; whether the two speak another protocol from now on."""
        while True:
            event = await self._next_answer()
            if isinstance(event, h11.InformationalResponse):
                headers = self._masked(event.headers)
                await self._send_inner(h11.InformationalResponse(status_code=event.status_code, headers=headers))
            elif isinstance(event, h11.Response):
                headers = self._masked(event.headers)
                reason = self._mask.whole(bytes(event.reason))
                await self._send_inner(h11.Response(status_code=event.status_code, headers=headers, reason=reason))
            elif isinstance(event, h11.Data):
                if data := self._mask.feed(bytes(event.data)):
                    await self._send_inner(h11.Data(data=data))
            elif isinstance(event, h11.EndOfMessage):
                if data := self._mask.flush():
                    await self._send_inner(h11.Data(data=data))
                await self._send_inner(h11.EndOfMessage(headers=self._masked(event.headers)))
                return False
            elif event is h11.PAUSED and self._outer.their_state is h11.SWITCHED_PROTOCOL:
                await self._copy()
                return True
            else:
                raise ConnectionResetError

    def _masked(self, headers: h11._headers.Headers) -> list[tuple[bytes, bytes]]:
        return [(self._mask.whole(bytes(name)), self._mask.whole(bytes(value))) for name, value in headers]

    async def _next_answer(self) -> _Event:
        async def release() -> None:
            await self._send_inner(h11.Data(data=self._mask.release()))

        while (event := self._outer.next_event()) is h11.NEED_DATA:
            self._outer.receive_data(await self._read_answer(release))
        return event

    async def _read_answer(self, release: Callable[[], Awaitable[None]]) -> bytes:
        """Return the server's next bytes; bytes held back meanwhile go on after a moment."""
        if not self._mask.holds:
            return await self._server.read()
        reading = asyncio.ensure_future(self._server.read())
        try:
            done, _ = await asyncio.wait({reading}, timeout=_HOLD_SECONDS)
            if not done:
                await release()
            return await reading
        finally:
            if not reading.done():
                await _end(reading)

    async def _copy(self) -> None:
        """Bytes both ways, as of a WebSocket."""

        async def out() -> None:
            data = self._inner.trailing_data[0]
            while data or (data := await self._client.read()):
                self._rewriter.scanner.feed(data)
                await self._server.write(data)
                data = b""

        async def release() -> None:
            await self._client.write(self._mask.release())

        async def back() -> None:
            data = self._outer.trailing_data[0]
            while data or (data := await self._read_answer(release)):
                await self._client.write(self._mask.feed(data))
                data = b""
            await self._client.write(self._mask.flush())

        tasks = {asyncio.ensure_future(out()), asyncio.ensure_future(back())}
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await _end(*left)
        for task in done:
            task.result()

    async def _refuse(self, refusal: RequestRefused) -> None:
        """Tell the program why, if it has not been told anything else."""
        if self._inner.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = f"egress denied: {refusal}\n".encode("ascii", "replace")
        headers = [
            ("content-type", "text/plain"),
            ("content-length", str(len(text))),
            ("connection", "close"),
            ("x-tidebox-egress", refusal.reason),
        ]
        await self._send_inner(
            h11.Response(status_code=refusal.status, headers=headers, reason=HTTPStatus(refusal.status).phrase.encode())
        )
        await self._send_inner(h11.Data(data=text))
        await self._send_inner(h11.EndOfMessage())

    async def _next_inner(self) -> _Event:
        return await _next(self._inner, self._client)

    async def _send_inner(self, event: h11.Event) -> None:
        if data := self._inner.send(event):
            await self._client.write(data)

    async def _send_outer(self, event: h11.Event) -> None:
        if data := self._outer.send(event):
            await self._server.write(data)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for them; why they failed is of no interest, and must be in no log."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _next(connection: h11.Connection, stream: TlsStream) -> _Event:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await stream.read())
    return event
