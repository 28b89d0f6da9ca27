"""The server behind a command that speaks a protocol of its own on standard input and output: one elsewhere, whose
client the command is, or a whole one in this process, for nobody else, that leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidebox.cli.remote import Server
from tidebox.config import environment_variable, load_client_settings, load_settings

if TYPE_CHECKING:
    from tidebox.model.principal import ClientSource
    from tidebox.sdk.http_client import HttpClient
    from tidebox.sdk.in_process import App
    from tidebox.sdk.interpreter.client import AsyncInterpreter
    from tidebox.sdk.sandboxes.access import AsyncAccess

_REMOVAL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Host:
    """A server, and how it is reached."""

    url: str
    key: str | None = field(repr=False)
    make_http: Callable[[str | None], HttpClient]
    """Makes what requests travel by; given the name that a client program calls itself."""
    embedded: bool
    directory: Path
    """A directory that is gone when this process is."""

    def interpreter(self, client: str | None = None) -> AsyncInterpreter:
        """A client of its interpreter service."""
        from tidebox.sdk.interpreter.client import AsyncInterpreter

        return AsyncInterpreter(self.url, api_key=self.key, http=self.make_http(client))

    def access(self, client: str | None = None) -> AsyncAccess:
        """A client of its sandboxes."""
        from tidebox.sdk.sandboxes.access import AsyncAccess

        return AsyncAccess(self.url, api_key=self.key, http=self.make_http(client))


Guest = Callable[[Host], Coroutine[Any, Any, None]]


def serve_guest(
    server: str | None,
    profile: str | None,
    load_guest: Callable[[], Guest],
    source: ClientSource,
    *,
    executable: bool = False,
) -> None:
    """Run a guest to its end, or until a signal: with the server that is named, or else with one in this process.

    ``load_guest`` loads it first, when nothing else has anything to do yet. ``executable`` is whether files in boxes of
    this process may be executed where the environment does not say.
    """
    named = load_client_settings()
    with _private_directory(source) as directory:
        if server is None and profile is None and named.url is None and named.profile is None:
            _embed(load_guest, source, directory, executable)
        else:
            _use_server(Server(server or None, profile), load_guest(), source, directory)


def _use_server(server: Server, guest: Guest, source: ClientSource, directory: Path) -> None:
    """Run as the client of a server elsewhere."""
    from tidebox import logs
    from tidebox.sdk.http_client import HttpClient

    logs.configure(load_settings().log_level)
    target = server.target()
    host = Host(target.http_url, target.key, lambda client: HttpClient(source=source, client=client), False, directory)

    async def run() -> None:
        hosted = asyncio.ensure_future(guest(host))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, hosted.cancel)
        with suppress(asyncio.CancelledError):
            await hosted

    asyncio.run(run())


def _embed(load_guest: Callable[[], Guest], source: ClientSource, directory: Path, executable: bool) -> None:
    """Run with a whole server in this process."""
    # Until the server is up: what is loaded is no garbage, and looking through it takes a tenth of the start.
    gc.disable()
    # Before anything else that writes log lines.
    from tidebox import logs  # noqa: F401

    guest = load_guest()
    from tidebox.sdk.in_process import InProcessHttp
    from tidebox.server import serve

    key = f"tb_{secrets.token_urlsafe(32)}"
    chosen: dict[str, Any] = {}
    if executable and environment_variable("SANDBOX_WORKSPACE_NOEXEC") is None:
        chosen["workspace_noexec"] = False
    settings = load_settings(
        data_dir=directory / "server",
        api_key=key,
        host="127.0.0.1",
        port=0,
        store_backend="memory",
        drain_grace_sec=0.0,
        # Its client shows what is written as something to worry about.
        log_level=environment_variable("SANDBOX_LOG_LEVEL") or "warning",
        # Of servers for others, none of which this is.
        public_url=None,
        auth_jwt_secret=None,
        auth_jwks_file=None,
        trusted_proxies=(),
        # Its one user is never counted.
        rate_limit="off",
        providers=(),
        **chosen,
    )

    async def hosted(app: App, url: str) -> None:
        def http(client: str | None) -> InProcessHttp:
            return InProcessHttp(app, url, source=source, client=client)

        await guest(Host(url, key, http, True, directory))

    serve(settings, hosted)


@contextmanager
def _private_directory(source: ClientSource) -> Iterator[Path]:
    """A directory that is gone when this process is, however it ends."""
    directory = Path(tempfile.mkdtemp(prefix=f"tidebox-{source.lower()}-"))
    remover = subprocess.Popen(
        ["/bin/sh", "-c", 'cat >/dev/null; rm -rf -- "$0"', str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Not told to end by what ends this process.
        start_new_session=True,
    )
    assert remover.stdin is not None
    try:
        yield directory
    finally:
        remover.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            remover.wait(_REMOVAL_SECONDS)
