"""Access to sandboxes of a real server: grants that are shared, kept good, lost and given back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from tests.api.conftest import NO_CELLS, RunningServer, finish, start
from tests.sdk.sandboxes import access_to, calls, heard, our_tasks, until
from tidebox.errors import CapabilityDenied, InvalidRequest, NotFound, TideboxError, Unauthorized
from tidebox.model.ids import new_id
from tidebox.sdk import AsyncAccess, AsyncSandbox, ClientClosed, SandboxRecreated, ServerUnreachable

QUIET = {"rate_limit": "off", **NO_CELLS}
SHORT = {"token_ttl_sec": "2", **QUIET}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    server = start(tmp_path_factory.mktemp("sandboxes"), **QUIET)
    yield server
    finish(server)


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Its tokens are good for two seconds."""
    server = start(tmp_path_factory.mktemp("hasty"), **SHORT)
    yield server
    finish(server)


@pytest.fixture
async def access(server: RunningServer) -> AsyncIterator[AsyncAccess]:
    async with access_to(server) as access:
        yield access
    assert our_tasks() == []


@pytest.fixture
def thread() -> str:
    return new_id("thr")


def post(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    """Ask the server by hand."""
    answer = httpx2.post(server.url + path, json=body, headers=server.headers, timeout=60)
    assert answer.is_success, answer.text
    content: dict[str, Any] = answer.json() if answer.content else {}
    return content


async def text_of(sandbox: AsyncSandbox, command: str) -> str:
    return (await sandbox.exec(command)).text


@pytest.mark.parametrize("way", ["ensure", "acquire"])
async def test_the_sandbox_of_a_thread_stays_the_same(access: AsyncAccess, thread: str, way: str) -> None:
    async with await getattr(access, way)(thread) as sandbox:
        assert sandbox.capabilities == {"fs_read", "fs_write", "exec", "shell"}
        assert sandbox.recreated is False
        await sandbox.exec("echo here > file")
        assert await text_of(sandbox, "cat file") == "here\n"


async def test_both_protocols_lead_to_the_same_sandbox(access: AsyncAccess, thread: str) -> None:
    async with await access.ensure(thread) as one, await access.acquire(thread, "assistant", keep=True) as other:
        assert one.id == other.id


async def test_another_scope_than_a_thread(access: AsyncAccess, thread: str) -> None:
    async with await access.ensure(thread) as one:
        async with await access.ensure(thread, scope_type="workspace") as other:
            assert one.id != other.id


async def test_many_who_ask_at_once_ask_the_server_once(
    access: AsyncAccess, server: RunningServer, thread: str
) -> None:
    sandboxes = await asyncio.gather(*(access.ensure(thread) for _ in range(20)))
    assert len({sandbox.id for sandbox in sandboxes}) == 1
    await heard(server, thread, "negotiated")
    for sandbox in sandboxes:
        await sandbox.close()


async def test_the_last_who_holds_it_releases_it(access: AsyncAccess, server: RunningServer, thread: str) -> None:
    first, second = await access.ensure(thread), await access.ensure(thread)
    await first.close()
    assert (await second.exec("true")).ok
    with pytest.raises(ClientClosed):
        await first.exec("true")
    await second.close()
    await second.close()
    await heard(server, thread, "negotiated", "released")
    with pytest.raises(NotFound):
        await access.get(thread)


async def test_who_comes_while_another_leaves(access: AsyncAccess, thread: str) -> None:
    async def use(number: int) -> str:
        async with await access.ensure(thread) as sandbox:
            return await text_of(sandbox, f"echo {number}")

    # Whether they find it, or it is just being released: nobody's sandbox is taken away.
    for number in range(8):
        one, other, kept = await asyncio.gather(use(number), use(number), access.ensure(thread, keep=True))
        assert one == other == f"{number}\n"
        await kept.release()


async def test_what_is_to_be_kept_is_kept_and_its_grant_too(
    access: AsyncAccess, server: RunningServer, thread: str
) -> None:
    async with await access.ensure(thread, keep=True) as sandbox:
        await sandbox.exec("echo mine > file")
    async with await access.ensure(thread, keep=True) as sandbox:
        assert await text_of(sandbox, "cat file") == "mine\n"
    await heard(server, thread, "negotiated")
    async with await access.get(thread) as sandbox:
        assert await text_of(sandbox, "cat file") == "mine\n"
        await sandbox.release()
    await heard(server, thread, "negotiated", "negotiated", "released")


async def test_closing_the_client_ends_what_is_open(server: RunningServer, thread: str) -> None:
    async with access_to(server) as access:
        sandbox = await access.ensure(thread)
        process, watch = await sandbox.start("sleep 600"), await sandbox.files.watch()
    assert our_tasks() == []
    await heard(server, thread, "negotiated", "released")
    for left in (process, watch):
        with pytest.raises(TideboxError):
            await left.read()
    with pytest.raises(ClientClosed):
        await sandbox.exec("true")
    with pytest.raises(ClientClosed):
        await access.ensure(thread)


async def test_a_server_that_is_gone_keeps_nobody(start_server: Callable[..., RunningServer], thread: str) -> None:
    server = start_server(**QUIET)
    async with access_to(server) as access:
        async with await access.ensure(thread) as sandbox:
            server.stop(signal.SIGKILL)
            with pytest.raises(ServerUnreachable) as caught:
                await sandbox.exec("true")
            assert caught.value.retryable


@pytest.mark.parametrize("way", ["ensure", "acquire"])
async def test_tokens_are_refreshed_before_they_expire(hasty_server: RunningServer, thread: str, way: str) -> None:
    async with access_to(hasty_server) as access:
        async with await getattr(access, way)(thread) as sandbox:
            # Nobody uses it meanwhile.
            await until(lambda: calls(hasty_server, thread).count("refreshed") >= 3)
            assert (await sandbox.exec("true")).ok
    await until(lambda: "released" in calls(hasty_server, thread))
    assert set(calls(hasty_server, thread)[1:-1]) == {"refreshed"}


async def test_nothing_is_refreshed_for_nobody(hasty_server: RunningServer, thread: str) -> None:
    async with access_to(hasty_server) as access:
        async with await access.ensure(thread, keep=True) as sandbox:
            await sandbox.exec("echo mine > file")
        assert our_tasks() == []
        # Longer than its token is good.
        await asyncio.sleep(2.5)
        async with await access.ensure(thread) as sandbox:
            assert await text_of(sandbox, "cat file") == "mine\n"
    await heard(hasty_server, thread, "negotiated", "negotiated", "released")


async def test_a_refreshed_token_covers_what_was_asked_for(hasty_server: RunningServer, thread: str) -> None:
    async with access_to(hasty_server) as access, access_to(hasty_server) as other:
        async with await access.ensure(thread, capabilities=["fs_read"]) as reader:
            async with await other.ensure(thread, keep=True):
                seen = len(calls(hasty_server, thread))
                await until(lambda: calls(hasty_server, thread)[seen:].count("refreshed") >= 3)
                assert reader.capabilities == frozenset({"fs_read"})
                assert await reader.files.list() == []
                with pytest.raises(CapabilityDenied):
                    await reader.exec("true")


async def test_a_token_that_was_revoked_is_replaced(access: AsyncAccess, server: RunningServer, thread: str) -> None:
    async with await access.ensure(thread) as sandbox:
        await sandbox.exec("echo still > file")
        for work in (sandbox.exec("cat file"), sandbox.files.download("file"), sandbox.start("true")):
            post(server, f"/v1/sandbox/sessions/{sandbox.session_id}/revoke")
            await work
        assert not sandbox.recreated
    await heard(server, thread, "negotiated", *["revoked", "negotiated"] * 3, "released")


async def test_a_sandbox_that_is_released_under_ones_feet(
    access: AsyncAccess, server: RunningServer, thread: str
) -> None:
    async with await access.ensure(thread) as sandbox, await access.ensure(thread) as other:
        lost = sandbox.id
        post(server, "/sandbox/release", sandbox_id=lost)
        # Everybody who relied on it is told once, and nothing is done in the new one before.
        for handle in (sandbox, other):
            with pytest.raises(SandboxRecreated) as caught:
                await handle.exec("echo done > file")
            assert caught.value.details["lost_sandbox_id"] == lost
            assert caught.value.retryable
            assert handle.recreated
        assert await text_of(sandbox, "ls") == ""
        assert sandbox.id == other.id != lost


async def test_what_is_only_looked_up_is_not_made_again(
    access: AsyncAccess, server: RunningServer, thread: str
) -> None:
    with pytest.raises(NotFound) as caught:
        await access.get(thread)
    assert caught.value.details["code"] == "SESSION_NOT_FOUND"
    owner = await access.ensure(thread)
    async with await access.get(thread) as sandbox:
        assert sandbox.id == owner.id
        await owner.release()
        with pytest.raises(NotFound):
            await sandbox.exec("true")


async def test_a_server_that_is_restarted(start_server: Callable[..., RunningServer], thread: str) -> None:
    server = start_server(**QUIET)
    async with access_to(server) as access:
        async with await access.ensure(thread) as sandbox:
            session, lost = sandbox.session_id, sandbox.id
            server.stop(signal.SIGKILL)
            start_server("--port", str(server.address[1]), data_dir=server.data_dir, **QUIET)
            with pytest.raises(SandboxRecreated):
                await sandbox.exec("true")
            assert (sandbox.session_id, sandbox.recreated) == (session, True)
            assert sandbox.id != lost
            assert (await sandbox.exec("true")).ok


async def test_a_binding_whose_sandbox_is_lost(start_server: Callable[..., RunningServer], thread: str) -> None:
    server = start_server(**QUIET)
    post(server, "/v1/sandbox/sessions", thread_id=thread, mode="ensure")
    server.stop(signal.SIGKILL)
    server = start_server(data_dir=server.data_dir, **QUIET)
    async with access_to(server) as access, await access.ensure(thread) as sandbox:
        assert sandbox.recreated
        assert (await sandbox.exec("true")).ok


async def test_a_sandbox_that_is_being_made_is_waited_for(
    start_server: Callable[..., RunningServer], thread: str
) -> None:
    server = start_server(create_wait_sec="0", pool_sandboxes="0", **QUIET)
    async with access_to(server) as access, await access.ensure(thread) as sandbox:
        assert (await sandbox.exec("true")).ok
    await until(lambda: calls(server, thread).count("negotiated") > 1)


async def test_errors_say_what_the_server_says(access: AsyncAccess, server: RunningServer, thread: str) -> None:
    with pytest.raises(InvalidRequest):
        await access.ensure(thread, capabilities=["everything"])
    async with AsyncAccess(server.url, api_key="wrong") as stranger:
        with pytest.raises(Unauthorized) as caught:
            await stranger.ensure(thread)
        assert caught.value.details["code"] == "UNAUTHENTICATED"
        assert caught.value.details["status"] == 401
        assert caught.value.details["request_id"].startswith("req-")
        assert not caught.value.retryable
    assert calls(server, thread) == []


# Configurations of runs


def session_config(server: RunningServer, thread: str, **more: Any) -> dict[str, Any]:
    answer = post(server, "/v1/sandbox/sessions", thread_id=thread, mode="ensure")
    fields = ("session_id", "thread_id", "sandbox", "token", "expires_at")
    return {"config": {"configurable": {"sandbox": {name: answer[name] for name in fields} | more}}}


def grant_config(server: RunningServer, thread: str) -> dict[str, Any]:
    return {"configurable": {"sandbox": post(server, "/sandbox/acquire", thread_id=thread)}}


@pytest.mark.parametrize("make", [session_config, grant_config])
async def test_a_configuration_becomes_a_sandbox(
    server: RunningServer, thread: str, make: Callable[..., dict[str, Any]]
) -> None:
    config = make(server, thread)
    async with await AsyncSandbox.connect(config) as sandbox:
        assert await text_of(sandbox, "echo from a run") == "from a run\n"
        async with await sandbox.shell() as shell:
            await shell.write("exit 3\n")
            assert (await shell.wait()).exit_code == 3
    assert our_tasks() == []
    # It is ended by the program that negotiated it.
    async with await AsyncSandbox.connect(config.get("config", config)) as sandbox:
        assert (await sandbox.exec("true")).ok
        with pytest.raises(InvalidRequest, match="the program that negotiated it"):
            await sandbox.release()


@pytest.mark.parametrize("url", ["/sandbox/refresh", "{server}/sandbox/refresh"])
async def test_a_configuration_with_a_refresh_url_lives_on(hasty_server: RunningServer, thread: str, url: str) -> None:
    config = session_config(hasty_server, thread, refresh_url=url.format(server=hasty_server.url))
    async with await AsyncSandbox.connect(config) as sandbox:
        await until(lambda: calls(hasty_server, thread).count("refreshed") >= 3)
        assert (await sandbox.exec("true")).ok


async def test_a_configuration_without_one_ends_with_its_token(hasty_server: RunningServer, thread: str) -> None:
    config = session_config(hasty_server, thread)
    async with await AsyncSandbox.connect(config) as sandbox:
        assert (await sandbox.exec("true")).ok
        expires_at = datetime.fromisoformat(config["config"]["configurable"]["sandbox"]["expires_at"])
        await until(lambda: datetime.now(UTC) > expires_at)
        with pytest.raises(Unauthorized, match="nobody was named"):
            await sandbox.exec("true")
    with pytest.raises(Unauthorized):
        await AsyncSandbox.connect(config)


async def test_configurations_that_are_none(server: RunningServer, thread: str) -> None:
    good = session_config(server, thread)["config"]["configurable"]["sandbox"]
    other = {**good, "sandbox": {**good["sandbox"], "id": "sb-another"}}
    with pytest.raises(InvalidRequest, match="another sandbox"):
        await AsyncSandbox.connect({"configurable": {"sandbox": other}})
    forged = {**good, "token": good["token"][:-4] + "AAAA"}
    with pytest.raises(Unauthorized):
        await AsyncSandbox.connect({"configurable": {"sandbox": forged}})
    hopeless: list[dict[str, Any]] = [
        {},
        {"configurable": {}},
        {"configurable": {"sandbox": None}},
        {"sandbox": {**good, "token": "a b"}},
        {"sandbox": {**good, "expires_at": "soon"}},
        {"sandbox": {**good, "sandbox": {**good["sandbox"], "http_base_url": "file:///etc"}}},
        {"sandbox": {**good, "sandbox": {**good["sandbox"], "http_base_url": "http://user:word@host"}}},
        {"sandbox": {**good, "refresh_url": "ftp://host/refresh"}},
    ]
    for wrong in hopeless:
        with pytest.raises(TideboxError) as caught:
            await AsyncSandbox.connect(wrong)
        assert caught.value.code == "invalid_request"
