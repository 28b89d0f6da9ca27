"""Which sandbox is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidebox.errors import NotFound

if TYPE_CHECKING:
    from tidebox.sdk import AsyncAccess, SandboxInfo

_PAGE = 1000
_MOST = 100_000


async def find(access: AsyncAccess, name: str) -> SandboxInfo:
    """The sandbox of that name or id."""
    offset = 0
    while True:
        page = await access.list(limit=_PAGE, offset=offset)
        for each in page.items:
            if each.scope.type == "thread" and name in (each.scope.id, each.sandbox_id):
                return each
        offset += len(page.items)
        # A server that promises more and sends nothing, or never ends, is not asked for ever.
        if not page.has_more or not page.items or offset >= _MOST:
            raise NotFound(f"no sandbox {name!r}")
