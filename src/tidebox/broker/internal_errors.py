"""Internal errors: defects of ours, as callers and the log may see them."""

from __future__ import annotations

import logging
import traceback

from tidebox.errors import InternalError

_log = logging.getLogger(__name__)


def internal_error(what: str, error: BaseException) -> InternalError:
    """Return the error for the caller; the log has the traceback, without the message, which may quote a program."""
    places = "".join(traceback.format_tb(error.__traceback__))
    _log.error("%s failed: %s\n%s", what, type(error).__name__, places)
    return InternalError("an internal error; the server's log says more")
