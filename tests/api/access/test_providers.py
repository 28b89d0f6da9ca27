"""One server gives out the sandboxes of another: relayed, or handed over; all over two real servers."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.api.access.clients import JWT_SECRET, SESSIONS, Client, error_of, found, use, wait_for
from tests.api.access.test_races import rows, sockets
from tests.api.access.tls import behind_tls, make_certificate
from tests.api.conftest import NO_CELLS, RunningServer, finish, start
from tests.api.dataplane.plane import Socket
from tests.api.fathom.test_faults import spawner_of
from tests.runtimes import native_only
from tidebox.model.ids import new_id

KEY = "the-key-of-the-machine-that-nobody-sees"
MODES = ("relay", "direct")
FAST = {"rate_limit": "off", "reaper_interval_sec": "0.1", **NO_CELLS}
Starter = Callable[..., RunningServer]


def described(url: str, *modes: str) -> str:
    """The setting by which a server knows another one, under the name of each mode."""
    return json.dumps([{"name": mode, "url": url, "api_key": KEY, "mode": mode} for mode in modes or MODES])


def start_machine(start_server: Starter, data_dir: Path, port: int = 0, **settings: str) -> RunningServer:
    return start_server("--port", str(port), data_dir=data_dir, api_key=KEY, pool_sandboxes="0", **FAST, **settings)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that has sandboxes."""
    server = start(tmp_path_factory.mktemp("machine"), api_key=KEY, pool_sandboxes="0", rate_limit="off", **NO_CELLS)
    yield server
    finish(server)


