"""Uploads to sessions: whatever is sent gets there whole or not at all."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import lzma
import os
import tarfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.api.conftest import NO_CELLS, RunningServer, finish, start
from tests.api.interpreter.service import JWT_SECRET, Service
from tests.unit.untrusted_files.archives import directory, file, hardlink, special, symlink, tar
from tests.unit.untrusted_files.staged import zip_of

TAR = {"Content-Type": "application/x-tar"}


@pytest.fixture
def session(ada: Service) -> str:
    """A session of ada's."""
    return ada.session()


def listed(client: Service, session: str) -> dict[str, int]:
    """The files of a session and their sizes."""
    response = client.get(f"/sessions/{session}/files")
    assert response.status_code == 200, response.text
    return {item["path"]: item["size"] for item in response.json()["items"]}


def upload(client: Service, session: str, *files: tuple[str, bytes], **options: Any) -> httpx.Response:
    """Send a form with files."""
    return client.post(f"/sessions/{session}/files", files=[("files", pair) for pair in files], **options)


def refused(response: httpx.Response, status: int, member: str | None = None) -> dict[str, Any]:
    """The error of an answer that is one."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    if member is not None:
        assert error["details"]["member"] == member
        assert member in error["message"]
    return error


# What is taken.


def test_the_example_of_the_document(ada: Service, session: str) -> None:
    response = upload(ada, session, ("main.py", b'print("Hello from sandbox")\n\n'))
    assert response.status_code == 200
    answer = response.json()
    assert answer["session_id"] == answer["id"] == session
    assert (answer["bytes_received"], answer["file_count"]) == (29, 1)


def test_files_of_a_form_keep_their_paths(ada: Service, session: str) -> None:
    content = os.urandom(300_000)
    response = upload(ada, session, ("main.py", b"1"), ("src/lib/data.bin", content), ("ünïcode name.txt", b""))
    assert response.json()["file_count"] == 3
    assert listed(ada, session) == {"main.py": 1, "src/lib/data.bin": 300_000, "ünïcode name.txt": 0}
    assert ada.get(f"/sessions/{session}/files/src/lib/data.bin").content == content


@pytest.mark.parametrize(
    ("kind", "pack"),
    [
        ("application/x-tar", bytes),
        ("application/gzip", gzip.compress),
        ("application/x-bzip2", bz2.compress),
        ("application/x-xz", lzma.compress),
        ("application/x-tar", gzip.compress),
    ],
)
def test_an_archive_as_the_body(ada: Service, session: str, kind: str, pack: Any) -> None:
    body = pack(tar([directory("d"), file("d/a.txt", b"hello"), file("b", b"")]))
    response = ada.post(f"/sessions/{session}/files", content=body, headers={"Content-Type": kind})
    assert response.status_code == 200, response.text
    assert response.json()["bytes_received"] == len(body)
    assert listed(ada, session) == {"d/a.txt": 5, "b": 0}


def test_a_zip_as_the_body(ada: Service, session: str) -> None:
    body = zip_of({"d/a.txt": b"hello"})
    response = ada.post(f"/sessions/{session}/files", content=body, headers={"Content-Type": "application/zip"})
    assert response.status_code == 200, response.text
    assert listed(ada, session) == {"d/a.txt": 5}


def test_archives_in_a_form_are_unpacked_unless_they_are_wanted_whole(ada: Service, session: str) -> None:
    packed = gzip.compress(tar([file("inside.txt", b"1")]))
    upload(ada, session, ("code.tar.gz", packed), ("more.zip", zip_of({"z.txt": b"22"})), ("plain", b"333"))
    assert listed(ada, session) == {"inside.txt": 1, "z.txt": 2, "plain": 3}
    upload(ada, session, ("code.tar.gz", packed), params={"expand": "false"})
    assert listed(ada, session)["code.tar.gz"] == len(packed)


def test_small_files_as_json(ada: Service, session: str) -> None:
    files = [{"path": "a/b.txt", "content_b64": base64.b64encode(b"hello").decode()}]
    response = ada.post(f"/sessions/{session}/files", json={"files": files})
    assert response.json()["file_count"] == 1
    assert listed(ada, session) == {"a/b.txt": 5}


def test_a_body_of_unknown_length(ada: Service, session: str) -> None:
    body = tar([file("a", b"1" * 1000)])

    def pieces() -> Iterator[bytes]:
        for start_of_piece in range(0, len(body), 100):
            yield body[start_of_piece : start_of_piece + 100]

    response = ada.post(f"/sessions/{session}/files", content=pieces(), headers=TAR)
    assert response.status_code == 200, response.text
    assert listed(ada, session) == {"a": 1000}


def test_a_later_upload_replaces_and_adds(ada: Service, session: str) -> None:
    upload(ada, session, ("a", b"1"), ("d/b", b"1"), ("c", b"1"))
    response = upload(ada, session, ("a", b"22"), ("d/e", b"333"), ("c/now/a/directory", b"4"))
    assert response.json()["workspace_files"] == 4
    assert response.json()["workspace_bytes"] == 2 + 1 + 3 + 1
    assert listed(ada, session) == {"a": 2, "d/b": 1, "d/e": 3, "c/now/a/directory": 1}


def test_what_was_uploaded_is_there_in_a_run(ada: Service, session: str) -> None:
    upload(ada, session, ("main.py", b"import lib.x; print(lib.x.WORD)"), ("lib/x.py", b"WORD = 'uploaded'"))
    run = ada.run(["python", "main.py"], session_id=session)
    assert run["phase"] == "completed"
    assert ada.log(run["id"]) == "uploaded\n"


def test_files_that_are_left_out(ada: Service, session: str) -> None:
    body = tar([file(".git/config", b"x"), file("a.py", b"1"), file("b.log", b"2"), file(".dockerignore", b"*.log\n")])
    response = ada.post(f"/sessions/{session}/files?ignore=*.tmp", content=body, headers=TAR)
    assert response.json()["ignored_count"] == 2
    assert set(listed(ada, session)) == {"a.py", ".dockerignore"}
    response = upload(ada, session, ("x.tmp", b"1"), ("y.txt", b"1"), data={"ignore": "*.tmp\n# a comment\n"})
    assert (response.json()["file_count"], response.json()["ignored_count"]) == (1, 1)


def test_uploads_of_a_second_user_are_not_let_in(ada: Service, bob: Service, service: Service, session: str) -> None:
    assert upload(bob, session, ("a", b"1")).status_code == 404
    assert bob.get(f"/sessions/{session}/files").status_code == 404
    assert upload(service, session, ("a", b"1")).status_code == 200
    assert ada.get(f"/sessions/{session}/files/a").text == "1"


# What is not taken: nothing of it is written.

HOSTILE = {
    "traversal": (file("../x", b"1"), "../x"),
    "traversal-inside": (file("a/../../x", b"1"), "a/../../x"),
    "absolute": (file("/etc/cron.d/x", b"1"), "/etc/cron.d/x"),
    "backslash": (file("..\\x", b"1"), "..\\\\x"),
    "drive": (file("C:/x", b"1"), "C:/x"),
    "control": (file("a\x1b[31mb", b"1"), "a\\x1b[31mb"),
    "symlink": (symlink("link", "/etc/passwd"), "link"),
    "hardlink": (hardlink("link", "good"), "link"),
    "device": (special("null", tarfile.CHRTYPE, devmajor=1, devminor=3), "null"),
    "fifo": (special("pipe", tarfile.FIFOTYPE), "pipe"),
    "twice": (file("./good", b"1"), "./good"),
    "below-a-file": (file("good/x", b"1"), "good/x"),
}


@pytest.mark.parametrize("trick", HOSTILE)
@pytest.mark.parametrize("how", ["body", "form"])
def test_a_hostile_member_refuses_the_whole_archive(ada: Service, session: str, trick: str, how: str) -> None:
    upload(ada, session, ("before", b"1"))
    member, shown = HOSTILE[trick]
    body = tar([file("good", b"1"), member, file("after", b"1")], tarfile.GNU_FORMAT)
    if how == "body":
        response = ada.post(f"/sessions/{session}/files", content=body, headers=TAR)
    else:
        response = upload(ada, session, ("plain", b"1"), ("archive.tar", body))
    error = refused(response, 400)
    assert error["code"] == "invalid_request"
    assert error["details"]["member"].replace("\\\\", "\\") == shown.replace("\\\\", "\\")
    assert listed(ada, session) == {"before": 1}


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "a/../../b", "C:/x"])
def test_a_hostile_name_of_a_form(ada: Service, session: str, name: str) -> None:
    # As raw bytes: clients have ideas of their own about such names.
    body = (
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\n1\r\n--b--\r\n'
        % name.replace("\\", "\\\\").encode()
    )
    response = ada.post(
        f"/sessions/{session}/files", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    refused(response, 400)
    assert listed(ada, session) == {}


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a\\b", "", ".", "a/", "a\x00b"])
def test_a_hostile_name_of_json(ada: Service, session: str, path: str) -> None:
    response = ada.post(f"/sessions/{session}/files", json={"files": [{"path": path, "content_b64": ""}]})
    refused(response, 400)
    assert listed(ada, session) == {}


def test_the_same_file_twice_in_a_form(ada: Service, session: str) -> None:
    refused(upload(ada, session, ("a", b"1"), ("./a", b"2")), 400, "./a")
    assert listed(ada, session) == {}


def test_a_file_where_the_workspace_has_a_directory(ada: Service, session: str) -> None:
    upload(ada, session, ("d/a", b"1"))
    refused(upload(ada, session, ("b", b"1"), ("d", b"2")), 400, "d")
    assert listed(ada, session) == {"d/a": 1}


def test_more_files_than_allowed(ada: Service, session: str) -> None:
    names = [f"f{number}" for number in range(1001)]
    body = tar([file(name, b"") for name in names])
    error = refused(ada.post(f"/sessions/{session}/files", content=body, headers=TAR), 413, "f1000")
    assert error["code"] == "payload_too_large"
    assert error["details"]["limit"] == 1000
    refused(upload(ada, session, *((name, b"") for name in names)), 413)
    assert listed(ada, session) == {}


def test_deeper_than_allowed(ada: Service, session: str) -> None:
    fits = "/".join("abcdefghij") + "/file"
    deep = "/".join("abcdefghijk") + "/file"
    assert upload(ada, session, (fits, b"1")).status_code == 200
    refused(upload(ada, session, (deep, b"1")), 413, deep)


def test_a_bomb(ada: Service, session: str) -> None:
    bomb = gzip.compress(tar([file("zeros", bytes(257 << 20))]), 1)
    began = time.monotonic()
    refused(ada.post(f"/sessions/{session}/files", content=bomb, headers=TAR), 413, "zeros")
    assert time.monotonic() - began < 20
    zipped = zip_of({"zeros": bytes(257 << 20)})
    refused(
        ada.post(f"/sessions/{session}/files", content=zipped, headers={"Content-Type": "application/zip"}),
        413,
        "zeros",
    )
    assert listed(ada, session) == {}


def test_a_workspace_that_would_be_too_large(small_server: RunningServer) -> None:
    with Service.of(small_server, "ada") as ada:
        session = ada.session()
        assert upload(ada, session, ("a", bytes(700_000))).status_code == 200
        error = refused(upload(ada, session, ("b", bytes(700_000))), 413)
        assert "workspace" in error["message"]
        assert listed(ada, session) == {"a": 700_000}
        assert upload(ada, session, ("a", bytes(1_000_000))).status_code == 200


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server that takes little."""
    server = start(
        tmp_path / "data",
        auth_jwt_secret=JWT_SECRET,
        rate_limit="off",
        max_upload_mb="1",
        workspace_cap_mb="1",
        store_backend="memory",
        **NO_CELLS,
    )
    yield server
    finish(server)


