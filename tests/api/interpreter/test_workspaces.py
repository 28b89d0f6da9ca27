"""Workspaces of sessions: what one run leaves the next one finds, also after the server was killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.interpreter.service import Service


@pytest.fixture
def session(ada: Service) -> str:
    """A session of ada's."""
    return ada.session()


def listed(client: Service, session: str) -> dict[str, Any]:
    """The files of a session."""
    response = client.get(f"/sessions/{session}/files")
    assert response.status_code == 200, response.text
    return {item["path"]: item for item in response.json()["items"]}


def python(client: Service, session: str, code: str, **options: Any) -> str:
    """Run Python code in a session; what it wrote."""
    run = client.run(["python", "-c", code], session_id=session, **options)
    assert run["phase"] == "completed", (run, client.log(run["id"]))
    return client.log(run["id"])


def test_what_a_run_leaves_the_next_one_finds(ada: Service, session: str) -> None:
    python(ada, session, "import os; os.makedirs('a/b'); open('a/b/c', 'w').write('kept'); os.mkdir('empty')")
    assert python(ada, session, "import os; print(open('a/b/c').read(), sorted(os.listdir('.')))") == (
        "kept ['a', 'empty']\n"
    )
    python(ada, session, "import os; os.remove('a/b/c')")
    assert listed(ada, session) == {}


def test_sessions_do_not_see_each_other(ada: Service, session: str) -> None:
    other = ada.session()
    python(ada, session, "open('secret', 'w').write('x')")
    assert python(ada, other, "import os; print(os.listdir('.'))") == "[]\n"
    assert ada.log(ada.run(["python", "-c", "import os; print(os.listdir('.'))"])["id"]) == "[]\n"


def test_modes_times_links_and_holes_stay(ada: Service, session: str) -> None:
    python(
        ada,
        session,
        """
import os
open('tool', 'w').write('#!/bin/sh')
os.chmod('tool', 0o751)
os.utime('tool', (1_500_000_000, 1_500_000_000))
os.symlink('tool', 'link')
os.symlink('/etc/passwd', 'out')
os.link('tool', 'second')
with open('holes', 'wb') as file:
    file.seek(100 * 1024 * 1024)
    file.write(b'end')
os.mkdir('closed'); open('closed/inside', 'w').write('x'); os.chmod('closed/inside', 0); os.chmod('closed', 0)
open(b'not-\\xff-text', 'w').write('x')
""",
    )
    out = python(
        ada,
        session,
        """
import os
found = os.stat('tool')
print(oct(found.st_mode & 0o7777), int(found.st_mtime), os.readlink('link'), os.readlink('out'), open('second').read())
print(os.stat('holes').st_size, os.stat('holes').st_blocks < 100, open('holes', 'rb').read()[-3:])
print(open('closed/inside').read(), os.path.exists(b'not-\\xff-text'), os.stat('tool').st_uid == os.getuid())
""",
    )
    assert out == ("0o751 1500000000 tool /etc/passwd #!/bin/sh\n104857603 True b'end'\nx True True\n")


