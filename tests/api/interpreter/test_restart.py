"""The server is killed in the middle of its work and started again: what it acknowledged is still there."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import error_of
from tests.api.interpreter.streams import Streams, is_event, output, saying
from tests.boxes import count_leaves, descendants
from tests.runtimes import native_only

StartServer = Callable[..., RunningServer]
StreamsOf = Callable[..., Streams]

# A server that is started under load takes seconds until its REST routes are there, and these start several.
pytestmark = pytest.mark.timeout(300)

COUNTER = (
    "import pathlib\n"
    "first, second = pathlib.Path('first'), pathlib.Path('second')\n"
    "number = int(first.read_text()) + 1 if first.exists() else 1\n"
    "first.write_text(str(number)); second.write_text(str(number)); print(number)"
)
SHOW = (
    "import pathlib\n"
    "print(*(pathlib.Path(name).read_text() if pathlib.Path(name).exists() else '0' for name in ('first', 'second')))"
)


def kill(server: RunningServer) -> None:
    """Kill it as nobody can prepare for, and see that nothing of it lives on."""
    below = descendants(server.pid)
    server.process.kill()
    server.wait()
    deadline = time.monotonic() + 30
    while left := [pid for pid in below if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"survived: {left}"
        time.sleep(0.02)
    while any(count_leaves(pid)["populated"] for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_was_acknowledged_survives_the_server(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", max_concurrent_runs="1")
    before = streams_of(server)
    session_id = before.session(base_image="python:3.11-slim")
    upload = before.post(f"/sessions/{session_id}/files", files={"files": ("data.txt", b"uploaded")})
    assert upload.status_code == 200, upload.text
    made = before.submit(
        ["python3", "-c", "open('made.txt', 'w').write('made'); print('é', open('data.txt').read())"],
        session_id=session_id,
        capture_patterns=["*.txt"],
        key="done",
    ).json()
    done = before.wait(made["run_id"])
    assert done["phase"] == "completed", done
    done_frames = before.frames(done["run_id"])
    files = {item["path"]: item["size"] for item in before.get(f"/runs/{done['run_id']}/artifacts").json()["items"]}
    assert files == {"made.txt": 4, "data.txt": 8}

    sleeper = saying("before the end") + "; import time; time.sleep(60)"
    interrupted = before.submit(["python3", "-c", sleeper], key="interrupted").json()["run_id"]
    with before.stream(interrupted) as stream:
        seen = stream.until("stdout")
        queued = [
            before.submit(["python3", "-c", f"print({number})"], key=f"queued-{number}").json() for number in (1, 2)
        ]
        in_session = before.start(["cat", "made.txt"], session_id=session_id)
        assert [run["phase"] for run in queued] == ["queued", "queued"]
        time.sleep(0.2)
        kill(server)
        with contextlib.suppress(ConnectionClosed):
            while True:
                seen.append(stream.next())

    again = start_server(data_dir=server.data_dir, rate_limit="off", max_concurrent_runs="1")
    after = streams_of(again)

    # What was over is as it was, to the byte.
    shown = after.shown(done["run_id"])
    assert {**shown, "log_stream_url": None} == {**done, "log_stream_url": None}
    assert after.frames(done["run_id"]) == done_frames
    assert after.get(f"/runs/{done['run_id']}/artifacts/made.txt").content == b"made"
    assert after.log(done["run_id"]) == "é uploaded\n"

    # What ran is over, and says why; its readers find what they have seen, and the end.
    failed = after.shown(interrupted)
    assert (failed["phase"], failed["reason_code"]) == ("failed", "server_restarted")
    assert failed["finished_at"] is not None
    frames = after.frames(interrupted)
    assert frames[: len(seen)] == seen
    assert output(frames) == b"before the end\n"
    assert frames[-1]["data"]["reason_code"] == "server_restarted"
    resumed = after.frames(interrupted, f"?from_seq={seen[-1]['seq'] + 1}")
    assert all(frame["seq"] > seen[-1]["seq"] for frame in resumed)

    # What waited has its turn.
    for number, run in enumerate(queued, start=1):
        assert after.wait(run["run_id"])["phase"] == "completed"
        frames = after.frames(run["run_id"])
        assert output(frames) == b"%d\n" % number
        assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    after.wait(in_session)
    assert after.log(in_session) == "made"

    # Keys still stand for what they made.
    for key, run_id, code in (
        ("interrupted", interrupted, sleeper),
        ("queued-1", queued[0]["run_id"], "print(1)"),
        ("queued-2", queued[1]["run_id"], "print(2)"),
    ):
        replayed = after.submit(["python3", "-c", code], key=key)
        assert replayed.json()["run_id"] == run_id
        error = error_of(after.submit(["python3", "-c", "print('other')"], key=key), 409, "idempotency_conflict")
        assert error["details"]["prior_id"] == run_id
    assert after.get("/runs").json()["total"] == 5

    # And the session goes on.
    run_id = after.start(["python3", "-c", "import os; print(sorted(os.listdir()))"], session_id=session_id)
    after.wait(run_id)
    assert "'data.txt'" in after.log(run_id)
    assert "'made.txt'" in after.log(run_id)


def test_servers_killed_again_and_again_lose_nothing(start_server: StartServer, streams_of: StreamsOf) -> None:
    dice = random.Random(4)
    server = start_server(rate_limit="off", max_concurrent_runs="2", queue_ttl_sec="600")
    acknowledged: dict[str, str] = {}
    for round in range(2):
        client = streams_of(server)
        some = threading.Event()

        def submit(number: int, client: Streams = client, round: int = round, some: threading.Event = some) -> None:
            key = f"{round}-{number}"
            with contextlib.suppress(httpx.TransportError):
                answer = client.submit(["python3", "-c", f"print({number})"], key=key)
                if answer.status_code in (200, 202):
                    acknowledged[key] = answer.json()["run_id"]

        client.run(["true"])
        with ThreadPoolExecutor(4) as pool:
            pending = [pool.submit(submit, number) for number in range(24)]
            time.sleep(dice.uniform(0.05, 0.5))
            kill(server)
            for each in pending:
                each.result()
        server = start_server(data_dir=server.data_dir, rate_limit="off", max_concurrent_runs="2", queue_ttl_sec="600")
    last = streams_of(server)
    assert len(acknowledged) > 3
    for key, run_id in acknowledged.items():
        run = last.wait(run_id, seconds=60)
        number = key.partition("-")[2]
        if run["phase"] == "completed":
            assert last.log(run_id) == f"{number}\n"
        else:
            assert (run["phase"], run["reason_code"]) == ("failed", "server_restarted")
        assert is_event(last.frames(run_id)[-1], "end")
        assert last.submit(["python3", "-c", f"print({number})"], key=key).json()["run_id"] == run_id


def test_a_workspace_is_in_its_old_or_its_new_state(start_server: StartServer, streams_of: StreamsOf) -> None:
    dice = random.Random(7)
    server = start_server(rate_limit="off")
    session_id = streams_of(server).session(base_image="python:3.11-slim")
    told = 0
    for _ in range(2):
        client = streams_of(server)
        client.run(["python3", "-c", SHOW], session_id=session_id)
        until = time.monotonic() + dice.uniform(0.05, 0.4)
        current = ""
        while time.monotonic() < until:
            current = client.start(["python3", "-c", COUNTER], session_id=session_id)
            if client.wait(current)["phase"] == "completed":
                told = int(client.log(current))
        client.start(["python3", "-c", COUNTER], session_id=session_id)
        time.sleep(dice.uniform(0, 0.03))
        kill(server)
        server = start_server(data_dir=server.data_dir, rate_limit="off")
        after = streams_of(server)
        run = after.run(["python3", "-c", SHOW], session_id=session_id)
        first, second = map(int, after.log(run["run_id"]).split())
        assert first == second
        # What a run was said to have done is there; the one in progress may be.
        assert first in (told, told + 1)
        told = first


def test_a_server_that_is_told_to_stop_leaves_the_queue_to_the_next(
    start_server: StartServer, streams_of: StreamsOf
) -> None:
    options: dict[str, Any] = {"rate_limit": "off", "max_concurrent_runs": "1", "drain_grace_sec": "0.3"}
    server = start_server(**options)
    before = streams_of(server)
    running = before.start(["sleep", "60"])
    waiting = before.start(["echo", "at last"])
    before.wait(running, "running")
    with before.stream(running) as followed, before.stream(waiting) as left:
        followed.next()
        frames = [left.next()]
        assert server.stop(signal.SIGTERM) == 0
        end = followed.rest()[-1]["data"]
        with contextlib.suppress(ConnectionClosed):
            while True:
                frames.append(left.next())
        assert left.socket.close_code == 1001
    assert (end["phase"], end["reason_code"]) == ("killed", "server_shutdown")
    assert [frame["data"].get("code") for frame in frames if is_event(frame, "error")] == ["shutting_down"]
    after = streams_of(start_server(data_dir=server.data_dir, **options))
    assert after.wait(waiting)["phase"] == "completed"
    numbered = [frame["seq"] for frame in after.frames(waiting)]
    assert numbered == list(range(1, len(numbered) + 1))
    assert after.log(waiting) == "at last\n"


@native_only("containers have no spawner")
def test_a_killed_spawner_fails_what_runs_and_nothing_else(start_server: StartServer, streams_of: StreamsOf) -> None:
    server = start_server(rate_limit="off", max_concurrent_runs="1")
    streams = streams_of(server)
    running = streams.python(saying("up") + "; import time; time.sleep(60)")["run_id"]
    waiting = streams.start(["echo", "at last"])
    with streams.stream(running) as stream:
        stream.until("stdout")
        spawner = next(pid for pid in descendants(server.pid) if parent_of(pid) == server.pid)
        os.kill(spawner, signal.SIGKILL)
        end = stream.rest()[-1]["data"]
    assert (end["phase"], end["reason_code"], end["exit_code"]) == ("failed", "runtime_error", None)
    assert streams.wait(waiting)["phase"] == "completed"
    assert streams.log(running) == "up\n"


def parent_of(pid: int) -> int:
    """Its parent's pid; 0 if it has gone meanwhile."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("PPid:\t")[2].split()[0])
    except OSError:
        return 0


def test_neither_code_nor_variables_of_a_run_are_left_on_the_disk(
    start_server: StartServer, streams_of: StreamsOf
) -> None:
    server = start_server(rate_limit="off", max_concurrent_runs="1")
    client = streams_of(server)
    words = {"code": "its-secret-code", "env": "its-secret-variable", "file": "its-secret-file"}
    content = base64.b64encode(f"# {words['file']}".encode()).decode()
    body = {"env": {"TOKEN": words["env"]}, "files": [{"path": "f", "content_b64": content}]}

    def left() -> list[tuple[str, str]]:
        files = [path for path in server.data_dir.rglob("*") if path.is_file()]
        return [
            (path.name, name) for path in files for name, word in words.items() if word.encode() in path.read_bytes()
        ]

    blocker = client.start(["sleep", "60"])
    waiting = client.start(["sh", "-c", f": {words['code']}"], **body)
    assert {name for name, _ in left()} == {waiting}
    client.post(f"/runs/{blocker}/cancel")
    assert client.wait(waiting)["phase"] == "completed"
    assert left() == []
    running = client.start(["sh", "-c", f": {words['code']}; sleep 60"], **body)
    client.wait(running, "running")
    kill(server)
    assert left() == []
