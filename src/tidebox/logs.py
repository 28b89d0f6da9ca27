"""How log lines are written: for people on a terminal, as JSON elsewhere.

What an exception says is never written, only its kind and where it came from: its text may hold a piece of somebody's
program, environment or token.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, TextIO

from tidebox.lean import without

# For tracebacks in colours, which are never written.
with without("rich"):
    import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# The frames nearest to the failure are the ones that explain it.
_MAX_FRAMES = 12


class _LogStream:
    """Standard error, which may have nobody reading it any more: that must not fail a request."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except (OSError, ValueError):
            pass

    def flush(self) -> None:
        try:
            self._file.flush()
        except (OSError, ValueError):
            pass


def configure(level: str, file: TextIO | None = None) -> None:
    """Set up every logger of the process, also those of libraries."""
    target = file if file is not None else sys.stderr
    people = target.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if people else "iso", utc=not people),
        _name_exception,
    ]
    renderer: structlog.typing.Processor
    if people:
        shared.append(_escape)
        renderer = structlog.dev.ConsoleRenderer(pad_event_to=0, exception_formatter=structlog.dev.plain_traceback)
    else:
        renderer = structlog.processors.JSONRenderer()
    stream = _LogStream(target)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),  # type: ignore[arg-type] # it only writes and flushes
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=LEVELS[level], force=True)
    # Below this they write whole frames, request lines and headers, with the code and the tokens in them.
    for name in ("uvicorn", "httpcore2", "httpx2", "websockets", "mcp"):
        logging.getLogger(name).setLevel(logging.WARNING)


def report_loop_failures(loop: asyncio.AbstractEventLoop) -> None:
    """Log what fails in a callback or a forgotten task, without the text that the loop would write of it."""
    log = structlog.get_logger("tidebox.loop")

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error("unexpected_failure", message=context["message"].splitlines()[0], exc_info=context.get("exception"))

    loop.set_exception_handler(report)


def _name_exception(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace an exception by its kind and its way through the program."""
    info = event.pop("exc_info", None)
    event.pop("stack_info", None)
    if info is None or info is False:
        return event
    if isinstance(info, BaseException):
        info = (type(info), info, info.__traceback__)
    elif info is True:
        info = sys.exc_info()
    kind, _error, trace = info
    if kind is not None:
        event["exception"] = f"{kind.__module__}.{kind.__qualname__}"
        frames = traceback.extract_tb(trace)[-_MAX_FRAMES:]
        event["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return event


def _escape(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write what a terminal would obey as an escape: paths and names come from strangers."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = value.encode("unicode_escape").decode()
    return event
