"""Admin routes of the interpreter service, for asyncio."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Unpack

import msgspec

from tidebox.sdk.errors import ServerProtocolError
from tidebox.sdk.interpreter.calls import ServiceCalls, part
from tidebox.sdk.interpreter.requests import RunFilter, make_query
from tidebox.sdk.interpreter.results import (
    AdminRun,
    AdminRunDetails,
    AuditEvent,
    IdempotencyEntry,
    MetricValue,
    Page,
    UsageSummary,
    UserUsage,
)


class AsyncAdmin:
    """Everybody's runs, keys, usage, metrics and the audit log, for who has the role ``sandbox_admin``."""

    def __init__(self, calls: ServiceCalls) -> None:
        self._calls = calls

    async def list_runs(self, *, limit: int = 50, offset: int = 0, **which: Unpack[RunFilter]) -> Page[AdminRun]:
        """Everybody's runs that match every filter; see ``RunFilter``."""
        query = make_query(limit=limit, offset=offset, **which)
        return await self._calls.ask("GET", "/admin/runs", Page[AdminRun], query=query)

    async def get_run(self, run_id: str) -> AdminRunDetails:
        """Anybody's run."""
        return await self._calls.ask("GET", f"/admin/runs/{part(run_id)}", AdminRunDetails)

    async def list_idempotency_keys(
        self,
        *,
        endpoint: Literal["runs", "sessions", "any"] = "any",
        user_id: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[IdempotencyEntry]:
        """The idempotency keys in use, newest first."""
        query = make_query(endpoint=endpoint, user_id=user_id, limit=limit, offset=offset)
        return await self._calls.ask("GET", "/admin/idempotency", Page[IdempotencyEntry], query=query)

    async def list_usage(self, *, limit: int = 50, offset: int = 0) -> Page[UserUsage]:
        """Users and the bytes of their artifacts, most first."""
        query = make_query(limit=limit, offset=offset)
        return await self._calls.ask("GET", "/admin/usage", Page[UserUsage], query=query)

    async def summarize_usage(
        self, *, begin: datetime | None = None, end: datetime | None = None, limit: int = 10
    ) -> UsageSummary:
        """Totals of the runs created in a time, by default the last day; with the ``limit`` top users."""
        query = make_query(**{"from": begin, "to": end, "limit": limit})
        return await self._calls.ask("GET", "/admin/usage/summary", UsageSummary, query=query)

    async def metrics(self) -> dict[str, tuple[MetricValue, ...]]:
        """The metrics of the server, by name, with a value for each set of labels."""
        return await self._calls.ask("GET", "/admin/metrics", dict[str, tuple[MetricValue, ...]])

    async def list_audit(
        self,
        *,
        event: str | None = None,
        user_id: str | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        outcome: str | None = None,
        begin: datetime | None = None,
        end: datetime | None = None,
        sort: Literal["asc", "desc"] = "desc",
        limit: int = 50,
        offset: int = 0,
    ) -> Page[AuditEvent]:
        """Events of the audit log that match every filter, newest first unless ``sort`` says otherwise."""
        filters = {"event": event, "user_id": user_id, "run_id": run_id, "session_id": session_id, "outcome": outcome}
        query = make_query(**filters, **{"from": begin, "to": end}, sort=sort, limit=limit, offset=offset)
        page = await self._calls.ask("GET", "/admin/audit", Page[dict[str, Any]], query=query)
        return Page(items=tuple(map(_event, page.items)), limit=page.limit, offset=page.offset, has_more=page.has_more)


def _event(fields: dict[str, Any]) -> AuditEvent:
    try:
        event = msgspec.convert({name: value for name, value in fields.items() if name != "fields"}, AuditEvent)
    except msgspec.ValidationError as error:
        raise ServerProtocolError(f"the server's answer is not one of this protocol: {error}") from None
    return msgspec.structs.replace(event, fields=fields)
