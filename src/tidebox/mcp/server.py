"""The MCP server: one code for stdio and HTTP, for every caller and wherever the programs run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestParams,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool
from pydantic import ConfigDict

import tidebox
from tidebox.errors import Forbidden, InternalError, InvalidRequest, NotFound, TideboxError
from tidebox.mcp import arguments, catalog, environments, resources, run_tools
from tidebox.mcp.progress import Report
from tidebox.mcp.tool_results import explain, refused
from tidebox.sdk.interpreter.client import AsyncInterpreter
from tidebox.sdk.sandboxes.access import AsyncAccess

_log = structlog.get_logger("tidebox.mcp")

Context = ServerRequestContext[Any, Any]
METHODS = ("acquire", "refresh", "heartbeat", "release")
EXTENSION = "io.tidebox/environment"
_LANGUAGES_SECONDS = 60.0
_CLOSE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Backend:
    """A server, through the SDK, in the name of one caller."""

    interpreter: AsyncInterpreter
    access: AsyncAccess

    async def close(self) -> None:
        """End the connections; sandboxes stay."""
        await self.access.close()
        await self.interpreter.close()


Connect = Callable[[Context], AbstractAsyncContextManager[Backend]]
"""Opens the backend for the caller of a request."""


class _EnvironmentParams(RequestParams):
    """Parameters of ``environment/*``: as the session access protocol spells them, which is not as MCP does."""

    model_config = ConfigDict(alias_generator=None, extra="allow")


class ToolServer:
    """The MCP tool list, tool calls, resources and methods, as handlers of the protocol's server."""

    def __init__(
        self,
        connect: Connect,
        *,
        dotted_names: bool = False,
        departure: Callable[[Context], asyncio.Event | None] = lambda context: None,
    ) -> None:
        """``departure`` gives what is set when the client of a request is gone, where only that tells."""
        self._connect = connect
        self._dotted_names = dotted_names
        self._departure = departure
        self._calls: set[asyncio.Task[Any]] = set()
        self._languages: tuple[str, ...] = catalog.ALWAYS_KNOWN
        self._languages_until = 0.0
        self._tools = {tool.name: tool for tool in catalog.tools()}

    def make_server(self) -> Server[Any]:
        """A server of the protocol, in both of its eras."""
        server: Server[Any] = Server(
            "tidebox",
            version=tidebox.__version__,
            title="Tidebox",
            instructions=catalog.INSTRUCTIONS,
            get_tool_input_schema=self._schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )
        for name in METHODS:
            server.add_request_handler(f"environment/{name}", _EnvironmentParams, self._method(name))
        server.extensions[EXTENSION] = {"methods": [f"environment/{name}" for name in METHODS]}
        return server

    async def close(self) -> None:
        """End what is still called, and what that runs."""
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSE_SECONDS)

    # Tools

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        listed = []
        for tool in catalog.tools(await self._known_languages(context)):
            annotations = ToolAnnotations(read_only_hint=tool.read_only, destructive_hint=False, open_world_hint=False)
            name, schema = tool.name, tool.schema
            if self._dotted_names and name == "sandbox_run":
                name, schema = catalog.DOTTED_RUN, catalog.dotted(tool)
            listed.append(
                ListedTool(
                    name=name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=schema,
                    annotations=annotations,
                )
            )
        return ListToolsResult(tools=listed)

    def _schema(self, name: str) -> Mapping[str, Any] | None:
        tool = self._tools.get(_plain(name))
        return None if tool is None else tool.schema

    async def _known_languages(self, context: Context) -> Sequence[str]:
        if time.monotonic() < self._languages_until:
            return self._languages
        try:
            async with self._connect(context) as backend:
                found = (await backend.interpreter.runtimes()).languages
        except TideboxError:
            return self._languages  # the list is there also when the server is not
        others = sorted(set(found) - set(catalog.ALWAYS_KNOWN))
        first = [language for language in catalog.ALWAYS_KNOWN if language in found or not found]
        self._languages = (*first, *others)
        self._languages_until = time.monotonic() + _LANGUAGES_SECONDS
        return self._languages

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        name = _plain(params.name)
        if name not in self._tools:
            raise MCPError(code=INVALID_PARAMS, message=f"unknown tool {params.name[:100]!r}")
        about: list[str] = []
        try:
            result: CallToolResult = await self._apart(context, self._use(context, name, params.arguments or {}, about))
            return result
        except TideboxError as error:
            return refused(error, about=about[0] if about else None)
        except (asyncio.CancelledError, MCPError):
            raise
        except Exception as error:
            _log.error("unexpected_failure", tool=name, exc_info=error)
            return refused(InternalError("the tool failed for a reason of its own"))

    async def _use(self, context: Context, name: str, given: Mapping[str, Any], about: list[str]) -> CallToolResult:
        asked = arguments.parse(self._tools[name].arguments, given)
        if (named := _named(asked)) is not None:
            about.append(named)
        report = _reporter(context)
        async with self._connect(context) as backend:
            interpreter, access = backend.interpreter, backend.access
            match asked:
                case arguments.RunCode():
                    return await run_tools.run_code(interpreter, asked, report)
                case arguments.SandboxRun():
                    return await run_tools.sandbox_run(interpreter, asked, report)
                case arguments.Acquire():
                    return await environments.acquire(access, asked)
                case arguments.EnvironmentExec():
                    return await environments.execute(access, asked, report)
                case arguments.ReadFile():
                    return await environments.read_file(access, asked)
                case arguments.WriteFile():
                    return await environments.write_file(access, asked)
                case arguments.ListFiles():
                    return await environments.list_files(access, asked)
            assert isinstance(asked, arguments.OfSession)
            act = {
                "environment_refresh": environments.refresh,
                "environment_heartbeat": environments.heartbeat,
                "environment_release": environments.release,
            }[name]
            return await act(access, asked)

    async def _apart(self, context: Context, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something in a task of its own, which is cancelled with its request, or when the client is gone.

        Of its own, because what cancels requests here does so at every step: nothing could be tidied up.
        """
        task = asyncio.get_running_loop().create_task(work, name="mcp call")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        departure = self._departure(context)
        leaving = None if departure is None else asyncio.ensure_future(departure.wait())
        try:
            await asyncio.wait({task, leaving} if leaving is not None else {task}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise MCPError(code=INTERNAL_ERROR, message="the client left")
            return task.result()
        finally:
            task.cancel()
            if leaving is not None:
                leaving.cancel()

    # Resources

    async def _list_resources(self, context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        return ListResourcesResult(resources=[])

    async def _list_templates(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=resources.TEMPLATES)

    async def _read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        uri = str(params.uri)

        async def read() -> ReadResourceResult:
            async with self._connect(context) as backend:
                return await resources.read(backend.interpreter, uri)

        try:
            found: ReadResourceResult = await self._apart(context, read())
        except TideboxError as error:
            raise _as_protocol_error(error, about=f"resource {uri[:200]}") from None
        return found

    # The session access protocol

    def _method(self, name: str) -> Callable[[Context, _EnvironmentParams], Coroutine[Any, Any, dict[str, Any]]]:
        async def handle(context: Context, params: _EnvironmentParams) -> dict[str, Any]:
            given = dict(params.model_extra or {})

            async def act() -> dict[str, Any]:
                async with self._connect(context) as backend:
                    return await environments.method(backend.access, name, given)

            session_id = given.get("session_id")
            about = f"session {session_id[:100]!r}" if isinstance(session_id, str) else "a sandbox for this scope"
            try:
                answer: dict[str, Any] = await self._apart(context, act())
            except TideboxError as error:
                raise _as_protocol_error(error, about=about) from None
            return answer

        return handle


def _plain(name: str) -> str:
    return "sandbox_run" if name == catalog.DOTTED_RUN else name


def _named(asked: object) -> str | None:
    """Return the id that a call is about, with advice, for the error that says it was not found."""
    if isinstance(asked, arguments.SandboxRun):
        if asked.session_id is None:
            return None
        return f"session {asked.session_id[:100]!r} of the interpreter service (sandboxes have environment_exec)"
    if isinstance(asked, arguments.Acquire):
        return f"a sandbox for thread {asked.thread_id[:100]!r} that you may use; choose another thread_id"
    if isinstance(asked, arguments.ReadFile | arguments.ListFiles):
        return f"{asked.path[:200]!r} in session {asked.session_id[:100]!r}, or the session itself"
    session_id = getattr(asked, "session_id", None)
    return f"session {session_id[:100]!r}; call environment_acquire for one" if isinstance(session_id, str) else None


def _reporter(context: Context) -> Report | None:
    """Reports progress, if the client asked for it."""
    if not context.meta or context.meta.get("progress_token") is None:
        return None

    async def report(amount: float, text: str) -> None:
        # A client that is gone, or a stream that is over, needs no report.
        with contextlib.suppress(Exception):
            await context.session.report_progress(amount, message=text)

    return report


def _as_protocol_error(error: TideboxError, *, about: str) -> MCPError:
    callers_fault = isinstance(error, InvalidRequest | NotFound | Forbidden)
    text = explain(error, about=about)
    data = {"code": NotFound.code if text.startswith("not found:") else error.code, "retryable": error.retryable}
    return MCPError(code=INVALID_PARAMS if callers_fault else INTERNAL_ERROR, message=text, data=data)


def client_name(context: Context) -> str | None:
    """Return the name that the client gives itself, with its version."""
    about = context.session.client_params
    if about is None:
        return None
    info = about.client_info
    return f"{info.name}/{info.version}" if info.version else info.name
