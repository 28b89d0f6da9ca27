"""Runs of one session on docker: they share a container, and of each other they see the workspace and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import Service
from tests.docker.daemon import ask
from tests.patience import patient

# Leaves what outlives a program wherever one can, and tells by its user, of which each container has another, where.
LEAVE = """
import ctypes, os, stat
library = ctypes.CDLL(None)
assert library.shmget(4711, 1 << 20, 0o1600) >= 0
assert library.msgget(4711, 0o1600) >= 0
assert library.semget(4711, 1, 0o1600) >= 0
assert library.mq_open(b"/queue", os.O_RDWR | os.O_CREAT, 0o600, None) >= 0
for place in ("/tmp", "/dev/shm"):
    os.makedirs(place + "/a/b/c")
    open(place + "/a/b/c/file", "w").write("secret")
    os.symlink("/workspace", place + "/link")
    os.chmod(place + "/a/b", 0)
    directory = place + "/a"
    for _ in range(60):
        directory += "/" + "d" * 50
        os.mkdir(directory)
os.chmod("/tmp", 0)
os.chmod("/dev/shm", 0o500)
if not os.fork():
    os.setsid()
    if not os.fork():
        os.execlp("sleep", "sleep", "1000")
    os._exit(0)
os.wait()
open("kept", "w").write("of the first")
os.chmod(".", 0o500)
print(os.getuid())
"""
LOOK = """
import os
for place in ("/tmp", "/dev/shm", "/dev/mqueue"):
    assert os.listdir(place) == [], place
    assert os.stat(place).st_mode & 0o7777 == 0o1777, place
for kind in ("shm", "msg", "sem"):
    assert len(open(f"/proc/sysvipc/{kind}").readlines()) == 1, kind
names = [open(f"/proc/{pid}/comm").read() for pid in os.listdir("/proc") if pid.isdigit()]
assert "sleep\\n" not in names
assert open("kept").read() == "of the first"
open("second", "w").write("x")
print(os.getuid())
"""


def owned(socket: Path, data: Path) -> list[str]:
    """The containers of the server that has this directory."""
    label = f"tidebox.installation={(data / 'docker/installation').read_text()}"
    query = urlencode({"all": "1", "filters": json.dumps({"label": [label]})})
    return [container["Id"] for container in json.loads(ask(socket, "GET", f"/containers/json?{query}"))]


def said(service: Service, session: str, code: str, **options: Any) -> str:
    run = service.run(["python3", "-c", code], session_id=session, **options)
    assert run["phase"] == "completed", (run, service.log(run["id"]))
    return service.log(run["id"])


def test_runs_of_a_session_share_a_container_that_shows_them_no_more_than_the_workspace(
    docker_host: str, start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    socket, data = Path(docker_host.removeprefix("unix://")), tmp_path / "data"
    server = start_server(data_dir=data, default_runtime="docker", docker_host=docker_host)
    with Service.of(server) as service:
        session = service.session()
        first = said(service, session, LEAVE)
        assert said(service, session, LOOK) == first
        # One that did not end by itself leaves it as good; what its program may use is that of each run.
        slow = service.run(["sleep", "60"], session_id=session, timeout_sec=1)
        assert slow["phase"] == "timed_out"
        large = service.run(["python3", "-c", "bytearray(200 << 20)"], session_id=session, memory_mb=64)
        assert large["reason_code"] == "oom_killed"
        whole = service.run(["python3", "-c", "bytearray(100 << 20)"], session_id=session, memory_mb=256)
        assert whole["phase"] == "completed"
        assert said(service, session, LOOK) == first
        small = service.run(["python3", "-c", "print()"], session_id=session)
        assert 0 < small["resource_usage"]["peak_rss_mb"] < 100

        # What the box does not have as it is kept is put into another one.
        answer = service.post(f"/sessions/{session}/files", files={"files": ("kept", b"uploaded")})
        assert answer.status_code == 200, answer.text
        second = said(service, session, "import os; print(os.getuid(), open('kept').read()); os.mkfifo('pipe')")
        assert second.split()[0] != first.strip()
        assert second.split()[1] == "uploaded"
        third = said(service, session, "import os; print(os.getuid(), os.path.exists('pipe'))")
        assert third.split()[0] != second.split()[0]
        assert third.split()[1] == "False"

        # Those that served before are on their way out.
        deadline = time.monotonic() + patient(30)
        while len(there := owned(socket, data)) > 1:
            assert time.monotonic() < deadline, there
            time.sleep(0.02)
        (kept,) = there
        other = service.session()
        assert said(service, other, "import os; print(os.getuid(), os.listdir('.'))").split()[0] != third.split()[0]
        # Removed by somebody else it is missed by nobody.
        ask(socket, "DELETE", f"/containers/{kept}?force=1")
        assert said(service, session, "print(open('second').read())") == "x\n"
        for ended in (session, other):
            assert service.http.delete(f"/sessions/{ended}").status_code in (200, 204)
        deadline = time.monotonic() + patient(30)
        while owned(socket, data):
            assert time.monotonic() < deadline, owned(socket, data)
            time.sleep(0.02)
