"""Defects of ours, as the caller and as the log may know of them."""

from __future__ import annotations

import logging
import traceback

from tidebox.errors import InternalError

_log = logging.getLogger(__name__)


def internal_error(what: str, error: BaseException) -> InternalError:
    """What the caller is told; the log has the place, but no message, which may hold a piece of somebody's program."""
    places = "".join(traceback.format_tb(error.__traceback__))
    _log.error("%s failed: %s\n%s", what, type(error).__name__, places)
    return InternalError("an internal error; the server's log says more")
