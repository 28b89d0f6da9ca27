"""Clients say what kind of program they are, and the server writes that down."""

from __future__ import annotations

import pytest

from tests.api.conftest import RunningServer
from tidebox.errors import InvalidRequest
from tidebox.model.ids import new_id
from tidebox.sdk import Access, AsyncAccess, AsyncClient, AuditEvent, Client, Interpreter, Sandbox


@pytest.fixture
def admin(running_server: RunningServer) -> Interpreter:
    return Interpreter(running_server.url, api_key=running_server.key)


def newest(admin: Interpreter, event: str) -> AuditEvent:
    return admin.admin.list_audit(event=event, limit=1).items[0]


async def test_fathom(running_server: RunningServer, admin: Interpreter) -> None:
    with admin:
        with Client(running_server.url, api_key=running_server.key, source="CLI") as client:
            assert client.run("print(1)").ok
        assert newest(admin, "sandbox.execution.accepted").source == "CLI"
        async with AsyncClient(running_server.url, api_key=running_server.key, source="IDE") as other:
            assert (await other.run("print(1)")).ok
        assert newest(admin, "sandbox.execution.accepted").source == "IDE"
        with Client(running_server.url, api_key=running_server.key) as client:
            assert client.run("print(1)").ok
        assert newest(admin, "sandbox.execution.accepted").source == "SDK"


def test_sandboxes(running_server: RunningServer, admin: Interpreter) -> None:
    thread = new_id("thr")
    with admin, Access(running_server.url, api_key=running_server.key, source="Web") as access:
        with access.ensure(thread) as sandbox:
            assert sandbox.exec("true").ok
            assert sandbox.start("true").wait(60).ok
            events = admin.admin.list_audit(limit=100).items
            ours = [event for event in events if sandbox.id in event.fields.values()]
            assert {(event.surface, event.source) for event in ours} >= {("access", "Web"), ("dataplane", "Web")}


@pytest.mark.parametrize("kind", [Client, AsyncClient, Access, AsyncAccess])
def test_a_word_that_is_none(kind: type) -> None:
    with pytest.raises(InvalidRequest, match="source"):
        kind("http://127.0.0.1:1", api_key="k", source="Toaster")
    with pytest.raises(InvalidRequest, match="source"):
        Sandbox.connect({}, source="Toaster")  # type: ignore[arg-type]
