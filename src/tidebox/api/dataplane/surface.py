"""The doors of the dataplane: paths and methods, and what each of them asks of a token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from tidebox.api import problems
from tidebox.api.asgi import Headers, Receive, Scope, Send, context_of, header
from tidebox.api.dataplane import exec as execution
from tidebox.api.dataplane import files
from tidebox.api.dataplane.auth import SURFACE, caller, enter, header_token
from tidebox.api.dataplane.bodies import Body, ClientLeft, form_file, unless_left
from tidebox.api.dataplane.commands import box_path
from tidebox.api.dataplane.connections import Connection, Desk
from tidebox.api.dataplane.failures import problem_of, status_problem
from tidebox.api.dataplane.paths import Target, target_of
from tidebox.api.dataplane.processes import Processes
from tidebox.api.dataplane.sockets import ProgramConnection
from tidebox.api.dataplane.watching import WatchConnection
from tidebox.api.metrics import Metrics
from tidebox.api.ranges import ByteRange, parse_range
from tidebox.api.rates import RateLimiter
from tidebox.broker.audit import Audit
from tidebox.broker.sandboxes import Access, Gate, Sandbox
from tidebox.config import Settings
from tidebox.errors import FileOperationFailed, InvalidRequest, NotFound, TideboxError, Unauthorized
from tidebox.model.limits import KIB
from tidebox.model.sandbox import Capability
from tidebox.runtime.base import Files

_WATCH = "files/watch"
_SOCKETS = frozenset({"", "exec/ws", "shell/ws", _WATCH})
_MAX_FIELDS_BYTES = 64 * KIB
_MAX_QUERY_FIELDS = 32


class Exchange:
    """One request whose sender may do what is asked, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, access: Access, query: Mapping[str, str]) -> None:
        self.scope = scope
        self.receive = receive
        self.access = access
        self.query = query
        self.fields: dict[str, Any] = {}
        """For the audit log."""
        self._send = send

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, on this server: what is asked of another one's is handed on."""
        assert isinstance(self.access.sandbox, Sandbox)
        return self.access.sandbox

    async def start(self, status: int, headers: Headers) -> None:
        """Begin the answer."""
        await self._send({"type": "http.response.start", "status": int(status), "headers": headers})

    async def body(self, data: bytes, more: bool = False) -> None:
        """Send the answer's body, or a part of it."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, content: Mapping[str, Any], status: int = HTTPStatus.OK) -> None:
        """Send the whole answer."""
        text = msgspec.json.encode(content)
        await self.start(status, [(b"content-type", problems.JSON), (b"content-length", b"%d" % len(text))])
        await self.body(text)

    async def described(self) -> dict[str, Any]:
        """What a short request says, in its body or in its query."""
        content = await Body(self.receive).whole(_MAX_FIELDS_BYTES)
        try:
            found = msgspec.json.decode(content, type=dict[str, Any]) if content else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidRequest("the body is not a JSON object") from None
        return {**self.query, **found}


Serve = Callable[["DataplaneSurface", Exchange], Awaitable[None]]


class DataplaneSurface:
    """Serves programs, terminals and files of sandboxes."""

    def __init__(self, gate: Gate, audit: Audit, rates: RateLimiter, metrics: Metrics, settings: Settings) -> None:
        self._metrics = metrics
        self._default_seconds = settings.default_exec_timeout_sec
        self._max_body = settings.max_inline_body_bytes
        self._desk = Desk(
            gate=gate,
            audit=audit,
            rates=rates,
            processes=Processes(),
            max_seconds=settings.max_exec_timeout_sec,
            max_message_bytes=settings.max_frame_bytes,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one connection."""
        try:
            target = target_of(scope["path"])
            assert target is not None
            if scope["type"] == "websocket":
                await self._connect(scope, receive, send, target)
            else:
                await self._serve(scope, receive, send, target)
        except ClientLeft:
            if not context_of(scope).status:
                await problems.respond(scope, send, status_problem(400, "the client left before the end"))
        except TideboxError as error:
            if context_of(scope).status:
                raise
            await problems.respond(scope, send, problem_of(error))

    async def _connect(self, scope: Scope, receive: Receive, send: Send, target: Target) -> None:
        if target.operation not in _SOCKETS:
            raise NotFound("there is no WebSocket at this path")
        connection: Connection
        if target.operation == _WATCH:
            asked = _query(scope)
            path = box_path(asked.get("path") or ".")
            connection = WatchConnection(self._desk, scope, target, send, path, _flag(asked, "recursive", False))
        else:
            connection = ProgramConnection(self._desk, scope, target, send)
        token = header_token(scope)
        if token is not None:
            await connection.admit(token)
        await receive()
        try:
            await send({"type": "websocket.accept"})
        except OSError:
            return  # gone before it was let in
        context_of(scope).status = HTTPStatus.SWITCHING_PROTOCOLS
        with self._metrics.connection(SURFACE):
            await connection.serve(receive)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, target: Target) -> None:
        token = header_token(scope)
        if token is None:
            raise Unauthorized("give a token for this sandbox as Authorization: Bearer")
        access = await enter(self._desk.gate, scope, target, token)
        await self._desk.rates.check(access.principal)
        if target.operation in _SOCKETS:
            upgrade = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
            problem = status_problem(HTTPStatus.UPGRADE_REQUIRED, "this path speaks WebSocket only", upgrade)
            return await problems.respond(scope, send, problem)
        methods = ROUTES.get(target.operation)
        if methods is None:
            raise NotFound("there is nothing at this path")
        route = methods.get(scope["method"])
        if route is None:
            allow = ((b"allow", ", ".join(methods).encode()),)
            return await problems.respond(scope, send, status_problem(HTTPStatus.METHOD_NOT_ALLOWED, headers=allow))
        capability, serve = route
        if not isinstance(access.sandbox, Sandbox):
            # Loaded only where there is one: it comes with an HTTP client.
            from tidebox.api.dataplane import relay

            serve = relay.to(target.operation)
        access.require(capability)
        self._desk.audit.check()
        exchange = Exchange(scope, receive, send, access, _query(scope))
        return await self._perform(exchange, target.operation, serve)

    async def _perform(self, exchange: Exchange, operation: str, serve: Serve) -> None:
        outcome = "failed"
        try:
            await serve(self, exchange)
            outcome = "done"
        except TideboxError as error:
            outcome = error.code
            raise
        finally:
            sandbox = exchange.access.sandbox
            self._desk.audit.record(
                f"sandbox.{operation.replace('/', '.')}",
                caller(exchange.access, context_of(exchange.scope)),
                outcome,
                method=exchange.scope["method"],
                sandbox_id=sandbox.id,
                binding_id=sandbox.binding_id,
                **exchange.fields,
            )

    # Programs

    async def _exec(self, exchange: Exchange) -> None:
        request = execution.parse(await Body(exchange.receive).whole(self._max_body))
        seconds = execution.seconds_of(request.timeout_ms, self._desk.max_seconds) or self._default_seconds
        running = asyncio.ensure_future(execution.run(exchange.sandbox, request, seconds))
        await unless_left(exchange.receive, running)
        if running.cancelled():
            raise ClientLeft
        ending, output = running.result()
        exchange.fields = {"exit_code": ending["exit_code"], "timed_out": ending["timed_out"]}
        await exchange.start(HTTPStatus.OK, [(b"content-type", problems.JSON)])
        async with aclosing(output.rendered(ending)) as pieces:
            async for piece in pieces:
                await exchange.body(piece, more=True)
        await exchange.body(b"")

    # Files

    async def _upload(self, exchange: Exchange) -> None:
        query = exchange.query
        mode, offset = files.parse_mode(query.get("mode")), files.parse_offset(query.get("offset"))
        complete = _flag(query, "complete", True)
        if offset and "upload_id" not in query:
            raise InvalidRequest("offset: only an upload in parts, with an upload_id, has one", field="offset")
        content_type = header(exchange.scope, b"content-type") or b""
        is_form = content_type.lower().startswith(b"multipart/form-data")
        body = Body(exchange.receive)
        async with exchange.sandbox.use() as box:
            if "upload_id" in query:
                if is_form:
                    raise InvalidRequest("an upload in parts is no form", field="content-type")
                return await self._upload_part(exchange, box.files, body, mode, offset, complete)
            chunks = form_file(content_type, body.chunks()) if is_form else body.chunks()
            async with aclosing(chunks):
                made = await files.upload(box.files, query.get("path"), chunks, mode)
        exchange.fields = made
        return await exchange.answer(made)

    async def _upload_part(
        self, exchange: Exchange, there: Files, body: Body, mode: int | None, offset: int, complete: bool
    ) -> None:
        query = exchange.query
        upload = files.Resumable(there, query.get("path"), query["upload_id"])
        async with aclosing(body.while_it_lasts()) as chunks:
            size = await upload.append(chunks, offset, mode)
        if body.cut_off:
            raise ClientLeft
        if complete:
            await upload.complete()
        exchange.fields = await upload.shown(size, complete)
        await exchange.answer(exchange.fields)

    async def _upload_offset(self, exchange: Exchange) -> None:
        async with exchange.sandbox.use() as box:
            upload = files.Resumable(box.files, exchange.query.get("path"), exchange.query.get("upload_id", ""))
            size = await upload.offset()
            await exchange.answer({**await upload.shown(size, complete=False), "offset": size})

    async def _upload_discard(self, exchange: Exchange) -> None:
        async with exchange.sandbox.use() as box:
            upload = files.Resumable(box.files, exchange.query.get("path"), exchange.query.get("upload_id", ""))
            await upload.discard()
            discarded = await upload.shown(0, complete=False)
        await exchange.answer(discarded)

    async def _download(self, exchange: Exchange) -> None:
        async with exchange.sandbox.use() as box:
            info = await files.downloadable(box.files, exchange.query.get("path"))
            exchange.fields = {"path": info.path, "size": info.size}
            asked = header(exchange.scope, b"range")
            part = parse_range(asked.decode("latin-1") if asked is not None else None, info.size)
            headers: Headers = [
                (b"content-type", b"application/octet-stream"),
                (b"content-disposition", b"attachment"),
                (b"accept-ranges", b"bytes"),
                (b"x-content-type-options", b"nosniff"),
            ]
            status = HTTPStatus.OK
            if part is not None:
                status = HTTPStatus.PARTIAL_CONTENT
                headers.append((b"content-range", part.content_range(info.size).encode()))
            part = part or ByteRange(0, info.size)
            headers.append((b"content-length", b"%d" % part.length))
            if exchange.scope["method"] == "HEAD":
                await exchange.start(status, headers)
                return await exchange.body(b"")
            sending = asyncio.ensure_future(_send_file(exchange, box.files, info.path, part, status, headers))
            await unless_left(exchange.receive, sending)
        if sending.cancelled():
            raise ClientLeft
        return sending.result()

    async def _list(self, exchange: Exchange) -> None:
        exchange.fields = {"path": exchange.query.get("path")}
        async with exchange.sandbox.use() as box:
            await exchange.answer(await files.listing(box.files, exchange.query.get("path")))

    async def _stat(self, exchange: Exchange) -> None:
        exchange.fields = {"path": exchange.query.get("path")}
        async with exchange.sandbox.use() as box:
            path = await files.without_dots(box.files, box_path(exchange.query.get("path")))
            await exchange.answer(files.shown(await box.files.stat(path)))

    async def _mkdir(self, exchange: Exchange) -> None:
        path = box_path(_text(await exchange.described(), "path"))
        exchange.fields = {"path": path}
        async with exchange.sandbox.use() as box:
            await box.files.mkdir(path)
            made = await files.without_dots(box.files, path)
        await exchange.answer({"path": made}, HTTPStatus.CREATED)

    async def _remove(self, exchange: Exchange) -> None:
        asked = await exchange.described()
        path = box_path(_text(asked, "path"))
        exchange.fields = {"path": path}
        async with exchange.sandbox.use() as box:
            removed = await files.without_dots(box.files, path)
            await box.files.remove(path, recursive=_flag(asked, "recursive", False))
        await exchange.answer({"path": removed})

    async def _move(self, exchange: Exchange) -> None:
        asked = await exchange.described()
        source, target = (box_path(_text(asked, name), name) for name in ("source", "target"))
        exchange.fields = {"path": source, "target": target}
        async with exchange.sandbox.use() as box:
            left = await files.without_dots(box.files, source)
            await box.files.rename(source, target)
            reached = await files.without_dots(box.files, target)
        await exchange.answer({"source": left, "target": reached})


