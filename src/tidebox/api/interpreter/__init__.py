"""The interpreter service: sessions, runs, their files, logs and artifacts, and what an admin sees of them.

Imported only when the server is up: FastAPI and its models take longer to load than everything else together.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends

from tidebox.api.interpreter import admin, artifacts, files, health, logs, runs, runtimes, sessions
from tidebox.api.interpreter.common import PREFIX, once_each


def make_router() -> APIRouter:
    """Every route of the service."""
    router = APIRouter(prefix=PREFIX)
    for part in (runtimes, sessions, runs, logs, artifacts, admin, health):
        router.include_router(part.router, dependencies=[Depends(once_each)])
    router.include_router(files.router)
    return router