def test_a_link_out_of_the_workspace_is_never_followed(
    ada: Service, session: str, interpreter_server: RunningServer, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("secret of the machine")
    python(ada, session, f"import os; os.symlink({str(canary)!r}, 'out'); os.symlink({str(tmp_path)!r}, 'dir')")
    assert ada.get(f"/sessions/{session}/files/out").status_code == 404
    assert ada.get(f"/sessions/{session}/files/dir/canary").status_code == 404
    files = [("files", ("out", b"mine")), ("files", ("dir/canary", b"mine"))]
    assert ada.post(f"/sessions/{session}/files", files=files).status_code == 200
    assert canary.read_text() == "secret of the machine"
    assert os.listdir(tmp_path) == ["canary"]
    assert ada.get(f"/sessions/{session}/files/dir/canary").text == "mine"
    found = listed(ada, session)
    assert not found["out"]["is_link"]


@pytest.mark.parametrize(
    "make",
    [
        "os.mkfifo('odd')",
        "socket.socket(socket.AF_UNIX).bind('odd')",
    ],
)
def test_what_is_no_file_is_left_out(ada: Service, session: str, make: str) -> None:
    run = ada.run(["python", "-c", f"import os, socket; {make}; open('good', 'w').write('x')"], session_id=session)
    assert set(listed(ada, session)) == {"good"}
    assert run["resource_usage"]["files_left_out"] == {"workspace_kind": 1}


def test_a_deep_tree_is_kept_as_far_as_it_is_reasonable(ada: Service, session: str) -> None:
    began = time.monotonic()
    python(
        ada,
        session,
        "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nopen('bottom', 'w').write('x')",
    )
    assert time.monotonic() - began < 15
    assert python(ada, session, "import os; print(os.path.isdir('/'.join('d' * 60)))") == "True\n"


def test_many_files(ada: Service, session: str) -> None:
    python(ada, session, "for number in range(5000): open(f'f{number}', 'w').write(str(number))")
    out = python(ada, session, "import os; print(len(os.listdir('.')), open('f4999').read())")
    assert out == "5000 4999\n"


def test_a_run_that_fails_keeps_what_it_wrote(ada: Service, session: str) -> None:
    run = ada.run(["python", "-c", "open('a', 'w').write('x'); raise SystemExit(3)"], session_id=session)
    assert run["phase"] == "failed"
    assert set(listed(ada, session)) == {"a"}


def test_a_run_that_is_killed_keeps_what_it_wrote(ada: Service, session: str) -> None:
    run = ada.start(["sh", "-c", "echo x > a; echo ready; sleep 60"], session_id=session)
    ada.wait(run, "running")
    deadline = time.monotonic() + 30
    while "ready" not in ada.log(run):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ada.post(f"/runs/{run}/cancel")
    assert ada.wait(run)["phase"] == "killed"
    assert set(listed(ada, session)) == {"a"}


def test_a_run_that_takes_too_long_keeps_what_it_wrote(ada: Service, session: str) -> None:
    run = ada.run(["sh", "-c", "echo x > a; sleep 60"], session_id=session, timeout_sec=0.5)
    assert run["phase"] == "timed_out"
    assert set(listed(ada, session)) == {"a"}


def test_runs_of_a_session_take_turns(ada: Service, session: str) -> None:
    code = "import os\nn = int(open('n').read()) if os.path.exists('n') else 0\nopen('n', 'w').write(str(n + 1))"
    runs = [ada.start(["python", "-c", code], session_id=session) for _ in range(6)]
    assert [ada.wait(run)["phase"] for run in runs] == ["completed"] * 6
    assert ada.get(f"/sessions/{session}/files/n").text == "6"


def test_processes_that_outlive_the_program_change_nothing_afterwards(ada: Service, session: str) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        open('mark', 'w').write(str(time.time()))
time.sleep(0.2)
"""
    python(ada, session, code)
    first = ada.get(f"/sessions/{session}/files/mark").text
    time.sleep(0.2)
    assert ada.get(f"/sessions/{session}/files/mark").text == first


def test_a_deleted_session_leaves_no_files(ada: Service, session: str, interpreter_server: RunningServer) -> None:
    python(ada, session, "open('a', 'w').write('x')")
    place = interpreter_server.data_dir / "sessions" / session
    assert (place / "workspace" / "a").read_text() == "x"
    assert ada.http.delete(f"/sessions/{session}").status_code == 200
    assert not place.exists()
    assert ada.get(f"/sessions/{session}/files").status_code == 404


def test_an_expired_session_leaves_no_files(ada: Service, interpreter_server: RunningServer) -> None:
    session = ada.session(ttl_sec=1)
    ada.post(f"/sessions/{session}/files", files=[("files", ("a", b"1"))])
    place = interpreter_server.data_dir / "sessions" / session
    assert place.exists()
    deadline = time.monotonic() + 30
    while place.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_files_of_the_session_are_the_servers_own(
    ada: Service, session: str, interpreter_server: RunningServer
) -> None:
    python(ada, session, "import os; open('a', 'w').write('x'); os.chmod('a', 0o4777)")
    directory = interpreter_server.data_dir / "sessions" / session
    found = (directory / "workspace" / "a").stat()
    assert (found.st_uid, found.st_mode & 0o7777) == (os.getuid(), 0o777)
    assert directory.stat().st_mode & 0o077 == 0
    assert os.listdir(directory) == ["workspace"]


# After a crash.


def test_files_survive_a_server_that_is_killed(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = start_server(data_dir=data, rate_limit="off", **NO_CELLS)
    with Service.of(first) as client:
        session = client.session()
        client.post(f"/sessions/{session}/files", files=[("files", ("uploaded", b"1"))])
        python(client, session, "open('written', 'w').write('22')")
        client.wait(client.start(["sh", "-c", "echo x > half; sleep 60"], session_id=session), "running")
    first.stop(signal.SIGKILL)
    second = start_server(data_dir=data, rate_limit="off", **NO_CELLS)
    with Service.of(second) as client:
        assert {path: item["size"] for path, item in listed(client, session).items()} == {"uploaded": 1, "written": 2}
        assert python(client, session, "print(open('written').read())") == "22\n"


@pytest.mark.parametrize("moment", ["between", "before", "after"])
def test_a_crash_leaves_the_old_state_or_the_new(
    start_server: Callable[..., RunningServer], tmp_path: Path, moment: str
) -> None:
    data = tmp_path / "data"
    first = start_server(data_dir=data, rate_limit="off", **NO_CELLS)
    with Service.of(first) as client:
        session = client.session()
        client.post(f"/sessions/{session}/files", files=[("files", ("state", b"old"))])
    first.stop(signal.SIGKILL)
    place = data / "sessions" / session
    fresh = place / "next-xyz"
    fresh.mkdir()
    (fresh / "state").write_text("new")
    if moment != "before":
        (place / "workspace").rename(place / "old")
    if moment == "after":
        fresh.rename(place / "workspace")
    second = start_server(data_dir=data, rate_limit="off", **NO_CELLS)
    with Service.of(second) as client:
        assert client.get(f"/sessions/{session}/files/state").text == ("new" if moment == "after" else "old")
    assert os.listdir(place) == ["workspace"]


def test_files_that_nobody_knows_are_removed_at_the_start(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for name in ("sessions/ses-unknown/workspace", "runs/run-unknown/artifacts", "uploads/up-x/parts"):
        (data / name).mkdir(parents=True)
        (data / name / "file").write_text("x")
    server = start_server(data_dir=data, rate_limit="off", **NO_CELLS)
    with Service.of(server) as client:
        client.session()
    assert os.listdir(data / "sessions") == os.listdir(data / "runs") == os.listdir(data / "uploads") == []
