"""The web UI: pages for people, in a browser, at ``/webui/``.

The pages are a client of the other surfaces like any other: nothing here knows a run or a user.
"""

from __future__ import annotations

from tidebox.api.surface import READ_METHODS, Surface
from tidebox.api.webui.pages import Pages, is_page

__all__ = ["make_surface"]


def make_surface() -> Surface:
    """Return the surface of static files, for anybody: they fetch their data with the credential of their user."""
    return Surface(
        name="webui",
        matches=lambda scope: is_page(scope["path"]),
        app=Pages(),
        methods=READ_METHODS,
        needs_credential=lambda path: False,
        quiet=True,
    )