def test_an_upload_that_is_too_long(small_server: RunningServer) -> None:
    with Service.of(small_server, "ada") as ada:
        session = ada.session()
        error = refused(upload(ada, session, ("a", bytes((1 << 20) + 1))), 413)
        assert error["details"]["limit"] == 1 << 20
        assert upload(ada, session, ("a", bytes(1 << 20))).status_code == 200
        too_long = bytes(8 << 20)
        refused(ada.post(f"/sessions/{session}/files", content=too_long, headers=TAR), 413)
        refused(ada.post(f"/sessions/{session}/files", content=iter([too_long]), headers=TAR), 413)
        assert os.listdir(small_server.data_dir / "uploads") == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=b"),
        (b"--b--\r\n", "multipart/form-data; boundary=b"),
        (b"x", "multipart/form-data"),
        (b"no form at all", "multipart/form-data; boundary=b"),
        (
            b'--b\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\nhalf',
            "multipart/form-data; boundary=b",
        ),
        (b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\n1\r\n--b--\r\n', "multipart/form-data; boundary=b"),
        (b"--b\r\nContent-Type: text/plain\r\n\r\n1\r\n--b--\r\n", "multipart/form-data; boundary=b"),
        (b"not a tar", "application/x-tar"),
        (b"", "application/x-tar"),
        (b"", "application/zip"),
        (b"\x1f\x8bnot gzip", "application/gzip"),
        (b"not a zip", "application/zip"),
        (b"{", "application/json"),
        (b"{}", "application/json"),
        (b'{"files": 1}', "application/json"),
        (b'{"files": [{"path": "a", "content_b64": "*"}]}', "application/json"),
        (
            b'{"git": {"url": "https://github.com/a/b"}, "files": [{"path": "a", "content_b64": ""}]}',
            "application/json",
        ),
    ],
)
def test_damaged_bodies(ada: Service, session: str, body: bytes, kind: str) -> None:
    response = ada.post(f"/sessions/{session}/files", content=body, headers={"Content-Type": kind})
    assert refused(response, 400)["code"] == "invalid_request"
    assert listed(ada, session) == {}


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", ""])
def test_bodies_of_other_types(ada: Service, session: str, kind: str) -> None:
    response = ada.post(f"/sessions/{session}/files", content=b"x", headers={"Content-Type": kind})
    refused(response, 415)


