"""Both clients on a real connection whose other end the test holds: what is sent, what breaks, what comes back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.sdk.conftest import MakeClient
from tests.sdk.peer import Talk, refuse, serving
from tidebox.errors import InternalError, RateLimited, TideboxError, Unauthorized, UnknownLanguage
from tidebox.model.result import Outcome
from tidebox.sdk import (
    AsyncClient,
    Client,
    ClientClosed,
    ConnectionLost,
    Output,
    ServerProtocolError,
    ServerUnreachable,
    Status,
    VersionRefused,
)

UNAUTHORIZED = {"error": {"code": "unauthorized", "message": "wrong key", "retryable": False}}


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port that nobody listens on, nor will."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def test_the_upgrade_names_key_and_version(make_client: MakeClient) -> None:
    seen: dict[str, str | None] = {}

    def serve(talk: Talk) -> None:
        seen.update({name: talk.headers.get(name) for name in ("Authorization", "X-Protocol-Version", "Origin")})
        talk.answer("hello\n")

    with serving(serve) as peer:
        assert make_client(peer.url, api_key="my-key").run("x").text == "hello\n"
    assert seen == {"Authorization": "Bearer my-key", "X-Protocol-Version": "1", "Origin": None}


def test_output_comes_while_the_program_runs(make_client: MakeClient) -> None:
    seen = threading.Event()

    def serve(talk: Talk) -> None:
        name = talk.next("execute")["id"]
        talk.say("ack", name)
        talk.say("status", name, status="running")
        talk.say("stdout", name, data="first")
        assert seen.wait(20)
        talk.say("stderr", name, data="second")
        talk.finish(name)

    with serving(serve) as peer:
        with make_client(peer.url).start("x") as execution:
            pieces = iter(execution)
            assert next(pieces) == Output("stdout", "first")
            assert execution.status is Status.RUNNING
            seen.set()
            assert list(pieces) == [("stderr", "second")]
            assert execution.result().stdout == "first"


def test_a_rejection_is_raised_by_result_and_iteration(make_client: MakeClient) -> None:
    def serve(talk: Talk) -> None:
        for _ in range(2):
            name = talk.next("execute")["id"]
            talk.say("error", name, code="LANGUAGE_NOT_SUPPORTED", message="no rust", retryable=False)

    with serving(serve) as peer:
        client = make_client(peer.url)
        with pytest.raises(UnknownLanguage, match="no rust"):
            client.run("x", language="rust")
        with pytest.raises(UnknownLanguage, match="no rust"):
            list(client.start("x", language="rust"))


def test_output_before_a_failure_is_not_lost(make_client: MakeClient) -> None:
    def serve(talk: Talk) -> None:
        name = talk.next("execute")["id"]
        talk.say("ack", name)
        talk.say("stdout", name, data="so far")
        talk.say("error", name, code="INTERNAL_ERROR", message="the box died", retryable=True)

    with serving(serve) as peer:
        execution = make_client(peer.url).start("x")
        pieces = iter(execution)
        assert next(pieces).text == "so far"
        with pytest.raises(InternalError, match="the box died"):
            next(pieces)


def test_a_program_is_cancelled(make_client: MakeClient) -> None:
    def serve(talk: Talk) -> None:
        name = talk.next("execute")["id"]
        talk.say("ack", name)
        assert talk.next("cancel")["id"] == name
        talk.finish(name, "cancelled", None)
        assert talk.next()["type"] == "ping"  # nothing was sent in between

    with serving(serve) as peer:
        client = make_client(peer.url)
        execution = client.start("x")
        execution.cancel()
        assert execution.result().outcome is Outcome.CANCELLED
        execution.cancel()
        with pytest.raises(ConnectionLost):
            client.ping()


def test_leaving_early_cancels(make_client: MakeClient) -> None:
    def serve(talk: Talk) -> None:
        name = talk.next("execute")["id"]
        talk.say("ack", name)
        talk.say("stdout", name, data="enough")
        talk.next("cancel")
        talk.say("stdout", name, data="too late")
        talk.finish(name, "cancelled", None)
        talk.answer("next")

    with serving(serve) as peer:
        client = make_client(peer.url)
        with client.start("x") as execution:
            assert next(iter(execution)).text == "enough"
        assert client.run("y").text == "next"


def test_leaving_after_the_end_cancels_nothing(make_client: MakeClient) -> None:
    def serve(talk: Talk) -> None:
        talk.answer()
        assert talk.next()["type"] == "execute"

    with serving(serve) as peer:
        client = make_client(peer.url)
        with client.start("x") as execution:
            assert execution.result().ok
        with pytest.raises(ConnectionLost):
            client.run("y")


def test_many_executions_share_a_connection(make_client: MakeClient) -> None:
    def serve(talk: Talk) -> None:
        asked = [talk.next("execute") for _ in range(8)]
        for each in asked:
            talk.say("ack", each["id"])
        for each in reversed(asked):
            talk.say("stdout", each["id"], data=each["code"])
            talk.finish(each["id"])

    with serving(serve) as peer:
        client = make_client(peer.url)
        client.connect()
        with ThreadPoolExecutor(8) as threads:
            texts = threads.map(lambda number: client.run(str(number)).text, range(8))
            assert list(texts) == [str(number) for number in range(8)]
        assert len(peer.opened) == 1


def test_one_thread_has_many_executions_under_way(make_client: MakeClient) -> None:
    def serve(talk: Talk) -> None:
        first, second = talk.next("execute")["id"], talk.next("execute")["id"]
        for name in (first, second):
            talk.say("ack", name)
        for number in range(100):
            talk.say("stdout", first, data=f"{number} ")
        talk.finish(second)
        talk.finish(first)

    with serving(serve) as peer:
        client = make_client(peer.url)
        first, second = client.start("x"), client.start("y")
        assert second.result().ok
        assert "".join(text for _, text in first) == "".join(f"{number} " for number in range(100))


def test_a_ping_tells_the_load_of_the_server(make_client: MakeClient) -> None:
    def serve(talk: Talk) -> None:
        assert "id" not in talk.next("ping")
        talk.say("pong", load={"active_executions": 3, "queue_depth": 2})
        talk.next("ping")
        talk.say("pong")

    with serving(serve) as peer:
        client = make_client(peer.url)
        busy = client.ping()
        assert busy.load is not None
        assert (busy.load.active_executions, busy.load.queue_depth) == (3, 2)
        assert busy.round_trip > 0
        assert client.ping().load is None


@pytest.mark.parametrize("rudely", [False, True])
def test_what_waits_fails_when_the_connection_is_lost(make_client: MakeClient, rudely: bool) -> None:
    def serve(talk: Talk) -> None:
        first = talk.next("execute")["id"]
        talk.say("ack", first)
        talk.say("stdout", first, data="begun")
        talk.next("execute")
        if rudely:
            talk.hang_up()

    with serving(serve, refuse(503, {})) as peer:
        client = make_client(peer.url)
        first, second = client.start("x"), client.start("y")
        for execution in (second, first):
            with pytest.raises(ConnectionLost) as caught:
                execution.result()
            assert caught.value.retryable
        pieces = iter(first)
        assert next(pieces).text == "begun"
        with pytest.raises(ConnectionLost):
            next(pieces)


def test_the_next_call_has_a_new_connection(make_client: MakeClient) -> None:
    def drop(talk: Talk) -> None:
        talk.next("execute")
        talk.hang_up()

    with serving(drop, lambda talk: talk.answer("again")) as peer:
        client = make_client(peer.url)
        with pytest.raises(ConnectionLost):
            client.run("x")
        assert client.run("x").text == "again"


def test_a_call_waits_while_the_connection_is_made_again(make_client: MakeClient) -> None:
    def drop(talk: Talk) -> None:
        talk.next("execute")
        talk.hang_up()

    down: dict[str, Any] = {"error": {"code": "shutting_down", "message": "soon back", "retryable": True}}
    refusals = [refuse(503, down)] * 3
    with serving(drop, *refusals, lambda talk: talk.answer("again")) as peer:
        client = make_client(peer.url)
        with pytest.raises(ConnectionLost):
            client.run("x")
        assert client.run("x").text == "again"
        pauses = [after - before for before, after in zip(peer.opened[1:], peer.opened[2:], strict=False)]
        for pause, least in zip(pauses, (0.1, 0.2, 0.4), strict=True):
            assert pause >= least


def test_a_call_gives_up_when_the_server_stays_away(make_client: MakeClient) -> None:
    def drop(talk: Talk) -> None:
        talk.next("execute")

    with serving(drop) as peer:
        client = make_client(peer.url, connect_timeout=1.5)
        with pytest.raises(ConnectionLost):
            client.run("x")
    with pytest.raises(ServerUnreachable, match=peer.url.removeprefix("http://")) as caught:
        client.run("x")
    assert caught.value.retryable


def test_a_server_that_is_not_there(make_client: MakeClient, deaf_port: int) -> None:
    with pytest.raises(ServerUnreachable, match=f"127.0.0.1:{deaf_port}"):
        make_client(f"http://127.0.0.1:{deaf_port}").connect()


def test_something_that_never_answers(make_client: MakeClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = make_client(f"http://127.0.0.1:{listener.getsockname()[1]}", connect_timeout=0.2)
        with pytest.raises(ServerUnreachable, match="timed out"):
            client.connect()


def test_something_that_does_not_speak_http(make_client: MakeClient) -> None:
    def greet() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"SSH-2.0-none\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(ServerUnreachable):
            make_client(f"http://127.0.0.1:{listener.getsockname()[1]}").connect()
        thread.join()


def test_a_wrong_key(make_client: MakeClient) -> None:
    with serving(refuse(401, UNAUTHORIZED)) as peer:
        with pytest.raises(Unauthorized, match=r"^wrong key$") as caught:
            make_client(peer.url).connect()
    assert caught.value.details == {"status": 401, "code": "unauthorized"}


def test_no_key_says_where_keys_come_from(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("SANDBOX_API_KEY", raising=False)
    monkeypatch.setenv("SANDBOX_DATA_DIR", str(tmp_path))
    with serving(refuse(401, UNAUTHORIZED)) as peer:
        with pytest.raises(Unauthorized, match="SANDBOX_API_KEY"):
            make_client(peer.url, api_key=None).connect()


def test_a_key_that_is_wrong_from_now_on_ends_the_reconnecting(make_client: MakeClient) -> None:
    def drop(talk: Talk) -> None:
        talk.next("execute")

    refused = refuse(401, UNAUTHORIZED)
    with serving(drop, refused, refused, refused, lambda talk: talk.answer("back")) as peer:
        client = make_client(peer.url)
        with pytest.raises(ConnectionLost):
            client.run("x")
        refusals = 0
        while len(peer.opened) < 4:
            with pytest.raises(Unauthorized):
                client.run("x")
            refusals += 1
        assert client.run("x").text == "back"
        assert refusals >= 2


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (426, {"error": {"code": "unsupported", "message": "speaks 2", "retryable": False}}, VersionRefused),
        (429, {}, RateLimited),
        (502, "<html>", ServerUnreachable),
        (404, [], TideboxError),
        (200, {"error": None}, TideboxError),
    ],
)
def test_other_refusals(make_client: MakeClient, status: int, body: Any, kind: type[Exception]) -> None:
    with serving(refuse(status, body)) as peer, pytest.raises(kind):
        make_client(peer.url).connect()


@pytest.mark.parametrize("version", [None, "1", "1, 2"])
def test_versions_that_fit(make_client: MakeClient, version: str | None) -> None:
    with serving(lambda talk: talk.answer("x"), version=version) as peer:
        assert make_client(peer.url).run("x").ok


def test_a_server_of_another_version(make_client: MakeClient) -> None:
    with serving(Talk.wait_closed, version="2") as peer:
        with pytest.raises(VersionRefused, match="version 2"):
            make_client(peer.url).connect()


def test_a_server_that_breaks_the_protocol(make_client: MakeClient) -> None:
    def babble(talk: Talk) -> None:
        talk.next("execute")
        talk.say_raw("tide")
        talk.wait_closed()

    with serving(babble, lambda talk: talk.answer("better")) as peer:
        client = make_client(peer.url)
        with pytest.raises(ServerProtocolError, match="not JSON"):
            client.run("x")
        assert client.run("x").text == "better"


def test_closing_fails_what_waits(make_client: MakeClient) -> None:
    with serving(Talk.wait_closed) as peer:
        client = make_client(peer.url)
        execution = client.start("x")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(execution.result)
            client.close()
            with pytest.raises(ClientClosed):
                waiting.result(20)
        with pytest.raises(ClientClosed):
            client.run("x")
        client.close()


def test_a_client_that_is_never_used_needs_no_server(make_client: MakeClient, deaf_port: int) -> None:
    client = make_client(f"http://127.0.0.1:{deaf_port}")
    client.close()
    with pytest.raises(ClientClosed):
        client.run("x")


def test_options_that_do_not_exist(make_client: MakeClient) -> None:
    with pytest.raises(TypeError, match="timeot"):
        make_client("http://127.0.0.1:1").run("x", timeot=3)  # type: ignore[call-arg]


def test_a_key_is_not_shown(make_client: MakeClient) -> None:
    assert "secret" not in repr(vars(make_client("http://127.0.0.1:1", api_key="secret")))


def test_a_wait_can_have_an_end() -> None:
    def serve(talk: Talk) -> None:
        name = talk.next("execute")["id"]
        talk.next("ping")
        talk.next("ping")
        talk.say("pong")
        talk.say("pong")
        talk.finish(name)

    with serving(serve) as peer, Client(peer.url, api_key="a") as client:
        execution = client.start("x")
        with pytest.raises(TimeoutError):
            execution.result(timeout=0.05)
        with pytest.raises(TimeoutError):
            client.ping(timeout=0.05)
        client.ping(timeout=20)
        assert execution.result(timeout=20).ok


async def test_cancelling_the_call_cancels_the_program() -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def serve(talk: Talk) -> None:
        talk.next("execute")
        asked.set()
        talk.next("cancel")
        cancelled.set()
        talk.answer("next")

    with serving(serve) as peer:
        async with AsyncClient(peer.url, api_key="a") as client:
            call = asyncio.create_task(client.run("x"))
            await asyncio.to_thread(asked.wait, 20)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(cancelled.wait, 20)
            assert (await client.run("y")).text == "next"


async def test_an_idle_client_connects_again_by_itself() -> None:
    connected = threading.Event()

    def drop(talk: Talk) -> None:
        talk.answer("one")
        talk.hang_up()

    def serve(talk: Talk) -> None:
        connected.set()
        talk.answer("two")

    with serving(drop, serve) as peer:
        async with AsyncClient(peer.url, api_key="a") as client:
            assert (await client.run("x")).text == "one"
            assert await asyncio.to_thread(connected.wait, 20)
            assert (await client.run("x")).text == "two"
            assert len(peer.opened) == 2
