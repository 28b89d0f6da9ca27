"""ASGI types, and the request context that the server keeps in the scope of each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from tidebox.errors import InvalidRequest
from tidebox.model.principal import Caller, ClientSource, Principal

if TYPE_CHECKING:
    from tidebox.api.problems import ApiProblem
    from tidebox.api.surface import Surface

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_CONTEXT = "tidebox.context"
_MAX_QUERY_FIELDS = 32


@dataclass(slots=True)
class RequestContext:
    """Facts about one request: its id, client, surface, authenticated caller and answer."""

    request_id: str
    address: str
    surface: Surface
    source: ClientSource | None = None
    client: str | None = None
    """The program that sent it, as it calls itself."""
    caller: Caller | None = None
    status: int = 0
    """The HTTP status of its answer; 101 for a WebSocket that a surface took over."""
    headers: Headers = field(default_factory=list)
    """Headers to add to its answer."""
    dialect: Callable[[ApiProblem], ApiProblem] | None = None
    """The error dialect of the surface, where it has its own."""

    def caller_as(self, principal: Principal, surface: str) -> Caller:
        """Return the caller of this request, authenticated as ``principal`` by ``surface``."""
        return Caller(principal, self.address, self.request_id, surface, self.source, self.client)


def attach(scope: Scope, context: RequestContext) -> None:
    """Note ``context`` in the scope of its request."""
    scope[_CONTEXT] = context


def context_of(scope: Scope) -> RequestContext:
    """Return the context of the request."""
    context: RequestContext = scope[_CONTEXT]
    return context


def is_known(scope: Mapping[str, Any]) -> bool:
    """Whether the sender of the request is authenticated by now."""
    context: RequestContext | None = scope.get(_CONTEXT)
    return context is not None and context.caller is not None


def caller_of(scope: Scope) -> Caller:
    """Return the authenticated caller; only for surfaces behind authentication."""
    caller = context_of(scope).caller
    assert caller is not None
    return caller


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header called ``name``, which is lower-case."""
    for key, value in scope["headers"]:
        if key.lower() == name:
            return bytes(value)
    return None


def query_of(scope: Scope) -> dict[str, str]:
    """Parse the query string; raise ``InvalidRequest`` for a name that is given twice."""
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