def test_a_session_that_is_not_there(ada: Service) -> None:
    for name in ("ses-nothing", "..", "%2e%2e", "a%2fb"):
        assert upload(ada, name, ("a", b"1")).status_code in (404, 405)


def test_a_client_that_leaves_in_the_middle(interpreter_server: RunningServer, ada: Service, session: str) -> None:
    def half() -> Iterator[bytes]:
        yield tar([file("a", bytes(200_000))])[:100_000]
        raise httpx.ReadError("gone")

    with pytest.raises(httpx.ReadError):
        ada.post(f"/sessions/{session}/files", content=half(), headers=TAR)
    uploads = interpreter_server.data_dir / "uploads"
    deadline = time.monotonic() + 30
    while os.listdir(uploads):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert listed(ada, session) == {}


def test_a_run_that_is_under_way_keeps_its_workspace(ada: Service, session: str) -> None:
    run = ada.start(["sh", "-c", "sleep 1; echo run > mine"], session_id=session)
    ada.wait(run, "running")
    assert upload(ada, session, ("theirs", b"1")).status_code == 200
    assert ada.wait(run)["phase"] == "completed"
    assert listed(ada, session) == {"mine": 4, "theirs": 1}


def test_many_uploads_at_once_are_all_there(ada: Service, session: str) -> None:
    names = [uuid.uuid4().hex for _ in range(20)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda name: upload(ada, session, (name, b"1")).status_code, names))
    assert answers == [200] * 20
    assert set(listed(ada, session)) == set(names)


