"""Watching the files of a sandbox."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed

from tests.api.dataplane.plane import Plane, Socket
from tests.runtimes import native_only
from tidebox.broker.sandboxes.sandbox import LocalSandbox
from tidebox.errors import ProvisionFailed
from tidebox.model.ids import new_id
from tidebox.model.sandbox import Capability
from tidebox.runtime.native.watch import MAX_WATCHES
from tidebox.untrusted_files import tree_watch

pytestmark = native_only("the files of a container are not on this machine, and cannot be watched")

WATCH = "/v1/files/watch"


@pytest.fixture
def there(http: httpx2.Client) -> str:
    """A directory of the test's own, below the workspace."""
    name = new_id("dir")
    run(http, f"mkdir -p /workspace/{name}/deep")
    return name


def run(http: httpx2.Client, line: str, cwd: str = "/workspace") -> None:
    answer = http.post("/v1/exec", json={"command": line, "cwd": cwd}).json()
    assert answer["exit_code"] == 0, answer


@contextmanager
def watching_of(plane: Plane, token: str, path: str, **query: str) -> Iterator[Socket]:
    """A client that is told what happens from now on."""
    address = str(httpx2.URL(WATCH, params={"path": path, **query}))
    with plane.socket(address, token) as socket:
        socket.expect("ready")
        yield socket


def told(socket: Socket, last: str) -> list[tuple[str, str]]:
    """What is told, up to a change of the path that ends with ``last``: what happened to which name."""
    found: list[dict[str, Any]] = []
    while not (found and found[-1].get("path", "").endswith(last)):
        found.append(socket.receive(30))
        assert found[-1]["type"] != "error", found[-1]
    return [(frame["type"], frame["path"].removeprefix("/workspace/").partition("/")[2]) for frame in found]


def closed(socket: Socket) -> int:
    with pytest.raises(ConnectionClosed) as ended:
        socket.connection.recv(30)
    assert ended.value.rcvd is not None
    return ended.value.rcvd.code


