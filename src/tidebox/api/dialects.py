"""How errors of a request are spelled: each surface's document has its own way."""

from __future__ import annotations

from collections.abc import Callable

from tidebox.api.access import dialect as access
from tidebox.api.asgi import Scope
from tidebox.api.dataplane.failures import words
from tidebox.api.dataplane.paths import target_of
from tidebox.api.problems import Problem


def dialect_of(scope: Scope) -> Callable[[Problem], Problem] | None:
    """The words for a request's errors; None for those of the server itself."""
    return words if target_of(scope["path"]) is not None else access.dialect_of(scope)
