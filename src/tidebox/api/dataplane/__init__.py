"""The normalized dataplane: programs, terminals and files of a live sandbox, for holders of a grant for it.

Requests and WebSocket frames are parsed here, and the broker's processes and files do the work. The package may import
what ``api`` may, and uses no FastAPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidebox.api.dataplane.auth import SURFACE
from tidebox.api.dataplane.dialect import words
from tidebox.api.dataplane.paths import EXEC_PATH, UPLOAD_PATH, target_of
from tidebox.api.lazy_app import LazyApp
from tidebox.api.surface import Surface

if TYPE_CHECKING:
    from tidebox.api.asgi import App
    from tidebox.api.services import Services


def make_surface(services: Services) -> Surface:
    """Return the surface of the dataplane. Its app checks tokens for sandboxes, some in a first frame."""
    return Surface(
        name=SURFACE,
        matches=lambda scope: target_of(scope["path"]) is not None,
        app=LazyApp(lambda: _make_app(services)),
        kinds=frozenset({"http", "websocket"}),
        needs_credential=lambda path: False,
        dialect=lambda scope: words,
        body_limits={
            # It has its input within its JSON.
            EXEC_PATH: services.settings.max_inline_body_bytes,
            # Files go straight into the workspace, whose size is the limit.
            UPLOAD_PATH: None,
        },
        describe=_describe,
        ready=services.sandboxes.opened,
    )


def _make_app(services: Services) -> App:
    from tidebox.api.dataplane.surface import DataplaneLimits, DataplaneSurface

    settings = services.settings
    return DataplaneSurface(
        services.sandboxes,
        services.sandboxes.processes,
        services.audit,
        services.rate_limiter,
        services.metrics,
        DataplaneLimits(
            default_seconds=settings.default_exec_timeout_sec,
            max_seconds=settings.max_exec_timeout_sec,
            max_body_bytes=settings.max_inline_body_bytes,
            max_message_bytes=settings.max_frame_bytes,
        ),
    )


def _describe(document: dict[str, Any]) -> None:
    from tidebox.api.dataplane import openapi

    openapi.describe(document)
