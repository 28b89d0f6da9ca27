"""The protocol's document, section by section, over a real socket."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.fathom.client import Client, connected
from tests.api.interpreter.service import JWT_SECRET, token
from tests.runtimes import AGENT_MEMORY

SUCCESS = ["ack", "running", "stdout", "completed", "result"]
FOREVER = "import os, time; os.write(1, b'up\\n'); time.sleep(600)"

# -- Design principles ------------------------------------------------------------------------------------------------


async def test_each_execution_gets_a_fresh_environment(client: Client) -> None:
    code = "import os; print(os.path.exists('kept'), sorted(os.listdir())); open('kept', 'w').close()"
    first = await client.run(code)
    second = await client.run(code)
    assert first.stdout == second.stdout == "False ['main.py']\n"


async def test_output_is_sent_as_it_is_produced(client: Client) -> None:
    id = await client.start("import time\nprint('early')\ntime.sleep(600)")
    while (client.transcripts[id].stdout if id in client.transcripts else "") != "early\n":
        await client.next()
    await client.cancel(id)
    await client.finish(id)


async def test_output_without_a_newline_does_not_wait_for_one(client: Client) -> None:
    id = await client.start("printf 'no newline'; sleep 600", "shell")
    assert (await client.next_of("stdout"))["data"] == "no newline"
    await client.cancel(id)
    await client.finish(id)


# -- Message format ---------------------------------------------------------------------------------------------------


async def test_every_frame_has_the_envelope(client: Client) -> None:
    before = datetime.datetime.now(datetime.UTC)
    done = await client.run("print(1)")
    assert done.sequence == SUCCESS
    assert {frame["id"] for frame in done.frames} == {"exec_1"}
    stamps = [datetime.datetime.fromisoformat(frame["ts"]) for frame in done.frames]
    assert stamps == sorted(stamps)
    assert abs(stamps[0] - before) < datetime.timedelta(seconds=20)


@pytest.mark.parametrize("id", ["a", "exec_a1b2c3d4", 'ü \n"\\ 日本 \U0001f600', "x" * 256, "__proto__", "0"])
async def test_an_id_is_any_string(client: Client, id: str) -> None:
    done = await client.run("print(1)", id=id)
    assert done.sequence == SUCCESS


async def test_fields_nobody_knows_are_ignored(client: Client) -> None:
    message = {
        "v": 1,
        "type": "execute",
        "id": "a",
        "ts": "2025-12-27T11:30:00.000Z",
        "language": "python",
        "code": "print(1)",
        "limits": {"timeout_ms": 5000, "memory_mb": 64, "gpus": 8},
        "priority": {"nested": ["high"]},
    }
    await client.send(message)
    assert (await client.finish("a")).stdout == "1\n"


# -- execute ----------------------------------------------------------------------------------------------------------


async def test_stdin_is_provided_and_ends(client: Client) -> None:
    done = await client.run("import sys; print(repr(sys.stdin.read()))", stdin="zwei\nZeilen \u00fc\n")
    assert done.stdout == "'zwei\\nZeilen \u00fc\\n'\n"


async def test_without_stdin_there_is_none(client: Client) -> None:
    assert (await client.run("import sys; print(repr(sys.stdin.read()))")).stdout == "''\n"


async def test_a_long_stdin_arrives_whole(client: Client) -> None:
    done = await client.run("import sys; print(len(sys.stdin.buffer.read()))", stdin="x" * (4 << 20))
    assert done.stdout == f"{4 << 20}\n"


async def test_stdin_that_nobody_reads_hurts_nobody(client: Client) -> None:
    assert (await client.run("print('done')", stdin="x" * (2 << 20))).sequence == SUCCESS


async def test_environment_variables_are_set(client: Client) -> None:
    done = await client.run("import os; print(os.environ['API_KEY'], os.environ['B'])", env={"API_KEY": "s3", "B": "ü"})
    assert done.stdout == "s3 ü\n"


async def test_variables_that_an_interpreter_reads_at_its_start_work(client: Client) -> None:
    code = "import sys; print(sys.flags.optimize)"
    assert (await client.run(code, env={"PYTHONOPTIMIZE": "2"})).stdout == "2\n"


async def test_the_time_limit_is_kept(client: Client) -> None:
    started = time.monotonic()
    done = await client.run("while True: pass", timeout_ms=300)
    assert done.sequence == ["ack", "running", "timeout", "result"]
    assert 300 <= done.result["duration_ms"] < 20_000
    assert time.monotonic() - started < 30


async def test_the_memory_limit_is_kept(client: Client) -> None:
    done = await client.run("b = bytearray(100 << 20); print(len(b))", memory_mb=256)
    assert done.sequence == SUCCESS
    # What a box may use besides, because its agent or its kernel is in it, is no room for the program.
    much = (100 << 20) + AGENT_MEMORY
    done = await client.run(f"b = bytearray({much}); print(len(b))", memory_mb=50)
    assert done.sequence == ["ack", "running", "oom", "result"]


async def test_the_output_limit_counts_both_streams_and_bytes(client: Client) -> None:
    code = "import os; os.write(1, 'é'.encode() * 10); os.write(2, b'x' * 20); os.write(1, b'y')"
    done = await client.run(code, max_output_bytes=41)
    assert (done.stdout, done.stderr) == ("é" * 10 + "y", "x" * 20)
    assert done.result["exit_code"] == 0
    done = await client.run(code, max_output_bytes=40)
    assert done.error["code"] == "OUTPUT_LIMIT"
    assert len(done.stdout.encode()) + len(done.stderr) == 40


async def test_the_default_output_limit_is_a_mebibyte(client: Client) -> None:
    code = "import os\nfor _ in range(1024): os.write(1, b'x' * 1024)\n"
    assert (await client.run(code)).sequence == SUCCESS
    done = await client.run(code + "os.write(1, b'x')")
    assert done.error["code"] == "OUTPUT_LIMIT"
    assert len(done.stdout) == 1 << 20


async def test_cpu_shares_are_taken(client: Client) -> None:
    assert (await client.run("print(1)", cpu_shares=2)).sequence == SUCCESS


# -- cancel -----------------------------------------------------------------------------------------------------------


async def test_cancel_ends_a_running_execution_promptly(start_server: Callable[..., RunningServer]) -> None:
    # A program that ends at the signal is not given the time of those who do not.
    async with connected(start_server(cancel_grace_seconds="300", **NO_CELLS)) as client:
        id = await client.start(FOREVER)
        await client.next_of("stdout")
        await client.cancel(id)
        done = await client.finish(id)
        assert done.sequence == ["ack", "running", "stdout", "cancelled", "result"]
        assert done.exit_code is None


async def test_cancel_ends_what_does_not_want_to_end(client: Client) -> None:
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.write(1, b'up'); time.sleep(600)"
    id = await client.start(code)
    await client.next_of("stdout")
    await client.cancel(id)
    done = await client.finish(id)
    assert done.sequence == ["ack", "running", "stdout", "cancelled", "result"]


async def test_the_last_words_of_a_cancelled_program_are_sent(client: Client) -> None:
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(15, lambda *_: (print('bye'), sys.exit(3)))\n"
        "os.write(1, b'up\\n')\n"
        "time.sleep(600)"
    )
    id = await client.start(code)
    await client.next_of("stdout")
    await client.cancel(id)
    done = await client.finish(id)
    assert done.stdout == "up\nbye\n"
    assert done.sequence[-2:] == ["cancelled", "result"]
    assert done.exit_code is None


async def test_cancel_twice_is_the_same_as_once(client: Client) -> None:
    id = await client.start(FOREVER)
    await client.next_of("stdout")
    await client.cancel(id)
    await client.cancel(id)
    done = await client.finish(id)
    assert done.sequence == ["ack", "running", "stdout", "cancelled", "result"]


async def test_cancel_of_nothing_is_an_unknown_execution(client: Client) -> None:
    await client.cancel("never")
    frame = await client.next()
    assert (frame["type"], frame["id"], frame["code"]) == ("error", "never", "UNKNOWN_EXECUTION")


async def test_cancel_of_what_is_over_is_an_unknown_execution(client: Client) -> None:
    await client.run("print(1)", id="a")
    await client.cancel("a")
    frame = await client.next()
    assert (frame["type"], frame["id"], frame["code"]) == ("error", "a", "UNKNOWN_EXECUTION")


async def test_cancel_right_after_execute_ends_it_once(client: Client) -> None:
    for number in range(20):
        id = await client.start(FOREVER, id=f"quick_{number}")
        await client.cancel(id)
        done = await client.finish(id)
        assert done.sequence[0] == "ack"
        assert done.sequence[-2:] == ["cancelled", "result"]


async def test_ids_are_private_to_their_connection(client: Client, idle_server: RunningServer) -> None:
    await client.start(FOREVER, id="same")
    await client.next_of("stdout")
    async with connected(idle_server) as other:
        await other.cancel("same")
        assert (await other.next())["code"] == "UNKNOWN_EXECUTION"
        assert (await other.run("print(1)", id="same")).sequence == SUCCESS
    await client.cancel("same")
    assert (await client.finish("same")).sequence[-2:] == ["cancelled", "result"]


# -- ping and pong ----------------------------------------------------------------------------------------------------


async def test_ping_is_answered_with_the_load(client: Client) -> None:
    assert await client.ping() == {"active_executions": 0, "queue_depth": 0}
    ids = [await client.start(FOREVER) for _ in range(2)]
    for _ in ids:
        await client.next_of("stdout")
    assert await client.ping() == {"active_executions": 2, "queue_depth": 0}
    for id in ids:
        await client.cancel(id)
    await client.finish_all(ids)


async def test_ping_needs_no_id_and_ignores_one(client: Client) -> None:
    await client.send({"v": 1, "type": "ping", "id": 7})
    frame = await client.next()
    assert frame["type"] == "pong"


# -- ack --------------------------------------------------------------------------------------------------------------


async def test_ack_comes_before_the_execution_starts(
    idle_server: RunningServer, start_server: Callable[..., RunningServer]
) -> None:
    server = start_server(max_concurrent_runs="1", rate_limit="off")
    async with connected(server) as client:
        first = await client.start(FOREVER)
        await client.next_of("stdout")
        second = await client.start("print(2)")
        frame = await client.next()
        assert (frame["type"], frame["id"]) == ("ack", second)
        assert await client.ping() == {"active_executions": 1, "queue_depth": 1}
        await client.cancel(first)
        done = await client.finish(second)
        assert done.sequence == SUCCESS


# -- status -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("pass", "completed", 0),
        ("raise SystemExit(3)", "failed", 3),
        ("1/0", "failed", 1),
        ("not python", "failed", 1),
        ("import os; os.kill(os.getpid(), 9)", "failed", None),
        ("import os; os.abort()", "failed", None),
    ],
)
async def test_the_terminal_status_tells_how_it_ended(
    client: Client, code: str, status: str, exit_code: int | None
) -> None:
    done = await client.run(code)
    assert [word for word in done.sequence if word not in ("stdout", "stderr")] == ["ack", "running", status, "result"]
    assert done.exit_code == exit_code


# -- stdout and stderr ------------------------------------------------------------------------------------------------


async def test_streams_are_told_apart(client: Client) -> None:
    done = await client.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


async def test_characters_that_are_written_in_pieces_are_not_broken(client: Client) -> None:
    code = (
        "import os, time\n"
        "for byte in 'aé日\U0001f600'.encode():\n"
        "    os.write(1, bytes([byte])); os.write(2, bytes([byte])); time.sleep(0.01)\n"
    )
    done = await client.run(code)
    assert done.stdout == done.stderr == "aé日\U0001f600"


async def test_bytes_that_are_no_text_are_replaced(client: Client) -> None:
    done = await client.run(r"import os; os.write(1, b'a\xff\xc3(\xed\xa0\x80\x00b')")
    assert done.stdout == b"a\xff\xc3(\xed\xa0\x80\x00b".decode("utf-8", "replace")
    assert done.exit_code == 0


async def test_a_character_that_never_becomes_whole_is_replaced_at_the_end(client: Client) -> None:
    done = await client.run(r"import os; os.write(1, b'x\xf0\x9f'); os.write(2, b'\xe2')")
    assert (done.stdout, done.stderr) == ("x\ufffd", "\ufffd")
    assert done.sequence[-2:] == ["completed", "result"]


async def test_large_output_is_split_and_complete(client: Client) -> None:
    code = "import sys\nfor n in range(200_000): sys.stdout.write(f'{n}\\n')"
    done = await client.run(code, max_output_bytes=10 << 20)
    assert done.stdout == "".join(f"{number}\n" for number in range(200_000))
    assert done.sequence == SUCCESS


async def test_control_characters_survive_json(client: Client) -> None:
    done = await client.run("import os; os.write(1, bytes(range(128)))")
    assert done.stdout == bytes(range(128)).decode()


# -- result -----------------------------------------------------------------------------------------------------------


async def test_the_result_counts(client: Client) -> None:
    code = (
        "import time\n"
        "b = bytearray(40 << 20)\n"
        "end = time.process_time() + 0.2\n"
        "while time.process_time() < end: pass\n"
        "time.sleep(0.1)"
    )
    result = (await client.run(code)).result
    assert 300 <= result["duration_ms"] < 30_000
    assert 40 <= result["resource_usage"]["peak_memory_mb"] < 100
    assert 200 <= result["resource_usage"]["cpu_time_ms"] <= result["duration_ms"] + 50


async def test_nothing_comes_after_the_result(client: Client) -> None:
    code = "import subprocess; subprocess.Popen(['sh', '-c', 'while :; do echo late; done'], start_new_session=True)"
    done = await client.run(code, max_output_bytes=1 << 30)
    count = len(done.frames)
    assert done.sequence[-2:] == ["completed", "result"]
    await client.ping()
    await client.run("print(1)")
    assert len(done.frames) == count


# -- error ------------------------------------------------------------------------------------------------------------


async def test_an_unknown_language_is_rejected_without_an_ack(client: Client) -> None:
    done = await client.run("fn main() {}", "rust")
    assert done.sequence == ["LANGUAGE_NOT_SUPPORTED"]
    assert "'rust'" in done.error["message"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"id": "a", "language": "python", "limits": {"timeout_ms": 1000, "memory_mb": 64}}, "code"),
        ({"id": "a", "language": "python", "code": "", "limits": {"memory_mb": 64}}, "limits.timeout_ms"),
        (
            {"id": "a", "language": "python", "code": "", "limits": {"timeout_ms": 9, "memory_mb": 64}},
            "limits.timeout_ms",
        ),
        (
            {"id": "a", "language": "python", "code": "", "limits": {"timeout_ms": 1000, "memory_mb": 7}},
            "limits.memory_mb",
        ),
        (
            {"id": "a", "language": "python", "code": "x" * (1 << 21), "limits": {"timeout_ms": 1000, "memory_mb": 64}},
            "code",
        ),
    ],
)
async def test_a_wrong_request_is_rejected_naming_the_field(
    client: Client, message: dict[str, Any], field: str
) -> None:
    await client.send({"v": 1, "type": "execute", **message})
    done = await client.finish("a")
    assert done.sequence == ["INVALID_REQUEST"]
    assert done.error["message"].startswith(field + ":")
    assert (await client.run("print(1)")).sequence == SUCCESS


async def test_an_id_under_way_cannot_be_used_again(client: Client) -> None:
    await client.start(FOREVER, id="a")
    await client.next_of("stdout")
    await client.start("print(1)", id="a")
    frame = await client.next()
    assert (frame["type"], frame["id"], frame["code"]) == ("error", "a", "INVALID_REQUEST")
    assert frame["message"].startswith("id:")
    await client.cancel("a")
    frame = await client.next_of("result")
    assert client.transcripts["a"].sequence == ["ack", "running", "stdout", "INVALID_REQUEST", "cancelled", "result"]


async def test_an_id_that_is_over_can_be_used_again(client: Client) -> None:
    for _ in range(3):
        assert (await client.run("print(1)", id="again")).sequence == SUCCESS
        client.transcripts.clear()


async def test_the_output_limit_is_an_error_then_failed_then_the_result(client: Client) -> None:
    done = await client.run("while True: print('x' * 999)", max_output_bytes=10_000)
    assert done.sequence == ["ack", "running", "stdout", "OUTPUT_LIMIT", "failed", "result"]
    assert len(done.stdout) == 10_000
    assert done.exit_code is None


async def test_no_output_at_all_may_be_allowed(client: Client) -> None:
    assert (await client.run("pass", max_output_bytes=0)).sequence == ["ack", "running", "completed", "result"]
    done = await client.run("print(1)", max_output_bytes=0)
    assert done.sequence == ["ack", "running", "OUTPUT_LIMIT", "failed", "result"]


async def test_too_many_on_one_connection_are_told_to_come_later(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(max_executions_per_connection="2", rate_limit="off")
    async with connected(server) as client:
        ids = [await client.start(FOREVER) for _ in range(3)]
        rejected = await client.finish(ids[2])
        assert rejected.sequence == ["SANDBOX_OVERLOADED"]
        assert rejected.error["retryable"] is True
        async with connected(server) as other:
            assert (await other.run("print(1)")).sequence == SUCCESS
        await client.cancel(ids[0])
        await client.finish(ids[0])
        assert (await client.run("print(1)")).sequence == SUCCESS
        await client.cancel(ids[1])
        await client.finish(ids[1])


async def test_a_full_server_tells_to_come_later(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_concurrent_runs="1", queue_max_length="1", rate_limit="off")
    async with connected(server) as client:
        ids = [await client.start(FOREVER) for _ in range(3)]
        rejected = await client.finish(ids[2])
        assert rejected.sequence == ["SANDBOX_OVERLOADED"]
        for id in ids[:2]:
            await client.cancel(id)
        await client.finish_all(ids[:2])


async def test_too_many_requests_are_told_to_come_later(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="3/hour", auth_jwt_secret=JWT_SECRET)
    headers = {"Authorization": f"Bearer {token('ada')}", "X-Protocol-Version": "1"}
    async with connected(server, additional_headers=headers) as client:
        done = [await client.run("print(1)") for _ in range(4)]
        assert done[0].sequence == SUCCESS
        assert done[-1].sequence == ["SANDBOX_OVERLOADED"]


async def test_waiting_too_long_is_told_to_come_later(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_concurrent_runs="1", queue_ttl_sec="0.2", rate_limit="off")
    async with connected(server) as client:
        first = await client.start(FOREVER)
        await client.next_of("stdout")
        second = await client.start("print(1)")
        done = await client.finish(second)
        assert done.sequence == ["ack", "SANDBOX_OVERLOADED"]
        await client.cancel(first)
        await client.finish(first)


# -- Message sequences ------------------------------------------------------------------------------------------------


async def test_sequence_of_a_success(client: Client) -> None:
    done = await client.run("echo 1; sleep 0.1; echo 2; sleep 0.1; echo 3 >&2; sleep 0.1", "shell")
    assert [frame["type"] for frame in done.frames] == [
        "ack",
        "status",
        "stdout",
        "stdout",
        "stderr",
        "status",
        "result",
    ]
    assert done.sequence == ["ack", "running", "stdout", "stderr", "completed", "result"]


async def test_sequence_of_a_timeout(client: Client) -> None:
    done = await client.run("print('up'); import time; time.sleep(600)", timeout_ms=500)
    assert done.sequence == ["ack", "running", "stdout", "timeout", "result"]
    assert done.exit_code is None


async def test_sequence_of_too_much_memory(client: Client) -> None:
    done = await client.run("print('up')\nb = []\nwhile True: b.append(bytearray(1 << 20))", memory_mb=64)
    assert done.sequence == ["ack", "running", "stdout", "oom", "result"]
    assert done.exit_code is None


async def test_sequence_of_a_cancel_before_the_start(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_concurrent_runs="1", rate_limit="off")
    async with connected(server) as client:
        first = await client.start(FOREVER)
        await client.next_of("stdout")
        second = await client.start("print(1)")
        await client.cancel(second)
        done = await client.finish(second)
        assert done.sequence == ["ack", "cancelled", "result"]
        assert (done.exit_code, done.result["duration_ms"]) == (None, 0)
        await client.cancel(second)
        assert (await client.next())["code"] == "UNKNOWN_EXECUTION"
        await client.cancel(first)
        await client.finish(first)


async def test_many_executions_share_a_connection(client: Client) -> None:
    code = "import sys, time\nfor n in range(5): print(sys.argv, n, flush=True); time.sleep(0.01)\nprint({number})"
    ids = [await client.start(code.replace("{number}", str(number)), id=str(number)) for number in range(24)]
    for id, done in zip(ids, await client.finish_all(ids), strict=True):
        assert done.sequence == SUCCESS
        assert done.stdout.endswith(f"4\n{id}\n")


# -- Connection management: authentication ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"X-API-KEY": "wrong"}, {"Authorization": "Basic bG9jYWw6"}],
)
async def test_without_a_credential_there_is_no_upgrade(running_server: RunningServer, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(running_server.ws_url, additional_headers=headers, proxy=None, open_timeout=60)
    response = caught.value.response
    assert response.status_code == 401
    assert json.loads(response.body or b"")["error"]["code"] == "unauthorized"


@pytest.mark.parametrize("form", ["Authorization", "X-API-KEY"])
async def test_the_key_is_a_credential(idle_server: RunningServer, form: str) -> None:
    value = f"Bearer {idle_server.key}" if form == "Authorization" else idle_server.key
    async with connected(idle_server, additional_headers={form: value}) as client:
        await client.ping()


async def test_the_page_of_a_stranger_is_refused(running_server: RunningServer) -> None:
    headers = running_server.headers
    with pytest.raises(InvalidStatus) as caught:
        await connect(
            running_server.ws_url,
            additional_headers=headers,
            origin=Origin("https://evil.example"),
            proxy=None,
            open_timeout=60,
        )
    assert caught.value.response.status_code == 403


# -- Connection management: pending executions on disconnect ----------------------------------------------------------


async def test_executions_are_not_resumed_on_a_new_connection(idle_server: RunningServer) -> None:
    async with connected(idle_server) as client:
        id = await client.start("import time; time.sleep(1); print('late')", timeout_ms=3000)
        await client.next_of("running")
    async with connected(idle_server) as client:
        await client.cancel(id)
        assert (await client.next())["code"] == "UNKNOWN_EXECUTION"
        assert (await client.run("print(1)", id=id)).stdout == "1\n"


# -- Versioning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [{"type": "ping"}, {"v": 2, "type": "ping"}, {"v": "1", "type": "ping"}])
async def test_a_message_of_another_version_is_rejected(client: Client, message: dict[str, Any]) -> None:
    await client.send(message)
    frame = await client.next()
    assert frame["code"] == "INVALID_REQUEST"
    assert frame["message"].startswith("v:")
    await client.ping()


@pytest.mark.parametrize("offered", [None, "1", "1.0", "2, 1"])
async def test_the_version_is_agreed_on_in_the_upgrade(idle_server: RunningServer, offered: str | None) -> None:
    headers = idle_server.headers | ({"X-Protocol-Version": offered} if offered else {})
    async with connected(idle_server, additional_headers=headers) as client:
        assert client.socket.response is not None
        assert client.socket.response.headers["X-Protocol-Version"] == "1"
        await client.ping()


@pytest.mark.parametrize("offered", ["2", "0", "11", "", "one", "2, 3"])
async def test_a_version_nobody_speaks_is_refused_in_words(running_server: RunningServer, offered: str) -> None:
    headers = running_server.headers | {"X-Protocol-Version": offered}
    with pytest.raises(InvalidStatus) as caught:
        await connect(running_server.ws_url, additional_headers=headers, proxy=None, open_timeout=60)
    response = caught.value.response
    assert response.status_code == 400
    assert response.headers["X-Protocol-Version"] == "1"
    assert json.loads(response.body or b"")["error"]["details"]["supported"] == [1]


# -- Security considerations ------------------------------------------------------------------------------------------


async def test_code_and_environment_are_neither_logged_nor_kept(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off", log_level="debug")
    secrets = ["code_s3cret", "env_s3cret", "stdin_s3cret", "output_s3cret"]
    async with connected(server) as client:
        code = "print('code_s3cret'.replace('code', 'output')); raise ValueError('code_s3cret')"
        await client.run(code, env={"KEY": "env_s3cret"}, stdin="stdin_s3cret")
        await client.run("code_s3cret", "rust", env={"KEY": "env_s3cret"})
        await client.run("code_s3cret", env={"=": "env_s3cret"})
        await client.run("code_s3cret", env={"KEY": "env_s3cret"}, timeout_ms=1)
    assert server.stop() == 0
    server.wait()
    kept = [path.read_bytes() for path in server.data_dir.rglob("*") if path.is_file()]
    for secret in secrets:
        assert secret not in server.log
        assert not any(secret.encode() in content for content in kept)


async def test_no_network_and_no_files_of_the_host(client: Client) -> None:
    code = (
        "import os, socket\n"
        "try: socket.create_connection(('1.1.1.1', 53), 1); print('network')\n"
        "except OSError: print('none')\n"
        "print(os.path.exists('/root/.bashrc'), os.getcwd())"
    )
    assert (await client.run(code)).stdout == "none\nFalse /workspace\n"


async def test_two_clients_at_once_do_not_see_each_other(idle_server: RunningServer) -> None:
    async with connected(idle_server) as one, connected(idle_server) as two:
        done = await asyncio.gather(
            *(client.run(f"import time; time.sleep(0.2); print({number})") for number, client in enumerate([one, two]))
        )
    assert [transcript.stdout for transcript in done] == ["0\n", "1\n"]
