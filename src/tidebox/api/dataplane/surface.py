"""The dataplane's routes: the operations, and the capability that each needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from tidebox.api import problems
from tidebox.api.asgi import Headers, Receive, Scope, Send, context_of, header, query_of
from tidebox.api.dataplane import exec as execution
from tidebox.api.dataplane import file_entries
from tidebox.api.dataplane.auth import SURFACE, authenticate, caller, header_token
from tidebox.api.dataplane.commands import box_path
from tidebox.api.dataplane.connection import ConnectionServices, DataplaneConnection
from tidebox.api.dataplane.dialect import problem_of, status_problem
from tidebox.api.dataplane.paths import DataplaneTarget, target_of
from tidebox.api.dataplane.program_socket import ProgramConnection
from tidebox.api.dataplane.request_bodies import ClientDisconnected, RequestBody, cancel_on_disconnect, form_file
from tidebox.api.dataplane.watch_socket import WatchConnection
from tidebox.api.metrics import ServerMetrics
from tidebox.api.ranges import ByteRange, parse_range
from tidebox.api.rate_limit import RateLimiter
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.sandboxes.files import SandboxFiles
from tidebox.broker.sandboxes.processes import ProcessTable
from tidebox.broker.sandboxes.sandbox import Gate, SandboxAccess, SandboxOperations
from tidebox.errors import FileOperationFailed, InvalidRequest, NotFound, TideboxError, Unauthorized
from tidebox.model.limits import KIB
from tidebox.model.sandbox import Capability
from tidebox.protocols.codec import from_fields
from tidebox.protocols.dataplane import routes

_WATCH = "files/watch"
_SOCKETS = frozenset({"", "exec/ws", "shell/ws", _WATCH})
_MAX_FIELDS_BYTES = 64 * KIB


class Exchange:
    """One request whose sender may do what is asked, and its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, access: SandboxAccess, query: Mapping[str, str]
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.access = access
        self.query = query
        self.fields: dict[str, Any] = {}
        """For the audit log."""
        self._send = send

    @property
    def request_id(self) -> str:
        """The request id, as in logs."""
        return context_of(self.scope).request_id

    def use(self) -> AbstractAsyncContextManager[SandboxOperations]:
        """The sandbox, in use for this request."""
        return self.access.sandbox.use(self.request_id)

    async def start(self, status: int, headers: Headers) -> None:
        """Begin the answer."""
        await self._send({"type": "http.response.start", "status": int(status), "headers": headers})

    async def body(self, data: bytes, more: bool = False) -> None:
        """Send the answer's body, or a part of it."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, content: msgspec.Struct, status: int = HTTPStatus.OK) -> None:
        """Send the whole answer."""
        text = msgspec.json.encode(content)
        await self.start(status, [(b"content-type", problems.JSON), (b"content-length", b"%d" % len(text))])
        await self.body(text)

    async def answer_audited(self, content: msgspec.Struct) -> None:
        """Send the whole answer, and put it into the audit record as well."""
        self.fields = msgspec.to_builtins(content)
        await self.answer(content)

    def parse_query(self, kind: type[_Asked]) -> _Asked:
        """Parse the query of the request as ``kind``."""
        return from_fields(kind, self.query)

    async def parse_request(self, kind: type[_Asked]) -> _Asked:
        """Parse a short request as ``kind``, from its JSON body or its query."""
        content = await RequestBody(self.receive).whole(_MAX_FIELDS_BYTES)
        try:
            found = msgspec.json.decode(content, type=dict[str, Any]) if content else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidRequest("the body is not a JSON object") from None
        return from_fields(kind, {**self.query, **found})


_Asked = TypeVar("_Asked", bound=msgspec.Struct)
Serve = Callable[["DataplaneSurface", Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataplaneLimits:
    """Limits on requests of clients."""

    default_seconds: float
    """How long a program of ``exec`` runs that says nothing else."""
    max_seconds: float
    max_body_bytes: int
    """Of the description of a program."""
    max_message_bytes: int


class DataplaneSurface:
    """Serves programs, terminals and files of sandboxes."""

    def __init__(
        self,
        gate: Gate,
        processes: ProcessTable,
        audit: Audit,
        rates: RateLimiter,
        metrics: ServerMetrics,
        bounds: DataplaneLimits,
    ) -> None:
        self._metrics = metrics
        self._bounds = bounds
        self._shared = ConnectionServices(
            gate=gate,
            audit=audit,
            rates=rates,
            processes=processes,
            max_seconds=bounds.max_seconds,
            max_message_bytes=bounds.max_message_bytes,
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
        except ClientDisconnected:
            if not context_of(scope).status:
                await problems.respond(scope, send, status_problem(400, "the client left before the end"))
        except TideboxError as error:
            if context_of(scope).status:
                raise
            await problems.respond(scope, send, problem_of(error))

    async def _connect(self, scope: Scope, receive: Receive, send: Send, target: DataplaneTarget) -> None:
        if target.operation not in _SOCKETS:
            raise NotFound("there is no WebSocket at this path")
        connection: DataplaneConnection
        if target.operation == _WATCH:
            asked = from_fields(routes.WatchRequest, query_of(scope))
            path = box_path(asked.path or ".")
            connection = WatchConnection(self._shared, scope, target, send, path, asked.recursive)
        else:
            connection = ProgramConnection(self._shared, scope, target, send)
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

    async def _serve(self, scope: Scope, receive: Receive, send: Send, target: DataplaneTarget) -> None:
        token = header_token(scope)
        if token is None:
            raise Unauthorized("give a token for this sandbox as Authorization: Bearer")
        access = await authenticate(self._shared.gate, scope, target, token)
        await self._shared.rates.check(access.principal)
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
        access.require(capability)
        self._shared.audit.check()
        exchange = Exchange(scope, receive, send, access, query_of(scope))
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
            self._shared.audit.record(
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
        request = routes.decode_exec(await RequestBody(exchange.receive).whole(self._bounds.max_body_bytes))
        seconds = execution.seconds_of(request.timeout_ms, self._shared.max_seconds) or self._bounds.default_seconds
        running = asyncio.ensure_future(
            execution.run(self._shared.processes, exchange.access.sandbox, request, seconds, exchange.request_id)
        )
        await cancel_on_disconnect(exchange.receive, running)
        if running.cancelled():
            raise ClientDisconnected
        ending, output = running.result()
        exchange.fields = {"exit_code": ending.exit_code, "timed_out": ending.timed_out}
        await exchange.start(HTTPStatus.OK, [(b"content-type", problems.JSON)])
        async with aclosing(output.rendered(ending)) as pieces:
            async for piece in pieces:
                await exchange.body(piece, more=True)
        await exchange.body(b"")

    # Files

    async def _upload(self, exchange: Exchange) -> None:
        asked = exchange.parse_query(routes.UploadRequest)
        if asked.offset and asked.upload_id is None:
            raise InvalidRequest("offset: only an upload in parts, with an upload_id, has one", field="offset")
        content_type = header(exchange.scope, b"content-type") or b""
        is_form = content_type.lower().startswith(b"multipart/form-data")
        body = RequestBody(exchange.receive)
        path, mode = file_entries.file_path(asked.path), None if asked.mode is None else int(asked.mode, 8)
        if asked.upload_id is not None:
            if is_form:
                raise InvalidRequest("an upload in parts is no form", field="content-type")
            return await self._upload_part(exchange, path, asked.upload_id, body, mode, asked.offset, asked.complete)
        chunks = form_file(content_type, body.chunks()) if is_form else body.chunks()
        async with exchange.use() as inside, aclosing(chunks):
            made = await inside.files.upload(path, chunks, mode)
        return await exchange.answer_audited(routes.FileUploadAnswer(made.path, made.size))

    async def _upload_part(
        self,
        exchange: Exchange,
        path: str,
        upload_id: str,
        body: RequestBody,
        mode: int | None,
        offset: int,
        complete: bool,
    ) -> None:
        async with exchange.use() as inside:
            async with aclosing(body.chunks_until_disconnect()) as chunks:
                part = await inside.files.append(path, upload_id, chunks, offset=offset, mode=mode)
            if body.cut_off:
                raise ClientDisconnected
            if complete:
                await inside.files.complete(path, upload_id, part.size)
        await exchange.answer_audited(routes.FileUploadAnswer(part.path, part.size, upload_id, complete))

    async def _upload_offset(self, exchange: Exchange) -> None:
        asked = exchange.parse_query(routes.PartRequest)
        async with exchange.use() as inside:
            part = await inside.files.uploaded(file_entries.file_path(asked.path), asked.upload_id)
        await exchange.answer(routes.FileUploadAnswer(part.path, part.size, asked.upload_id, False, part.size))

    async def _upload_discard(self, exchange: Exchange) -> None:
        asked = exchange.parse_query(routes.PartRequest)
        async with exchange.use() as inside:
            gone = await inside.files.discard(file_entries.file_path(asked.path), asked.upload_id)
        await exchange.answer(routes.FileUploadAnswer(gone.path, gone.size, asked.upload_id, False))

    async def _download(self, exchange: Exchange) -> None:
        path = box_path(exchange.parse_query(routes.PathRequest).path)
        async with exchange.use() as inside:
            size = await inside.files.size(path)
            exchange.fields = {"path": path, "size": size}
            asked = header(exchange.scope, b"range")
            part = parse_range(asked.decode("latin-1") if asked is not None else None, size)
            headers: Headers = [
                (b"content-type", b"application/octet-stream"),
                (b"content-disposition", b"attachment"),
                (b"accept-ranges", b"bytes"),
                (b"x-content-type-options", b"nosniff"),
            ]
            status = HTTPStatus.OK
            if part is not None:
                status = HTTPStatus.PARTIAL_CONTENT
                headers.append((b"content-range", part.content_range(size).encode()))
            part = part or ByteRange(0, size)
            headers.append((b"content-length", b"%d" % part.length))
            if exchange.scope["method"] == "HEAD":
                await exchange.start(status, headers)
                return await exchange.body(b"")
            sending = asyncio.ensure_future(_send_file(exchange, inside.files, path, part, status, headers))
            await cancel_on_disconnect(exchange.receive, sending)
        if sending.cancelled():
            raise ClientDisconnected
        return sending.result()

    async def _list(self, exchange: Exchange) -> None:
        exchange.fields = {"path": exchange.query.get("path")}
        asked = exchange.parse_query(routes.ListRequest)
        async with exchange.use() as inside:
            path, entries = await inside.files.list(box_path(asked.path or "."))
        entries.sort(key=lambda info: info.path)
        await exchange.answer(routes.FileListing([file_entries.shown(info) for info in entries], path))

    async def _stat(self, exchange: Exchange) -> None:
        exchange.fields = {"path": exchange.query.get("path")}
        asked = exchange.parse_query(routes.PathRequest)
        async with exchange.use() as inside:
            info = await inside.files.stat(box_path(asked.path))
        await exchange.answer(file_entries.shown(info))

    async def _mkdir(self, exchange: Exchange) -> None:
        path = box_path((await exchange.parse_request(routes.PathRequest)).path)
        exchange.fields = {"path": path}
        async with exchange.use() as inside:
            made = await inside.files.mkdir(path)
        await exchange.answer(routes.PathAnswer(made), HTTPStatus.CREATED)

    async def _remove(self, exchange: Exchange) -> None:
        asked = await exchange.parse_request(routes.RemoveRequest)
        path = box_path(asked.path)
        exchange.fields = {"path": path}
        async with exchange.use() as inside:
            removed = await inside.files.remove(path, asked.recursive)
        await exchange.answer(routes.PathAnswer(removed))

    async def _move(self, exchange: Exchange) -> None:
        asked = await exchange.parse_request(routes.MoveRequest)
        source, target = box_path(asked.source, "source"), box_path(asked.target, "target")
        exchange.fields = {"path": source, "target": target}
        async with exchange.use() as inside:
            moved = await inside.files.move(source, target)
        await exchange.answer(routes.MoveAnswer(*moved))


async def _send_file(
    exchange: Exchange, there: SandboxFiles, path: str, part: ByteRange, status: int, headers: Headers
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


_SERVED: tuple[tuple[routes.Route[Any, Any], Serve], ...] = (
    (routes.EXEC, DataplaneSurface._exec),
    (routes.UPLOAD, DataplaneSurface._upload),
    (routes.UPLOADED, DataplaneSurface._upload_offset),
    (routes.DISCARD, DataplaneSurface._upload_discard),
    (routes.DOWNLOAD, DataplaneSurface._download),
    (routes.DOWNLOAD_HEAD, DataplaneSurface._download),
    (routes.LIST, DataplaneSurface._list),
    (routes.STAT, DataplaneSurface._stat),
    (routes.MKDIR, DataplaneSurface._mkdir),
    (routes.REMOVE, DataplaneSurface._remove),
    (routes.MOVE, DataplaneSurface._move),
)
ROUTES: dict[str, dict[str, tuple[Capability, Serve]]] = {}
for _route, _serve in _SERVED:
    ROUTES.setdefault(_route.path, {})[_route.method] = _route.capability, _serve
