"""Another Tidebox server, as a client of it: whether it answers, and its errors as this server raises them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidebox.errors import (
    BoxGone,
    Conflict,
    ExecFailed,
    FileOperationFailed,
    InvalidRequest,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    ServerProtocolError,
    TideboxError,
)
from tidebox.model.limits import MIB
from tidebox.protocols.dataplane.routes import FILE_ERRORS
from tidebox.sdk.errors import ClientClosed, ConnectionLost, ServerUnreachable
from tidebox.sdk.http_client import HttpClient, timed_out
from tidebox.sdk.sandboxes.grant_sources import ControlPlane

# Far above what a server sends of a program's output at once, and little enough to keep for every client that is slow.
_MAX_FRAME_BYTES = 4 * MIB
_CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 15.0
# One that does not answer is asked last for a while.
_DOWN_SECONDS = 5.0

# What the other server's dataplane says of a request or a program, and not of itself.
_HANDED_ON = (Conflict, ExecFailed, InvalidRequest, BoxGone)
# Of what another server says no more is handed on than clients can act upon.
_DETAILS = ("field", "offset", "type", "quota", "limit")


class PeerUnreachable(ProviderUnavailable):
    """Nothing of a request has come there."""


class Peer:
    """A client of another server. Its key is sent there, and told to nobody."""

    def __init__(self, name: str, url: str, key: str, ca: Path | None = None) -> None:
        self.name = name
        self.url = url
        tls = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        # How many connections there are is bounded by how many are open to this server.
        self.http = HttpClient(
            _CONNECT_SECONDS,
            None,
            upgrade_timeout=ANSWER_SECONDS,
            tls=tls,
            proxies=False,
            max_frame_bytes=_MAX_FRAME_BYTES,
        )
        self._control = ControlPlane(self.http, url, key)
        self._down_until = 0.0
        self._failures: tuple[float, float] | None = None
        """When it did not answer first and last, since it last did."""

    @property
    def up(self) -> bool:
        """Whether it answered when it was last tried, or that is a while ago."""
        return time.monotonic() >= self._down_until

    @property
    def silent_for(self) -> float:
        """The time between the first and the last try since it answered; 0 where it did."""
        return 0.0 if self._failures is None else self._failures[1] - self._failures[0]

    async def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        seconds: float = ANSWER_SECONDS,
        meant: tuple[type[TideboxError], ...] = (),
    ) -> bytes:
        """The answer to a request that may be sent twice; errors other than those ``meant`` are of the provider.

        Raises ``PeerUnreachable``, or ``ProviderUnavailable`` where it is not known what came of it.
        """
        try:
            with self.reaching():
                return await self._control.ask(method, path, content, seconds=seconds)
        except TideboxError as error:
            if isinstance(error, (*meant, ProviderUnavailable)):
                raise
            said = error.details.get("code") or error.details.get("status")
            raise ProviderUnavailable(f"the provider {self.name} refuses: {said}", provider=self.name) from None

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Notice whether it answers; where it does not, or not in this protocol, that is one error of the provider.

        Nothing is told of what the client's error holds.
        """
        try:
            yield
            self._answered()
        except (ConnectionLost, ServerUnreachable, ClientClosed, ServerProtocolError) as error:
            if "status" in error.details or isinstance(error, ServerProtocolError):
                self._answered()
                message = f"the provider {self.name} does not speak this protocol"
                raise ProviderUnavailable(message, provider=self.name) from None
            raise self._failed(error) from None
        except TideboxError as error:
            if "status" in error.details:
                self._answered()
            raise

    def _answered(self) -> None:
        self._down_until, self._failures = 0.0, None

    def _failed(self, error: TideboxError) -> ProviderUnavailable:
        unreached = isinstance(error, ServerUnreachable)
        if unreached or timed_out(error):
            now = time.monotonic()
            self._down_until = now + _DOWN_SECONDS
            self._failures = (now if self._failures is None else self._failures[0], now)
        kind = PeerUnreachable if unreached else ProviderUnavailable
        return kind(f"the provider {self.name} does not answer", provider=self.name)

    async def close(self) -> None:
        """Close every connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self.http.close()


def failure(error: TideboxError) -> TideboxError:
    """An error of the other server's dataplane, as it is for a sandbox of this server; one of ours stays as it is."""
    code = error.details.get("code")
    if code is None:
        return error
    details = {name: error.details[name] for name in _DETAILS if isinstance(error.details.get(name), (str, int))}
    if code.startswith("FILE_") or code == "NO_SPACE":
        return FileOperationFailed(error.message, errno=FILE_ERRORS.get(code, (None,))[0], **details)
    if isinstance(error, RateLimited):
        return QuotaExceeded(error.message, **details)
    if not isinstance(error, _HANDED_ON):
        return ProviderUnavailable("the server of the sandbox refuses")
    return type(error)(error.message, **details)
