"""Client of a sandbox's dataplane: requests, each sent with a valid token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import msgspec

from tidebox.protocols.codec import decode, encode, to_fields
from tidebox.protocols.dataplane.routes import Route
from tidebox.sdk.http_client import MAX_ANSWER_BYTES, HttpClient, read_whole
from tidebox.sdk.sandboxes.grants import SandboxGrant

Asked = TypeVar("Asked", bound=msgspec.Struct)
Answer = TypeVar("Answer")


class GrantUse(Protocol):
    """Calls an attempt with a valid grant, and again with a new one where that is refused."""

    async def __call__(self, attempt: Callable[[SandboxGrant], Awaitable[Answer]]) -> Answer: ...


class DataplaneClient:
    """Requests to the dataplane of one sandbox."""

    def __init__(
        self,
        http: HttpClient,
        use: GrantUse,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
        limit: int = MAX_ANSWER_BYTES,
    ) -> None:
        """``headers`` go with every request; the sandbox may do nothing for so many ``seconds``."""
        self.http = http
        self.use = use
        self.headers = headers
        self.seconds = seconds
        self._limit = limit

    async def ask(
        self,
        route: Route[Asked, Answer],
        request: Asked,
        make_body: Callable[[], Awaitable[bytes | AsyncIterator[bytes]]] | None = None,
    ) -> Answer:
        """The answer to a request: in the query, or as the body where a POST has no other one."""
        in_body = route.method == "POST" and make_body is None
        headers = {"Content-Type": "application/json" if in_body else "application/octet-stream"}

        async def attempt(grant: SandboxGrant) -> Answer:
            exchange = self.http.exchange(
                route.method,
                f"{grant.http_url}/{route.path}",
                bearer=grant.token,
                body=encode(request) if in_body else await make_body() if make_body is not None else None,
                params=None if in_body else to_fields(request),
                headers={**(headers if route.method == "POST" else {}), **(self.headers or {})},
                seconds=self.seconds,
            )
            async with exchange as response:
                return decode(route.answer, await read_whole(response, self._limit))

        return await self.use(attempt)