def test_uploads_of_64_mb_need_no_memory(tmp_path: Path) -> None:
    server = start(tmp_path / "data", rate_limit="off", store_backend="memory", **NO_CELLS)
    try:
        with Service.of(server) as client:
            session = client.session()
            upload(client, session, ("warm", bytes(1000)))
            before = _peak(server.pid)
            content = os.urandom(1 << 20)
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                for number in range(63):
                    info = tarfile.TarInfo(f"f{number}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
            response = client.post(f"/sessions/{session}/files", content=buffer.getvalue(), headers=TAR)
            assert response.status_code == 200, response.text
            response = upload(client, session, ("big.bin", bytes(64 << 20)))
            assert response.status_code == 200, response.text
            assert _peak(server.pid) - before < 24 << 20
    finally:
        finish(server)


def _peak(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_who_uploaded_and_who_read_is_in_the_audit_log(ada: Service, service: Service, session: str) -> None:
    upload(ada, session, ("secret-name.txt", b"secret content"))
    ada.get(f"/sessions/{session}/files/secret-name.txt")
    deadline = time.monotonic() + 30
    while True:
        answer = service.get("/admin/audit", params={"session_id": session, "limit": 50})
        events = {event["event"]: event for event in answer.json()["items"]}
        if {"sandbox.session.files_uploaded", "sandbox.files.read"} <= set(events):
            break
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)
    uploaded = events["sandbox.session.files_uploaded"]
    assert (uploaded["user_id"], uploaded["bytes"], uploaded["files"]) == ("ada", 14, 1)
    assert "secret" not in answer.text
