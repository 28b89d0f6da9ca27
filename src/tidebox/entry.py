"""``tidebox.run``: a program in a fresh box of this machine or, where one is named, of a server."""

from __future__ import annotations

from typing import Unpack

from tidebox import embedded
from tidebox.config import load_client_settings
from tidebox.embedded import RunOptions, run_on
from tidebox.model.result import Result


def run(
    code: str | bytes | None = None,
    language: str = "python",
    *,
    server: str | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Run ``code`` in a fresh box and wait for its end.

    Options: ``command`` (a sequence, instead of code), ``env``, ``stdin``, ``files`` (name -> bytes, placed in
    /workspace), ``artifacts`` (patterns of files to bring back), ``image``, and the limits, which are the fields of
    ``tidebox.model.limits.Limits``: timeout, memory, pids, cpus, output, workspace, ...

    With ``server``, an address, or where ``TIDEBOX_URL`` names one, the box is one of that server. Otherwise the first
    call starts the machinery and a warm pool of cells, which live as long as the process. A caller interrupted during
    this leaves no program running.
    """
    if (url := _server(server)) is None:
        return embedded.run(code, language, **options)
    from tidebox.sdk.loop_thread import LoopThread

    thread = LoopThread()
    try:
        return thread.call(lambda: _run_there(url, code, language, options))
    finally:
        thread.close()


async def arun(
    code: str | bytes | None = None,
    language: str = "python",
    *,
    server: str | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """``run`` for asynchronous callers: cancelling the call ends the program."""
    if (url := _server(server)) is None:
        return await embedded.arun(code, language, **options)
    return await _run_there(url, code, language, options)


def _server(given: str | None) -> str | None:
    return given if given is not None else load_client_settings().url


async def _run_there(url: str, code: str | bytes | None, language: str, options: RunOptions) -> Result:
    from tidebox.sdk.interpreter.client import AsyncInterpreter
    from tidebox.sdk.server_engine import ServerEngine

    async with AsyncInterpreter(url) as client:
        return await run_on(ServerEngine(client), code, language, **options)