@pytest.fixture(scope="module")
def server(machine: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server that gives them out."""
    server = start(
        tmp_path_factory.mktemp("broker"),
        rate_limit="off",
        auth_jwt_secret=JWT_SECRET,
        capabilities_agent="fs_read,exec",
        providers=described(machine.url),
        log_level="debug",
        **NO_CELLS,
    )
    yield server
    finish(server)


def dataplane(server: RunningServer, token: str) -> httpx.Client:
    return httpx.Client(base_url=server.url + "/v1", headers={"Authorization": f"Bearer {token}"}, timeout=60)


def open_socket(server: RunningServer, path: str, token: str) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    url = server.url.replace("http", "ws", 1) + path
    return connect(url, additional_headers=headers, max_size=None, compression=None, open_timeout=60)


def most_memory(server: RunningServer) -> int:
    """The most memory that a server has had, in bytes."""
    return int(Path(f"/proc/{server.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def test_a_relayed_sandbox_is_used_here_and_lives_there(
    ada: Client, server: RunningServer, machine: RunningServer, thread: str
) -> None:
    session = ada.ensure(thread, provider_preference="relay")
    sandbox = session["sandbox"]
    assert (sandbox["provider"], session["binding"]["provider"]) == ("relay", "relay")
    assert sandbox["http_base_url"] == f"{server.url}/v1"
    assert sandbox["id"] in sockets(machine)
    assert sandbox["id"] not in sockets(server)
    assert use(server, session["token"]).json()["stdout"] == "used\n"
    assert use(server, session["token"], f"/api/{sandbox['id']}/exec").json()["stdout"] == "used\n"
    error_of(use(machine, session["token"]), 401, "UNAUTHENTICATED")
    acquired = ada.acquire(thread)
    assert acquired["http_url"] == f"{server.url}/api/{sandbox['id']}"
    fresh = found(ada.http.post("/sandbox/refresh", json={"token": acquired["token"]}))
    assert use(server, fresh["token"]).status_code == 200

    assert ada.of_session("DELETE", session["session_id"]).status_code == 204
    assert sandbox["id"] not in sockets(machine)
    error_of(use(server, fresh["token"]), 401, "UNAUTHENTICATED")


def test_files_of_a_relayed_sandbox(ada: Client, server: RunningServer, thread: str) -> None:
    session = ada.ensure(thread, provider_preference="relay")
    content = random.Random(1).randbytes(20 * 1024 * 1024)
    with dataplane(server, session["token"]) as plane:
        assert plane.post("/files/upload?path=small", content=b"x").status_code == 200
        assert plane.post("/files/remove?path=small").status_code == 200
        before = most_memory(server)

        def pieces() -> Iterator[bytes]:
            for at in range(0, len(content), 700_001):
                yield content[at : at + 700_001]

        made = plane.post("/files/upload", params={"path": "a b/ü&?.bin"}, content=pieces())
        assert made.json() == {"path": "/workspace/a b/ü&?.bin", "size": len(content)}
        again = plane.post("/files/upload", params={"path": "form.bin"}, files={"file": content})
        assert again.json()["size"] == len(content)
        with plane.stream("GET", "/files/download", params={"path": "a b/ü&?.bin"}) as answer:
            assert answer.headers["content-length"] == str(len(content))
            came = hashlib.sha256()
            for piece in answer.iter_raw():
                came.update(piece)
        assert came.digest() == hashlib.sha256(content).digest()
        assert most_memory(server) - before < len(content) / 2, "a body was kept as a whole"
        part = plane.get("/files/download", params={"path": "form.bin"}, headers={"Range": "bytes=1000-1999"})
        assert (part.status_code, part.content) == (206, content[1000:2000])
        assert part.headers["content-range"] == f"bytes 1000-1999/{len(content)}"
        beyond = plane.get("/files/download", params={"path": "form.bin"}, headers={"Range": "bytes=99999999-"})
        assert beyond.status_code == 416
        head = plane.head("/files/download", params={"path": "form.bin"})
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(content)))
        entries = plane.get("/files/list").json()["entries"]
        assert [entry["name"] for entry in entries] == ["a b", "form.bin"]
        assert plane.post("/files/mkdir", json={"path": "d"}).status_code == 201
        assert plane.post("/files/move", json={"source": "form.bin", "target": "d/f"}).status_code == 200
        missing = error_of(plane.get("/files/stat", params={"path": "form.bin"}), 404, "FILE_NOT_FOUND")
        assert missing["request_id"]
        assert plane.post("/files/remove", json={"path": "d", "recursive": True}).status_code == 200
        half = plane.post("/files/upload?path=p&upload_id=u&offset=0&complete=false", content=b"half")
        assert half.json()["complete"] is False
        conflict = plane.post("/files/upload?path=p&upload_id=u&offset=1", content=b"x")
        assert error_of(conflict, 409, "CONFLICT")["details"]["offset"] == 4
    ada.of_session("DELETE", session["session_id"])


def test_programs_and_shells_of_a_relayed_sandbox(ada: Client, server: RunningServer, thread: str) -> None:
    token = ada.ensure(thread, provider_preference="relay")["token"]
    with open_socket(server, "/v1/shell/ws", token) as connection:
        shell = Socket(connection)
        shell.send("start", tty={"rows": 24, "cols": 80})
        shell.expect("ready", 60)
        shell.send("stdin", data="stty -echo; PS1=; stty size\n")
        shell.read_until("24 80", 30)
        shell.send("resize", rows=50, cols=132)
        shell.send("stdin", data="stty size; exit 3\n")
        shell.read_until("50 132", 30)
        ending = shell.until("exit")[-1]
        assert (ending["exit_code"], ending["signal"]) == (3, None)
        assert ending["resource_usage"]["cpu_time_ms"] >= 0
    with open_socket(server, "/v1/exec/ws", token) as connection:
        program = Socket(connection)
        program.send("start", command="cat; echo err >&2; kill -9 $$", stdin=True)
        program.expect("ready", 60)
        program.send("stdin", data="/wDDKA==", encoding="base64", eof=True)
        frames = program.until("exit")
        assert [(frame["type"], frame.get("data")) for frame in frames[:-1] if frame["type"] == "stdout"] == [
            ("stdout", "/wDDKA==")
        ]
        assert any(frame["type"] == "stderr" and frame["data"] == "err\n" for frame in frames)
        assert (frames[-1]["exit_code"], frames[-1]["signal"]) == (137, "KILL")
    with open_socket(server, "/v1/exec/ws", token) as connection:
        program = Socket(connection)
        program.send("start", command=["/there/is/none"])
        assert program.expect("error", 60)["error"]["code"] == "EXEC_FAILED"
    with open_socket(server, "/v1/exec/ws", token) as connection:
        program = Socket(connection)
        program.send("start", command="while read line; do echo got $line; done", stdin=True, on_disconnect="detach")
        process_id = program.expect("ready", 60)["process_id"]
        program.send("stdin", data="one\n")
        program.read_until("got one\n", 30)
    with open_socket(server, "/v1/exec/ws", token) as connection:
        program = Socket(connection)
        program.send("start", process_id=process_id, offset=8)
        program.expect("ready", 60)
        program.send("stdin", data="two\n", eof=True)
        program.read_until("got two\n", 30)
        program.until("exit")


def test_both_servers_log_a_request_by_one_name(
    ada: Client, server: RunningServer, machine: RunningServer, thread: str
) -> None:
    token = ada.ensure(thread, provider_preference="relay")["token"]
    with dataplane(server, token) as plane:
        asked = {name: {"X-Request-ID": f"{name}-{thread}"} for name in ("exec", "list", "upload")}
        assert plane.post("/exec", json={"command": ["true"]}, headers=asked["exec"]).status_code == 200
        assert plane.get("/files/list", headers=asked["list"]).status_code == 200
        assert plane.post("/files/upload?path=x", content=b"x", headers=asked["upload"]).status_code == 200
    wait_for(lambda: all(f"{name}-{thread}" in machine.log for name in asked))


def test_a_program_of_a_client_that_leaves_is_killed_there(ada: Client, server: RunningServer, thread: str) -> None:
    token = ada.ensure(thread, provider_preference="relay")["token"]
    programs = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/exec", json={"command": ["sleep", "98765"]}, timeout=1)
    wait_for(lambda: "98765" not in use(server, token, command=programs).json()["stdout"])


def test_a_slow_client_of_a_relayed_program_holds_it_back(
    ada: Client, server: RunningServer, machine: RunningServer, thread: str
) -> None:
    token = ada.ensure(thread, provider_preference="relay")["token"]
    command = "i=0; while [ $i -lt 200 ]; do head -c 100000 /dev/zero; i=$((i+1)); echo $i > count; done"
    with open_socket(server, "/v1/exec/ws", token) as connection:
        program = Socket(connection)
        program.send("start", command=command)
        program.expect("ready", 60)

        def count() -> int:
            return int(use(server, token, command="cat count || echo 0").json()["stdout"] or 0)

        wait_for(lambda: count() > 0, 30)
        before = -1
        while before != (before := count()):
            time.sleep(0.5)
        assert before < 200, "what nobody read was taken all the same"
        size = 0
        while (frame := program.receive(30))["type"] != "exit":
            size += len(frame["data"]) if frame["encoding"] == "utf8" else 0
        assert size == 20_000_000


@pytest.mark.parametrize("way", ["time limit", "signal"])
def test_unread_input_is_not_in_the_way_of_a_kill(ada: Client, server: RunningServer, thread: str, way: str) -> None:
    token = ada.ensure(thread, provider_preference="relay")["token"]
    with open_socket(server, "/v1/exec/ws", token) as connection, ThreadPoolExecutor(1) as other:
        program = Socket(connection)
        limit = {"timeout_ms": 3000} if way == "time limit" else {}
        program.send("start", command=["sleep", "1000"], stdin=True, on_disconnect="detach", **limit)
        process_id = program.expect("ready", 60)["process_id"]

        def flood() -> None:
            with contextlib.suppress(ConnectionClosed):
                for _ in range(64):
                    program.send("stdin", data="x" * 512 * 1024)

        flooding = other.submit(flood)
        time.sleep(2)
        assert not flooding.done(), "so much input was taken from a client whose program reads none"
        begun = time.monotonic()
        if way == "signal":
            with open_socket(server, "/v1/exec/ws", token) as second:
                attached = Socket(second)
                attached.send("start", process_id=process_id)
                attached.expect("ready", 60)
                attached.send("signal", signal="KILL")
                ending = attached.until("exit")[-1]
        else:
            ending = program.until("exit")[-1]
        assert time.monotonic() - begun < 15
        assert (ending["signal"], ending.get("timed_out", False)) == ("KILL", way == "time limit")
        connection.close()


@native_only("the files of a container are not on this machine, and cannot be watched")
def test_a_relayed_directory_is_watched(ada: Client, server: RunningServer, thread: str) -> None:
    token = ada.ensure(thread, provider_preference="relay")["token"]
    with open_socket(server, "/v1/files/watch?path=.&recursive=true", token) as connection:
        watch = Socket(connection)
        assert watch.expect("ready", 60)["path"] == "/workspace/."
        use(server, token, command="mkdir sub; echo x > sub/file")
        frames = [watch.receive(30)]
        while not any(frame["path"] == "/workspace/sub/file" for frame in frames):
            frames.append(watch.receive(30))
        assert (frames[0]["type"], frames[0]["path"], frames[0]["entry"]) == ("created", "/workspace/sub", "directory")


def test_what_a_token_covers_is_decided_here(ada: Client, server: RunningServer, thread: str) -> None:
    agent = ada.ensure(thread, provider_preference="relay", actor={"type": "agent"})
    assert agent["credentials"]["granted_capabilities"] == ["fs_read", "exec"]
    with dataplane(server, agent["token"]) as plane:
        assert plane.get("/files/list").status_code == 200
        error_of(plane.post("/files/mkdir", json={"path": "d"}), 403, "CAPABILITY_DENIED")
    with open_socket(server, "/v1/shell/ws", agent["token"]) as connection:
        shell = Socket(connection)
        shell.send("start")
        assert shell.expect("error")["error"]["code"] == "CAPABILITY_DENIED"


def test_a_revoked_token_is_dead_on_open_sockets_too(ada: Client, server: RunningServer, thread: str) -> None:
    session = ada.ensure(thread, provider_preference="relay")
    with open_socket(server, "/v1/exec/ws", session["token"]) as connection:
        program = Socket(connection)
        program.send("start", command="while sleep 0.05; do echo x; done")
        program.expect("ready", 60)
        assert ada.of_session("POST", session["session_id"], "/revoke").status_code == 204
        while (frame := program.receive(30))["type"] != "error":
            assert frame["type"] == "stdout"
        assert frame["error"]["code"] == "UNAUTHENTICATED"
    error_of(use(server, session["token"]), 401, "UNAUTHENTICATED")
    assert use(server, ada.ensure(thread)["token"]).status_code == 200


def test_a_sandbox_that_is_handed_over(ada: Client, server: RunningServer, machine: RunningServer, thread: str) -> None:
    session = ada.ensure(thread, provider_preference="direct", requested_capabilities=["exec", "fs_read"])
    assert session["sandbox"]["http_base_url"] == f"{machine.url}/v1"
    assert session["dataplane"]["ws_base_url"] == f"{machine.url}/v1".replace("http", "ws", 1)
    assert session["credentials"]["granted_capabilities"] == ["fs_read", "exec"]
    assert use(machine, session["token"]).json()["stdout"] == "used\n"
    error_of(use(server, session["token"]), 401, "UNAUTHENTICATED")
    with dataplane(machine, session["token"]) as plane:
        error_of(plane.post("/files/mkdir", json={"path": "d"}), 403, "CAPABILITY_DENIED")
    assert found(ada.of_session("GET", session["session_id"]))["sandbox"] == session["sandbox"]

    fresh = found(ada.of_session("POST", session["session_id"], "/refresh"))
    assert fresh["token"] != session["token"]
    assert fresh["credentials"]["granted_capabilities"] == ["fs_read", "exec"]
    assert use(machine, fresh["token"]).status_code == 200
    acquired = ada.acquire(thread)
    assert acquired["http_url"] == f"{machine.url}/api/{session['sandbox']['id']}"
    by_token = httpx.post(
        f"{server.url}/sandbox/refresh", headers={"Authorization": f"Bearer {acquired['token']}"}, timeout=60
    )
    assert use(machine, found(by_token)["token"]).status_code == 200

    assert ada.of_session("POST", session["session_id"], "/revoke").status_code == 204
    for token in (session["token"], fresh["token"], by_token.json()["token"]):
        error_of(use(machine, token), 401, "UNAUTHENTICATED")
        error_of(ada.http.post("/sandbox/refresh", json={"token": token}), 401, "UNAUTHENTICATED")
    last = ada.ensure(thread)
    assert last["sandbox"]["id"] == session["sandbox"]["id"]
    assert ada.of_session("DELETE", session["session_id"]).status_code == 204
    error_of(use(machine, last["token"]), 401, "UNAUTHENTICATED")
    assert session["sandbox"]["id"] not in sockets(machine)


@pytest.mark.parametrize("provider", ["local", *MODES])
def test_a_hint_lets_scopes_share_a_sandbox(
    ada: Client, bob: Client, server: RunningServer, machine: RunningServer, thread: str, provider: str
) -> None:
    there = server if provider != "direct" else machine
    home = server if provider == "local" else machine
    first = ada.ensure(thread, provider_preference=provider)
    assert use(there, first["token"], command="echo shared > note").status_code == 200
    hint = first["sandbox"]["id"]
    stranger = bob.ensure(new_id("thr"), sandbox_hint=hint)
    assert (stranger["sandbox_hint_matched"], stranger["sandbox"]["id"] == hint) == (False, False)
    other = "local" if provider != "local" else "relay"
    elsewhere = ada.ensure(new_id("thr"), sandbox_hint=hint, provider_preference=other)
    assert (elsewhere["sandbox_hint_matched"], elsewhere["sandbox"]["provider"]) == (False, other)
    second = ada.ensure(new_id("thr"), sandbox_hint=hint)
    assert second["sandbox_hint_matched"] is True
    assert (second["sandbox"], second["session_id"] == first["session_id"]) == (first["sandbox"], False)
    assert use(there, second["token"], command="cat note").json()["stdout"] == "shared\n"

    ada.of_session("DELETE", first["session_id"])
    error_of(use(there, first["token"]), 401, "UNAUTHENTICATED")
    assert use(there, second["token"], command="cat note").json()["stdout"] == "shared\n"
    assert ada.http.post("/sandbox/release", json={"sandbox_id": hint}).status_code == 200
    error_of(use(there, second["token"]), 401, "UNAUTHENTICATED")
    assert hint not in sockets(home)
    for client, made in ((bob, stranger), (ada, elsewhere)):
        client.of_session("DELETE", made["session_id"])


def test_an_existing_binding_stays_where_it_is(ada: Client, thread: str) -> None:
    before = ada.ensure(thread, provider_preference="relay")
    for preference in ("local", "direct", "auto"):
        assert ada.ensure(thread, provider_preference=preference)["sandbox"] == before["sandbox"]
    error_of(ada.negotiate(thread_id=thread, mode="ensure", provider_preference="none"), 503, "PROVIDER_UNAVAILABLE")
    ada.of_session("DELETE", before["session_id"])


def test_keys_and_passes_of_the_other_server_are_seen_nowhere(ada: Client, server: RunningServer, thread: str) -> None:
    answers = [ada.negotiate(thread_id=thread, mode="ensure", provider_preference="relay")]
    session = answers[0].json()
    answers.append(use(server, session["token"]))
    answers.append(ada.of_session("GET", session["session_id"]))
    answers.append(ada.of_session("DELETE", session["session_id"]))
    seen = "".join(f"{answer.headers} {answer.text}" for answer in answers)
    kept = [file for file in server.data_dir.rglob("*") if file.is_file() and "images" not in file.parts]
    written = server.log + "".join(file.read_bytes().decode("latin-1") for file in kept)
    assert "relay" in written, "the audit log has the provider"
    assert KEY not in seen + written
    assert re.findall(r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+", written) == []
    assert set(re.findall(r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+", seen)) == {session["token"]}


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_is_killed_and_comes_back(start_server: Starter, tmp_path: Path, mode: str) -> None:
    machine = start_machine(start_server, tmp_path / "machine")
    server = start_server(providers=described(machine.url, mode), **FAST)
    with Client(server) as client:
        before = client.ensure("t", provider_preference=mode)
        with open_socket(server if mode == "relay" else machine, "/v1/exec/ws", before["token"]) as connection:
            program = Socket(connection)
            program.send("start", command="sleep 300")
            program.expect("ready", 60)
            machine.stop(signal.SIGKILL)
            if mode == "relay":
                lost = program.expect("error", 30)["error"]
                assert (lost["code"], lost["retryable"]) == ("BACKEND_UNAVAILABLE", True)
        refused = error_of(client.negotiate(thread_id="t", mode="ensure"), 503, "PROVIDER_UNAVAILABLE")
        assert refused["retryable"] is True
        scope = {"type": "thread", "id": "new"}
        new = client.negotiate(scope=scope, mode="ensure", provider_preference=mode)
        assert error_of(new, 503, "BACKEND_UNAVAILABLE")["retryable"] is True
        error_of(client.negotiate(scope=scope, mode="get"), 404, "BINDING_NOT_FOUND")
        if mode == "relay":
            error_of(use(server, before["token"]), 503, "BACKEND_UNAVAILABLE")
        instead = client.ensure("instead")
        assert instead["sandbox"]["provider"] == "local"

        machine = start_machine(start_server, tmp_path / "machine", machine.address[1])
        there = server if mode == "relay" else machine
        if mode == "relay":
            error_of(use(server, before["token"]), 401, "UNAUTHENTICATED")
            assert client.state(before["session_id"]) == "failed"
        after = client.ensure("t")
        assert after["recreated"] is True
        assert after["session_id"] == before["session_id"]
        assert after["sandbox"]["id"] != before["sandbox"]["id"]
        assert use(there, after["token"]).status_code == 200
        assert client.ensure("t")["recreated"] is False
        # Of a server that is killed a file may be left.
        assert set(sockets(machine)) - {before["sandbox"]["id"]} == {after["sandbox"]["id"]}


@pytest.mark.parametrize("mode", MODES)
def test_sandboxes_of_other_servers_survive_a_restart(start_server: Starter, tmp_path: Path, mode: str) -> None:
    machine = start_machine(start_server, tmp_path / "machine")
    settings = {"providers": described(machine.url, mode), "data_dir": tmp_path / "broker", **FAST}
    server = start_server(**settings)
    with Client(server) as client:
        before = client.ensure("t", provider_preference=mode)
        revoked = client.ensure("r", provider_preference=mode)
        client.of_session("POST", revoked["session_id"], "/revoke")
        use(server if mode == "relay" else machine, before["token"], command="echo kept > note")
    server.stop(signal.SIGKILL)
    server = start_server(**settings)
    there = server if mode == "relay" else machine
    with Client(server) as client:
        wait_for(lambda: client.state(before["session_id"]) == "active")
        error_of(use(there, revoked["token"]), 401, "UNAUTHENTICATED")
        fresh = found(client.of_session("POST", before["session_id"], "/refresh"))
        assert use(there, fresh["token"], command="cat note").json()["stdout"] == "kept\n"
        after = client.ensure("t")
        assert after["recreated"] is False
        assert after["sandbox"]["id"] == before["sandbox"]["id"]
        for session in (before, revoked):
            assert client.of_session("DELETE", session["session_id"]).status_code == 204
        assert sockets(machine) == rows(machine) == []


def test_what_could_not_be_released_is_released_later(start_server: Starter, tmp_path: Path) -> None:
    machine = start_machine(start_server, tmp_path / "machine")
    server = start_server(providers=described(machine.url, "relay"), **FAST)
    with Client(server) as client:
        session = client.ensure("t", provider_preference="relay")
        machine.stop(signal.SIGKILL)
        assert client.of_session("DELETE", session["session_id"]).status_code == 204
        assert client.ensure("t")["sandbox"]["provider"] == "local"
        machine = start_machine(start_server, tmp_path / "machine", machine.address[1])
        wait_for(lambda: rows(machine) == [], 40)


def test_a_server_that_runs_nothing_itself(start_server: Starter, tmp_path: Path) -> None:
    machine = start_machine(start_server, tmp_path / "machine")
    key_file = tmp_path / "key"
    key_file.write_text(KEY + "\n")
    gone = {"name": "gone", "url": "http://127.0.0.1:9", "api_key": "x"}
    there = {"name": "there", "url": machine.url + "/", "api_key_file": str(key_file)}
    server = start_server(providers=json.dumps([gone, there]), enable_execution="false", **FAST)
    with Client(server) as client:
        session = client.ensure("t")
        assert session["sandbox"]["provider"] == "there"
        assert use(server, session["token"]).status_code == 200
        refused = client.negotiate(thread_id="l", mode="ensure", provider_preference="local")
        error_of(refused, 503, "PROVIDER_UNAVAILABLE")


def test_when_one_server_is_full_the_next_is_asked(start_server: Starter, tmp_path: Path) -> None:
    small = start_machine(start_server, tmp_path / "small", max_sandboxes_per_user="1")
    large = start_machine(start_server, tmp_path / "large")
    servers = [{"name": name, "url": at.url, "api_key": KEY} for name, at in (("small", small), ("large", large))]
    server = start_server(providers=json.dumps(servers), enable_execution="false", **FAST)
    with Client(server) as client:
        made = [client.ensure(thread) for thread in ("a", "b", "c")]
        assert [session["sandbox"]["provider"] for session in made] == ["small", "large", "large"]
        for session in made:
            assert use(server, session["token"]).status_code == 200
        full = client.negotiate(thread_id="d", mode="ensure", provider_preference="small")
        assert "RATE_LIMITED" in error_of(full, 503, "PROVIDER_UNAVAILABLE")["message"]
        client.of_session("DELETE", made[0]["session_id"])
        assert client.ensure("d")["sandbox"]["provider"] == "small"


@native_only("containers have no spawner")
def test_when_this_server_is_busy_another_is_asked(start_server: Starter, tmp_path: Path) -> None:
    machine = start_machine(start_server, tmp_path / "machine")
    server = start_server(providers=described(machine.url, "relay"), pool_sandboxes="0", **FAST)
    at_once = 2 * len(os.sched_getaffinity(0))

    def ensure(thread: str) -> str:
        with Client(server) as client:
            session = client.ensure(thread)
            assert use(server, session["token"]).json()["stdout"] == "used\n"
            provider: str = session["sandbox"]["provider"]
            return provider

    assert ensure("alone") == "local"
    spawner = spawner_of(server)
    with ThreadPoolExecutor(at_once) as pool:
        os.kill(spawner, signal.SIGSTOP)
        try:
            # As many as it makes at once, and it makes none of them.
            waiting = [pool.submit(ensure, f"waits-{number}") for number in range(at_once)]
            wait_for(lambda: sum(future.running() for future in waiting) == at_once)
            time.sleep(0.5)
            assert ensure("moved") == "relay"
            # At once, not after it was tried here in vain.
            assert not any(future.done() for future in waiting)
        finally:
            os.kill(spawner, signal.SIGCONT)
        # On a slow machine a start may have been given up here meanwhile, and made there.
        assert {future.result() for future in waiting} <= {"local", "relay"}
    assert ensure("later") == "local"


def test_a_binding_leaves_a_server_that_is_gone_for_good(start_server: Starter, tmp_path: Path) -> None:
    gone = start_machine(start_server, tmp_path / "gone")
    server = start_server(providers=described(gone.url, "relay"), idle_timeout_sec="3", reaper_grace_sec="60", **FAST)
    with Client(server) as client:
        before = client.ensure("t", provider_preference="relay")
        assert use(server, before["token"]).status_code == 200
        gone.stop(signal.SIGKILL)
        # It may come back, and its sandbox with it.
        error_of(client.negotiate(thread_id="t", mode="ensure"), 503, "PROVIDER_UNAVAILABLE")
        answers = []

        def has_moved() -> bool:
            answers.append(client.negotiate(thread_id="t", mode="ensure"))
            return answers[-1].status_code == 200

        wait_for(has_moved)
        after = found(answers[-1])
        assert len(answers) > 1
        assert {answer.status_code for answer in answers[:-1]} == {503}
        assert (after["sandbox"]["provider"], after["recreated"]) == ("local", True)
        assert after["session_id"] == before["session_id"]
        assert use(server, after["token"]).json()["stdout"] == "used\n"
        error_of(use(server, before["token"]), 401, "UNAUTHENTICATED")


def test_what_is_needed_here_is_not_idle_there(start_server: Starter, tmp_path: Path) -> None:
    machine = start_machine(
        start_server, tmp_path / "machine", idle_timeout_sec="3", lease_ttl_sec="3", reaper_grace_sec="0.5"
    )
    server = start_server(providers=described(machine.url), **FAST)
    with Client(server) as client:
        kept, left = (client.ensure(name, provider_preference="relay") for name in ("kept", "left"))

        def is_over() -> bool:
            found(client.of_session("POST", kept["session_id"], "/heartbeat"))
            return left["sandbox"]["id"] not in sockets(machine)

        wait_for(is_over)
        assert use(server, kept["token"]).status_code == 200
        error_of(use(server, left["token"]), 401, "UNAUTHENTICATED")
        assert client.ensure("left")["recreated"] is True


def test_what_is_used_there_is_not_idle_here(start_server: Starter, tmp_path: Path) -> None:
    machine = start_machine(start_server, tmp_path / "machine")
    server = start_server(providers=described(machine.url), idle_timeout_sec="1.5", reaper_grace_sec="2", **FAST)
    with Client(server) as client:
        # The one that is used comes last: to make the other may take longer than it may be idle.
        left, used = (client.ensure(name, provider_preference="direct") for name in ("left", "used"))
        assert use(machine, used["token"], command="sleep 5; echo done").json()["stdout"] == "done\n"
        assert client.of_session("GET", left["session_id"]).status_code == 410
        assert use(machine, used["token"]).status_code == 200
        wait_for(lambda: sockets(machine) == [used["sandbox"]["id"]])


@native_only("the files of a container are not on this machine, and cannot be watched")
def test_passes_are_renewed_before_they_expire(start_server: Starter, tmp_path: Path) -> None:
    machine = start_machine(start_server, tmp_path / "machine", token_ttl_sec="3")
    server = start_server(providers=described(machine.url), **FAST)
    with Client(server) as client:
        direct = client.ensure("direct", provider_preference="direct")
        life = datetime.datetime.fromisoformat(direct["expires_at"]).timestamp() - time.time()
        assert life <= 3
        session = client.ensure("relay", provider_preference="relay")
        with open_socket(server, "/v1/files/watch", session["token"]) as connection:
            watch = Socket(connection)
            watch.expect("ready", 60)
            deadline = time.monotonic() + 4
            while time.monotonic() < deadline:
                assert use(server, session["token"]).status_code == 200
                time.sleep(0.2)
            use(server, session["token"], command="echo > last")
            assert watch.expect("created", 60)["path"] == "/workspace/last"
        error_of(use(machine, direct["token"]), 401, "UNAUTHENTICATED")
        expired = client.http.post("/sandbox/refresh", json={"token": direct["token"]})
        error_of(expired, 401, "UNAUTHENTICATED")
        fresh = found(client.of_session("POST", direct["session_id"], "/refresh"))
        assert use(machine, fresh["token"]).status_code == 200


def test_another_server_over_tls(start_server: Starter, tmp_path: Path) -> None:
    machine = start_machine(start_server, tmp_path / "machine")
    certificate, secret = make_certificate(tmp_path)
    with behind_tls(machine.address, certificate, secret) as url:
        known = {"name": "known", "url": url, "api_key": KEY, "ca": str(certificate)}
        strange = {"name": "strange", "url": url, "api_key": KEY}
        server = start_server(providers=json.dumps([known, strange]), **FAST)
        with Client(server) as client:
            refused = client.negotiate(thread_id="t", mode="ensure", provider_preference="strange")
            error_of(refused, 503, "PROVIDER_UNAVAILABLE")
            token = client.ensure("t", provider_preference="known")["token"]
            assert use(server, token).json()["stdout"] == "used\n"
            with open_socket(server, "/v1/exec/ws", token) as connection:
                program = Socket(connection)
                program.send("start", command="echo through")
                program.expect("ready", 60)
                program.read_until("through", 30)


async def test_making_and_releasing_at_once_leaves_nothing_there(start_server: Starter, tmp_path: Path) -> None:
    machine = start_machine(start_server, tmp_path / "machine")
    server = start_server(providers=described(machine.url), pool_sandboxes="0", **FAST)
    dice = random.Random(3)
    async with httpx.AsyncClient(base_url=server.url, headers=server.headers, timeout=60) as client:

        async def someone() -> None:
            for _ in range(8):
                body = {
                    "thread_id": f"t{dice.randrange(3)}",
                    "mode": "ensure",
                    "provider_preference": dice.choice(MODES),
                }
                made = await client.post(SESSIONS, json=body)
                assert made.status_code in (200, 409), made.text
                if made.status_code == 200 and dice.random() < 0.6:
                    gone = await client.delete(f"{SESSIONS}/{made.json()['session_id']}")
                    assert gone.status_code in (204, 404), gone.text

        await asyncio.gather(*(someone() for _ in range(6)))
        for number in range(3):
            assert (await client.delete(f"/v1/sandbox/scopes/thread/t{number}")).status_code == 204
    assert rows(server) == rows(machine) == []
    wait_for(lambda: sockets(machine) == [])


class Impostor(BaseHTTPRequestHandler):
    """Answers everything with what it was told to."""

    answer: tuple[int, bytes] = (200, b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_another_server_is_not_believed_everything(start_server: Starter) -> None:
    impostor = ThreadingHTTPServer(("127.0.0.1", 0), Impostor)
    serving = threading.Thread(target=impostor.serve_forever)
    serving.start()
    url = f"http://127.0.0.1:{impostor.server_address[1]}"
    server = start_server(providers=described(url), auth_jwt_secret=JWT_SECRET, **FAST)
    with Client(server, "ada") as ada, Client(server, "eve") as eve:
        victim = ada.ensure("t")

        def claiming(sandbox_id: str, base: str = "http://h/v1", token: str = "t") -> bytes:
            credentials = {
                "access_token": token,
                "expires_at": "2999-01-01T00:00:00Z",
                "granted_capabilities": ["exec"],
            }
            sandbox = {"id": sandbox_id, "http_base_url": base, "ws_base_url": "ws://h/v1"}
            session = {"session_id": "s", "sandbox": sandbox, "credentials": credentials}
            return json.dumps({**session, "token": token, "expires_at": credentials["expires_at"]}).encode()

        for answer in (
            (200, claiming(victim["sandbox"]["id"])),
            (200, claiming("../../etc")),
            (200, claiming("sb-1", base="file:///etc")),
            (200, claiming("sb-1", token="")),
            (200, b"{}"),
            (200, b"[" * 100_000),
            (200, b"x" * 2_000_000),
            (302, b""),
            (401, b"{}"),
            (500, b"<html>"),
        ):
            Impostor.answer = answer
            for mode in MODES:
                refused = eve.negotiate(thread_id="e", mode="ensure", provider_preference=mode)
                error_of(refused, 503, "PROVIDER_UNAVAILABLE")
        assert use(server, victim["token"]).status_code == 200
    impostor.shutdown()
    serving.join()
    impostor.server_close()


@pytest.mark.parametrize(
    ("providers", "said"),
    [
        ("{", "give a JSON list"),
        ('[{"name": "a", "url": "http://h"}]', "either api_key or api_key_file"),
        ('[{"name": "local", "url": "http://h", "api_key": "secret-x"}]', "name"),
        ('[{"name": "a", "url": "h", "api_key": "secret-x"}]', "http://"),
        ('[{"name": "a", "url": "http://h", "api_key": "secret-x", "mode": "tunnel"}]', "relay or direct"),
        ('[{"name": "a", "url": "http://h", "api_key_file": "/there/is/none"}]', "no key"),
    ],
)
def test_invalid_provider_settings_stop_the_start(start_server: Starter, providers: str, said: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(said)) as failure:
        start_server(providers=providers, **FAST)
    assert "secret-x" not in str(failure.value)


def test_tokens_cannot_be_bound_to_addresses_elsewhere(start_server: Starter) -> None:
    with pytest.raises(AssertionError, match="direct"):
        start_server(providers=described("http://127.0.0.1:9", "direct"), token_bind_address="yes", **FAST)