def queues() -> int:
    """How many of the kernel's queues this process, which is also the server, has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += "inotify" in os.readlink(link)
        except OSError:
            continue  # closed while we looked
    return found


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_frames_are_exactly_those_of_the_page(plane: Plane, token: str, http: httpx2.Client, there: str) -> None:
    at = f"/workspace/{there}"
    with plane.socket(f"{WATCH}?path={there}", token) as socket:
        assert socket.receive() == {"type": "ready", "path": at, "recursive": False}
        run(http, "echo one > f; mkdir d; mv f g; touch deep/unseen; rm -r d; rm g", at)
        assert [socket.receive() for _ in range(6)] == [
            {"type": "created", "path": f"{at}/f", "entry": "file"},
            {"type": "modified", "path": f"{at}/f", "entry": "file"},
            {"type": "created", "path": f"{at}/d", "entry": "directory"},
            {"type": "moved", "path": f"{at}/g", "entry": "file", "source": f"{at}/f"},
            {"type": "removed", "path": f"{at}/d", "entry": "directory"},
            {"type": "removed", "path": f"{at}/g", "entry": "file"},
        ]
        socket.send("ping")
        socket.expect("pong")
        socket.send("start", command="true")
        assert socket.expect("error")["error"]["code"] == "CONFLICT"
        socket.send("close")
        assert closed(socket) == 1000


def test_what_is_below_and_comes_later(plane: Plane, token: str, http: httpx2.Client, there: str) -> None:
    with watching_of(plane, token, there, recursive="true") as socket:
        run(http, ": > deep/a; mkdir -p new/er", there)
        assert told(socket, "new/er") == [("created", "deep/a"), ("created", "new"), ("created", "new/er")]
        # Moved within, then out of what is watched, and back under another name.
        run(http, f"mv new deep/old; : > deep/old/er/b; mv deep/old ../{there}-away; : > last", there)
        assert told(socket, "last") == [
            ("moved", "deep/old"),
            ("created", "deep/old/er/b"),
            ("removed", "deep/old"),
            ("created", "last"),
        ]
        run(http, f"touch {there}-away/er/unseen; mv {there}-away {there}/back")
        back = {("created", "back"), ("created", "back/er"), ("created", "back/er/b"), ("created", "back/er/unseen")}
        run(http, ": > back/er/end", there)
        assert set(told(socket, "/end")) == back | {("created", "back/er/end")}


def test_an_upload_is_told_of(plane: Plane, token: str, http: httpx2.Client, there: str) -> None:
    with watching_of(plane, token, there) as socket:
        http.post("/v1/files/upload", params={"path": f"{there}/file"}, content=b"content").raise_for_status()
        assert told(socket, "/file")[-1] == ("moved", "file")


def test_names_that_are_no_text(plane: Plane, token: str, http: httpx2.Client, there: str) -> None:
    with watching_of(plane, token, there) as socket:
        run(http, "touch \"$(printf 'x\\377\\ny')\"", there)
        assert told(socket, "y") == [("created", "x�\ny")]


def test_nothing_outside_is_watched(plane: Plane, token: str, http: httpx2.Client, there: str) -> None:
    """Links lead nowhere, neither on the way nor below; only the workspace can be watched."""
    run(http, f"ln -s / root; ln -s /tmp tmp; ln -s ../{there}/deep link", there)
    for path, code in [
        (f"{there}/root", "FILE_CONFLICT"),
        (f"{there}/root/etc", "FILE_CONFLICT"),
        (f"{there}/link", "FILE_CONFLICT"),
        (f"{there}/missing", "FILE_NOT_FOUND"),
        ("/tmp", "INVALID_REQUEST"),
        ("/", "INVALID_REQUEST"),
        ("/workspacex", "INVALID_REQUEST"),
        ("../etc", "INVALID_REQUEST"),
    ]:
        with plane.socket(f"{WATCH}?path={path}", token) as socket:
            assert socket.expect("error")["error"]["code"] == code, path
            assert closed(socket) == 1000
    with watching_of(plane, token, there, recursive="true") as socket:
        run(http, ": > /tmp/unseen; : > tmp/unseen2; : > link/seen", there)
        assert told(socket, "seen") == [("created", "deep/seen")]


@pytest.mark.parametrize("gone", ["rm -r {0}", "mv {0} {0}-elsewhere", "cd {0}; rmdir deep ../{0}; touch /tmp/x"])
def test_the_end_of_the_watched_directory(plane: Plane, token: str, http: httpx2.Client, there: str, gone: str) -> None:
    with watching_of(plane, token, there, recursive="true") as socket:
        run(http, gone.format(there))
        assert told(socket, there)[-1] == ("removed", "")
        assert closed(socket) == 1000


def test_a_flood_is_an_overflow_and_holds_up_nobody(plane: Plane, token: str, http: httpx2.Client, there: str) -> None:
    """More than the kernel keeps, and a client that reads nothing of it: the server does other things meanwhile."""
    # Names so long that all of it never fits into the buffers of a connection, however slow this machine writes them.
    flood = (
        "import os\nfor i in range(60_000):\n"
        "    name = 'x' * 240 + str(i % 7)\n    os.close(os.open(name, os.O_CREAT)); os.unlink(name)"
    )
    with watching_of(plane, token, there, recursive="true") as socket:
        with plane.client(token) as other:
            started = time.monotonic()
            answer = other.post("/v1/exec", json={"command": ["python3", "-c", flood], "cwd": there}).json()
            assert answer["exit_code"] == 0, answer
            assert time.monotonic() - started < 60
        # A directory that nobody was told of is watched all the same.
        run(http, "mkdir missed", there)
        seen = 0
        while (frame := socket.receive(30))["type"] != "overflow":
            seen += 1
        assert seen < 120_000
        run(http, "touch missed/end", there)
        while not frame.get("path", "").endswith("missed/end"):
            frame = socket.receive(30)


def test_watching_needs_a_token_with_the_fs_read_capability(plane: Plane, sandbox: LocalSandbox, there: str) -> None:
    with plane.socket(f"{WATCH}?path={there}", plane.token(sandbox, Capability.FS_WRITE, Capability.EXEC)) as socket:
        assert socket.expect("error")["error"]["code"] == "CAPABILITY_DENIED"
        assert closed(socket) == 1008
    with plane.socket(f"/api/{sandbox.id}/files/watch?path={there}", None) as socket:
        socket.send("auth", token=plane.token(sandbox, Capability.FS_READ))
        socket.expect("auth_ok")
        socket.expect("ready")
    with plane.socket(f"{WATCH}?path={there}", None) as socket:
        socket.send("auth", token="wrong")
        assert socket.expect("error")["error"]["code"] == "UNAUTHENTICATED"
        assert closed(socket) == 1008
    with plane.client(plane.token(sandbox)) as http:
        assert http.get(WATCH).status_code == 426


def test_it_ends_with_the_token_unless_a_new_one_is_shown(plane: Plane, sandbox: LocalSandbox, there: str) -> None:
    with plane.socket(f"{WATCH}?path={there}", plane.token(sandbox, seconds=3.0)) as socket:
        socket.expect("ready")
        socket.send("auth", token=plane.token(sandbox, seconds=5.0))
        renewed = time.monotonic()
        socket.expect("auth_ok")
        assert socket.expect("error", 30)["error"]["code"] == "UNAUTHENTICATED"
        assert closed(socket) == 1008
        assert time.monotonic() - renewed > 4.0


def test_a_sandbox_that_is_watched_is_suspended_all_the_same(plane: Plane) -> None:
    sandbox = plane.sandbox()
    token = plane.token(sandbox)
    with plane.client(token) as http, watching_of(plane, token, ".") as socket:
        try:
            assert plane.runner.submit(sandbox.suspend()).result(30)
        except ProvisionFailed:
            pytest.skip("needs a cgroup, which an ordinary user has only where one is delegated")
        run(http, "touch awake")
        assert socket.expect("created")["path"] == "/workspace/awake"


def test_it_ends_with_the_sandbox(plane: Plane) -> None:
    sandbox = plane.sandbox()
    before = queues()
    with watching_of(plane, plane.token(sandbox), ".") as socket:
        plane.runner.submit(sandbox.box.close()).result(30)
        assert socket.expect("error")["error"]["code"] == "BACKEND_UNAVAILABLE"
        assert closed(socket) == 1000
    eventually(lambda: queues() <= before)


def test_how_much_may_be_watched(
    plane: Plane, token: str, http: httpx2.Client, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = queues()
    open_ones = [plane.socket(f"{WATCH}?path={there}", token) for _ in range(MAX_WATCHES)]
    for opened in open_ones:
        opened.__enter__().expect("ready")
    with plane.socket(f"{WATCH}?path={there}", token) as socket:
        assert socket.expect("error")["error"]["code"] == "RATE_LIMITED"
    for opened in open_ones:
        opened.__exit__(None, None, None)
    eventually(lambda: queues() <= before)
    monkeypatch.setattr(tree_watch, "MAX_DIRECTORIES", 10)
    with watching_of(plane, token, there, recursive="true") as socket:
        run(http, "mkdir $(seq 20)", there)
        while (frame := socket.receive(30))["type"] == "created":
            pass
        assert frame["error"]["code"] == "LIMIT_OUT_OF_RANGE", frame
        assert closed(socket) == 1000
    with plane.socket(f"{WATCH}?path={there}&recursive=true", token) as socket:
        assert socket.expect("error")["error"]["code"] == "LIMIT_OUT_OF_RANGE"
    eventually(lambda: queues() <= before)
