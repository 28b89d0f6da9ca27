"""Advice that helps against an error, where it can be said in half a line."""

from __future__ import annotations

from tidebox.errors import NotFound, TideboxError

_BY_CODE = {
    "server_unreachable": "'tidebox serve' starts one here, --server URL names another",
    "unauthorized": "'tidebox login URL' stores a key, TIDEBOX_API_KEY gives one",
    "connection_lost": "try again",
    "queue_full": "try again later",
    "rate_limited": "try again later",
}


def advise(error: NotFound, advice: str) -> None:
    """Add advice on finding what is not there, unless the error already carries better advice."""
    if "profile" not in error.details:
        error.details.setdefault("advice", advice)


def advised(error: TideboxError) -> str:
    """The message of an error, with what helps."""
    advice = error.details.get("advice") or _BY_CODE.get(error.code)
    if isinstance(error, NotFound) and "profile" in error.details:
        advice = "'tidebox profiles' shows yours, 'tidebox login URL --profile NAME' adds one"
    return f"{error.message} ({advice})" if advice else error.message