async def _send_file(
    exchange: Exchange, there: Files, path: str, part: ByteRange, status: int, headers: Headers
) -> None:
    left = part.length
    async with aclosing(there.read(path, part.start, part.length)) as chunks:
        # The first bytes are read before anything is promised: a file may be seen and not be readable.
        chunk = await anext(chunks, b"")
        await exchange.start(status, headers)
        while chunk:
            left -= len(chunk)
            await exchange.body(chunk, more=True)
            chunk = await anext(chunks, b"")
    if left:
        raise FileOperationFailed("the file became shorter while it was sent")
    await exchange.body(b"")


def _query(scope: Scope) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_QUERY_FIELDS,
        )
    except ValueError:
        raise InvalidRequest("the query of the URL cannot be read") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise InvalidRequest("the query of the URL says the same thing twice")
    return query


def _text(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name}: give a text", field=name)
    return value


def _flag(asked: Mapping[str, Any], name: str, default: bool) -> bool:
    value = asked.get(name, default)
    if isinstance(value, str):
        value = {"": True, "1": True, "true": True, "0": False, "false": False}.get(value.lower())
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name}: give true or false", field=name)
    return value


ROUTES: Mapping[str, Mapping[str, tuple[Capability, Serve]]] = {
    "exec": {"POST": (Capability.EXEC, DataplaneSurface._exec)},
    "files/upload": {
        "POST": (Capability.FS_WRITE, DataplaneSurface._upload),
        "GET": (Capability.FS_WRITE, DataplaneSurface._upload_offset),
        "DELETE": (Capability.FS_WRITE, DataplaneSurface._upload_discard),
    },
    "files/download": {
        "GET": (Capability.FS_READ, DataplaneSurface._download),
        "HEAD": (Capability.FS_READ, DataplaneSurface._download),
    },
    "files/list": {"GET": (Capability.FS_READ, DataplaneSurface._list)},
    "files/stat": {"GET": (Capability.FS_READ, DataplaneSurface._stat)},
    "files/mkdir": {"POST": (Capability.FS_WRITE, DataplaneSurface._mkdir)},
    "files/remove": {"POST": (Capability.FS_WRITE, DataplaneSurface._remove)},
    "files/move": {"POST": (Capability.FS_WRITE, DataplaneSurface._move)},
}
