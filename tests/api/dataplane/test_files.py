"""Files of a sandbox: byte-exact, whole or not at all, and only for who may."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.api.dataplane.plane import Plane
from tests.runtimes import RUNTIME
from tidebox.broker.sandboxes.sandbox import LocalSandbox
from tidebox.model.limits import MIB
from tidebox.model.sandbox import Capability


def put(http: httpx2.Client, path: str, content: Any, **params: str) -> dict[str, Any]:
    answer = http.post("/v1/files/upload", params={"path": path, **params}, content=content)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def get(http: httpx2.Client, path: str, **headers: str) -> httpx2.Response:
    return http.get("/v1/files/download", params={"path": path}, headers=headers)


def names(http: httpx2.Client, path: str) -> list[str]:
    return [entry["name"] for entry in http.get("/v1/files/list", params={"path": path}).json()["entries"]]


def assert_empty(http: httpx2.Client, path: str, seconds: float = 30.0) -> None:
    """Nothing is in a directory, or it goes away: another server sees a moment later that an upload is over."""
    deadline = time.monotonic() + seconds
    while (left := names(http, path)) != []:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def stated(http: httpx2.Client, path: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/v1/files/stat", params={"path": path}).json()
    return found


@pytest.fixture
def there(http: httpx2.Client, request: pytest.FixtureRequest) -> str:
    """A directory of the test's own."""
    path = f"/workspace/{request.node.name[:40]}-{time.monotonic_ns()}"
    assert http.post("/v1/files/mkdir", json={"path": path}).status_code == 201
    return path


def test_an_uploaded_file_is_downloaded_unchanged(http: httpx2.Client, there: str) -> None:
    content = bytes(range(256))
    assert put(http, f"{there}/a.bin", content) == {"path": f"{there}/a.bin", "size": 256}
    answer = get(http, f"{there}/a.bin")
    assert answer.status_code == 200
    assert answer.content == content
    assert answer.headers["content-length"] == "256"
    assert answer.headers["accept-ranges"] == "bytes"
    assert names(http, there) == ["a.bin"]


def test_an_empty_file_is_uploaded_and_downloaded(http: httpx2.Client, there: str) -> None:
    assert put(http, f"{there}/empty", b"")["size"] == 0
    assert get(http, f"{there}/empty").content == b""


def test_a_relative_path_is_below_the_workspace_and_directories_are_made(http: httpx2.Client) -> None:
    assert put(http, "deep/down/file", b"x") == {"path": "/workspace/deep/down/file", "size": 1}
    assert get(http, "/workspace/deep/down/file").content == b"x"


def test_a_file_is_uploaded_as_a_multipart_form(http: httpx2.Client, there: str) -> None:
    content = os.urandom(300_000)
    answer = http.post(
        "/v1/files/upload",
        params={"path": f"{there}/form"},
        files={"file": ("any name", content)},
        data={"other": "ignored"},
    )
    assert answer.json() == {"path": f"{there}/form", "size": 300_000}
    assert get(http, f"{there}/form").content == content


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\ncut'),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\ny\r\n--b--\r\n'),
        ("multipart/form-data; boundary=b", b"nonsense"),
    ],
)
def test_a_form_that_is_none_leaves_nothing(http: httpx2.Client, there: str, content_type: str, body: bytes) -> None:
    answer = http.post(
        "/v1/files/upload", params={"path": f"{there}/f"}, content=body, headers={"Content-Type": content_type}
    )
    assert code(answer) == (400, "INVALID_REQUEST")
    assert_empty(http, there)


def test_fifty_megabytes_up_and_down(http: httpx2.Client, there: str) -> None:
    piece = os.urandom(MIB)

    def pieces() -> Iterator[bytes]:
        for number in range(50):
            yield number.to_bytes(4, "big") + piece[4:]

    sent = hashlib.sha256(b"".join(pieces())).hexdigest()
    assert put(http, f"{there}/large", pieces())["size"] == 50 * MIB
    received = hashlib.sha256()
    with http.stream("GET", "/v1/files/download", params={"path": f"{there}/large"}) as answer:
        for chunk in answer.iter_raw():
            received.update(chunk)
    assert received.hexdigest() == sent
    part = get(http, f"{there}/large", Range=f"bytes={10 * MIB - 2}-{10 * MIB + 5}")
    assert part.status_code == 206
    assert part.content == piece[-2:] + (10).to_bytes(4, "big") + piece[4:6]
    assert part.headers["content-range"] == f"bytes {10 * MIB - 2}-{10 * MIB + 5}/{50 * MIB}"
    http.post("/v1/files/remove", json={"path": f"{there}/large"})


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=6-", 206, b"6789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=5-500", 206, b"56789"),
        ("items=0-3", 200, b"0123456789"),
        ("bytes=10-", 416, None),
        ("bytes=3-1", 416, None),
        ("bytes=x", 416, None),
    ],
)
def test_a_range_of_a_file_is_downloaded(
    http: httpx2.Client, there: str, asked: str, status: int, content: bytes | None
) -> None:
    put(http, f"{there}/digits", b"0123456789")
    answer = get(http, f"{there}/digits", Range=asked)
    assert answer.status_code == status
    if content is not None:
        assert answer.content == content
    else:
        assert answer.headers["content-range"] == "bytes */10"


def test_head_of_a_download_has_the_size_and_no_body(http: httpx2.Client, there: str) -> None:
    put(http, f"{there}/digits", b"0123456789")
    answer = http.head("/v1/files/download", params={"path": f"{there}/digits"})
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "10", b"")


def test_a_file_is_replaced_at_once_and_keeps_its_permissions(http: httpx2.Client, there: str) -> None:
    put(http, f"{there}/script", b"#!/bin/sh\necho one\n", mode="0755")
    holding = http.post("/v1/exec", json={"command": f"exec 3< {there}/script; echo held; sleep 0.1; cat <&3"})
    assert "echo one" in holding.json()["stdout"]
    put(http, f"{there}/script", b"#!/bin/sh\necho two\n")
    assert stated(http, f"{there}/script")["mode"] == "0755"
    assert http.post("/v1/exec", json={"command": [f"{there}/script"]}).json()["stdout"] == "two\n"
    assert names(http, there) == ["script"]


def test_a_link_at_the_target_is_replaced_and_not_followed(http: httpx2.Client, there: str) -> None:
    put(http, f"{there}/kept", b"kept")
    http.post("/v1/exec", json={"command": ["ln", "-s", "kept", f"{there}/link"]})
    assert get(http, f"{there}/link").content == b"kept"
    put(http, f"{there}/link", b"new")
    assert get(http, f"{there}/kept").content == b"kept"
    assert stated(http, f"{there}/link")["type"] == "file"


def test_a_client_that_leaves_leaves_nothing(plane: Plane, http: httpx2.Client, token: str, there: str) -> None:
    put(http, f"{there}/whole", b"before")
    host, port = plane.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /v1/files/upload?path={there}/whole HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: 1000000\r\n\r\n".encode()
            + b"x" * 300_000
        )
        deadline = time.monotonic() + 30
        while len(names(http, there)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    while len(names(http, there)) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert get(http, f"{there}/whole").content == b"before"


def test_an_upload_that_was_cut_off_goes_on_where_it_was(
    plane: Plane, http: httpx2.Client, token: str, there: str
) -> None:
    content = os.urandom(2_000_000)
    query = f"path={there}/resumed&upload_id=try-1"
    host, port = plane.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /v1/files/upload?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content[:700_000]
        )
        deadline = time.monotonic() + 30
        while not http.get(f"/v1/files/upload?{query}").json()["offset"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    # What was on its way when the client left is still written.
    before, offset = -1, 0
    while before != offset:
        time.sleep(0.3)
        before, offset = offset, http.get(f"/v1/files/upload?{query}").json()["offset"]
    assert 0 < offset <= 700_000
    wrong = http.post(f"/v1/files/upload?{query}&offset={offset + 1}", content=b"x")
    assert code(wrong) == (409, "CONFLICT")
    assert wrong.json()["error"]["details"]["offset"] == offset
    answer = http.post(f"/v1/files/upload?{query}&offset={offset}&complete=false", content=content[offset:1_500_000])
    assert answer.json() == {"path": f"{there}/resumed", "size": 1_500_000, "upload_id": "try-1", "complete": False}
    assert get(http, f"{there}/resumed").status_code == 404
    answer = http.post(f"/v1/files/upload?{query}&offset=1500000", content=content[1_500_000:])
    assert (answer.json()["size"], answer.json()["complete"]) == (2_000_000, True)
    assert get(http, f"{there}/resumed").content == content
    assert names(http, there) == ["resumed"]


def test_an_upload_is_given_up(http: httpx2.Client, there: str) -> None:
    query = f"path={there}/never&upload_id=a"
    http.post(f"/v1/files/upload?{query}&complete=false", content=b"abc")
    assert http.delete(f"/v1/files/upload?{query}").status_code == 200
    assert names(http, there) == []
    assert code(http.delete(f"/v1/files/upload?{query}")) == (404, "FILE_NOT_FOUND")


def test_stat_list_move_and_remove(http: httpx2.Client, there: str) -> None:
    put(http, f"{there}/b", b"12345")
    http.post("/v1/files/mkdir", params={"path": f"{there}/sub/below"})
    http.post("/v1/exec", json={"command": ["ln", "-s", "/nowhere", f"{there}/link"]})
    found = stated(http, f"{there}/b")
    assert found.pop("modified_at").startswith("20")
    assert found == {"path": f"{there}/b", "name": "b", "type": "file", "size": 5, "mode": "0644"}
    listing = http.get("/v1/files/list", params={"path": there}).json()
    assert listing["path"] == there
    assert [(entry["name"], entry["type"]) for entry in listing["entries"]] == [
        ("b", "file"),
        ("link", "symlink"),
        ("sub", "directory"),
    ]
    moved = http.post("/v1/files/move", json={"source": f"{there}/b", "target": f"{there}/sub/c"})
    assert moved.json() == {"source": f"{there}/b", "target": f"{there}/sub/c"}
    assert get(http, f"{there}/sub/c").content == b"12345"
    assert code(http.post("/v1/files/remove", json={"path": f"{there}/sub"})) == (409, "FILE_CONFLICT")
    assert http.post("/v1/files/remove", json={"path": f"{there}/sub", "recursive": True}).status_code == 200
    assert http.post("/v1/files/remove", json={"path": f"{there}/link"}).status_code == 200
    assert names(http, there) == []


def test_a_path_with_dots_is_answered_as_the_real_one(http: httpx2.Client, there: str) -> None:
    def post(operation: str, **body: object) -> Any:
        answer = http.post(f"/v1/files/{operation}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    name = there.rpartition("/")[2]
    link = f"ln -s /tmp {there}/link && mkdir /tmp/{name} && ln -s nowhere /tmp/{name}/dangling"
    assert http.post("/v1/exec", json={"command": link}).json()["exit_code"] == 0
    up = f"{there}/../../tmp/{name}/x"
    assert put(http, up, b"1")["path"] == f"/tmp/{name}/x"
    assert http.get("/v1/files/stat", params={"path": up}).json()["path"] == f"/tmp/{name}/x"
    listing = http.get("/v1/files/list", params={"path": f"{there}/../../tmp/{name}"}).json()
    assert (listing["path"], listing["entries"][-1]["path"]) == (f"/tmp/{name}", f"/tmp/{name}/x")
    # After a link `..` leads elsewhere than its text says; a link at the end stays one.
    assert http.get("/v1/files/stat", params={"path": f"{there}/link/../etc/passwd"}).json()["path"] == "/etc/passwd"
    dangling = http.get("/v1/files/stat", params={"path": f"{there}/../../tmp/{name}/dangling"}).json()
    assert (dangling["path"], dangling["type"]) == (f"/tmp/{name}/dangling", "symlink")
    # Directories that are missing are made, those before `..` too.
    assert post("mkdir", path=f"{there}/new/../..{name}")["path"] == f"{there}/..{name}"
    moved = post("move", source=up, target=f"/tmp/{name}/../{name}/y")
    assert moved == {"source": f"/tmp/{name}/x", "target": f"/tmp/{name}/y"}
    assert post("remove", path=f"/tmp/{name}/../{name}/y")["path"] == f"/tmp/{name}/y"


def test_names_and_times_that_programs_make_up(http: httpx2.Client, there: str) -> None:
    script = f"""
import os
os.chdir({there!r})
for name in (b"\\xff\\xfe", "\\U0001f30a".encode(), b"a\\nb", b"-rf", b" "):
    open(name, "w").close()
os.utime("-rf", (0, 2**40))
os.utime(" ", (0, -(2**33)))
"""
    made = http.post("/v1/exec", json={"command": ["python3", "-c", script]}).json()
    assert made["exit_code"] == 0, made["stderr"]
    entries = {entry["name"]: entry for entry in http.get("/v1/files/list", params={"path": there}).json()["entries"]}
    assert len(entries) == 5
    assert {"\U0001f30a", "a\nb", "-rf", " "} < set(entries)
    # Later than any time that can be told; gVisor keeps 64 bits of nanoseconds.
    assert (entries["-rf"]["modified_at"] or "")[:4] == ("2262" if RUNTIME == "gvisor" else "")
    assert get(http, f"{there}/a\nb").status_code == 200
    assert http.get("/v1/files/stat?path=%ff").status_code == 400


def test_a_directory_of_many_files_with_long_names(http: httpx2.Client, there: str) -> None:
    script = f"import os; os.chdir({there!r}); [open(f'{{n:05d}}' + 'x' * 240, 'w').close() for n in range(6000)]"
    assert http.post("/v1/exec", json={"command": ["python3", "-c", script]}).json()["exit_code"] == 0
    found = names(http, there)
    assert [name[:5] for name in found] == [f"{number:05d}" for number in range(6000)]
    http.post("/v1/files/remove", json={"path": there, "recursive": True})


def test_the_workspace_is_listed_where_no_path_is_given(http: httpx2.Client) -> None:
    assert http.get("/v1/files/list").status_code == 200


def test_the_same_below_the_name_of_the_sandbox(http: httpx2.Client, sandbox: LocalSandbox, there: str) -> None:
    answer = http.post(f"/api/{sandbox.id}/files/upload", params={"path": f"{there}/x"}, content=b"here")
    assert answer.status_code == 200
    assert http.get(f"/api/{sandbox.id}/files/download", params={"path": f"{there}/x"}).content == b"here"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/workspace/missing", (404, "FILE_NOT_FOUND")),
        ("/workspace", (409, "CONFLICT")),
        ("/dev/zero", (409, "CONFLICT")),
        ("/proc/1/environ", (403, "FILE_ACCESS_DENIED")),
        ("/proc/self/mem", (403, "FILE_ACCESS_DENIED")),
        ("", (400, "INVALID_REQUEST")),
        ("a\0b", (400, "INVALID_REQUEST")),
        ("x" * 5000, (400, "INVALID_REQUEST")),
        ("/etc/shadow", (403, "FILE_ACCESS_DENIED")),
    ],
)
def test_files_that_cannot_be_read_are_refused(http: httpx2.Client, path: str, expected: tuple[int, str]) -> None:
    answer = get(http, path)
    assert answer.status_code in (expected[0], 404), answer.text
    if answer.status_code == expected[0]:
        assert code(answer) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/bin/new", (403, "FILE_ACCESS_DENIED")),
        ("/workspace", (403, "FILE_ACCESS_DENIED")),
        ("/workspace/", (400, "INVALID_REQUEST")),
        ("/workspace/..", (400, "INVALID_REQUEST")),
        ("", (400, "INVALID_REQUEST")),
    ],
)
def test_where_nothing_can_be_written(http: httpx2.Client, path: str, expected: tuple[int, str]) -> None:
    answer = http.post("/v1/files/upload", params={"path": path}, content=b"x")
    assert code(answer) == expected


def test_a_directory_is_not_replaced_by_a_file(http: httpx2.Client, there: str) -> None:
    http.post("/v1/files/mkdir", json={"path": f"{there}/sub"})
    answer = http.post("/v1/files/upload", params={"path": f"{there}/sub"}, content=b"x")
    assert code(answer) == (409, "FILE_CONFLICT")
    assert names(http, there) == ["sub"]


def test_a_full_workspace(plane: Plane) -> None:
    """Files are memory, of which this sandbox has no more than its workspace takes: it lives all the same."""

    def endless() -> Iterator[bytes]:
        for _ in range(400):
            yield bytes(MIB)

    sandbox = plane.sandbox()
    with plane.client(plane.token(sandbox)) as http:
        for path in ("/workspace/huge", "/tmp/huge", "/dev/shm/huge"):
            answer = http.post("/v1/files/upload", params={"path": path}, content=endless())
            assert code(answer) == (507, "NO_SPACE"), path
            assert names(http, path.removesuffix("/huge")) == []
        # Full to the last byte, by a program that goes on: there is still memory for others.
        fill = "for at in workspace tmp dev/shm; do dd if=/dev/zero of=/$at/full bs=1M 2>/dev/null; done; echo full"
        assert http.post("/v1/exec", json={"command": fill}).json()["stdout"] == "full\n"
        answer = http.post("/v1/files/upload", params={"path": "more"}, content=bytes(MIB))
        assert code(answer) == (507, "NO_SPACE")
        made = http.post("/v1/exec", json={"command": ["python3", "-c", "print(len(bytes(100 << 20)))"]}).json()
        assert made["stdout"] == f"{100 << 20}\n", made


def test_file_routes_need_their_capability(
    plane: Plane, sandbox: LocalSandbox, http: httpx2.Client, there: str
) -> None:
    put(http, f"{there}/f", b"x")
    reads = [("GET", "download"), ("GET", "list"), ("GET", "stat")]
    writes = [("POST", "upload"), ("GET", "upload"), ("DELETE", "upload"), ("POST", "mkdir"), ("POST", "remove")]
    writes.append(("POST", "move"))
    for held, refused, said in (
        (Capability.FS_READ, writes, "fs_write not granted"),
        (Capability.FS_WRITE, reads, "fs_read not granted"),
        (Capability.EXEC, reads, "fs_read not granted"),
    ):
        with plane.client(plane.token(sandbox, held)) as client:
            for method, operation in refused:
                answer = client.request(method, f"/v1/files/{operation}", params={"path": f"{there}/f"})
                assert code(answer) == (403, "CAPABILITY_DENIED"), operation
                assert answer.json()["error"]["message"] == said
    assert get(http, f"{there}/f").content == b"x"


def test_what_was_done_is_in_the_audit_log(
    plane: Plane, http: httpx2.Client, sandbox: LocalSandbox, there: str
) -> None:
    put(http, f"{there}/noted", b"x")
    get(http, f"{there}/missing")

    def written() -> str:
        return "".join(path.read_text() for path in (plane.directory / "audit").iterdir())

    deadline = time.monotonic() + 30
    while f"{there}/noted" not in written() or '"outcome":"file_operation_failed"' not in written():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lines = written()
    uploaded = next(line for line in lines.splitlines() if f"{there}/noted" in line)
    for part in ('"event":"sandbox.files.upload"', '"user_id":"ada"', f'"sandbox_id":"{sandbox.id}"', '"done"'):
        assert part in uploaded
    assert "Bearer" not in lines
    assert "token-" not in lines


@pytest.mark.parametrize("through", ["/proc/self/fd", "/proc/1/fd", "planted"])
def test_what_the_agent_has_open_is_out_of_reach(http: httpx2.Client, there: str, through: str) -> None:
    """Among it are control groups of the machine."""
    if through == "planted":
        through = f"{there}/link"
        line = {"command": ["ln", "-s", "/proc/self/fd", through]}
        assert http.post("/v1/exec", json=line).json()["exit_code"] == 0
    reached = []
    for number in range(64):
        for path in (f"{through}/{number}", f"{through}/{number}/.", f"{through}/{number}/cgroup.procs"):
            for operation in ("list", "stat", "download"):
                answer = http.get(f"/v1/files/{operation}", params={"path": path})
                # The link itself may be seen; nothing that it leads to.
                if answer.status_code == 200 and not (operation == "stat" and answer.json()["type"] == "symlink"):
                    reached.append((operation, path))
        made = http.post("/v1/files/mkdir", json={"path": f"{through}/{number}/made"})
        if made.status_code == 201:
            reached.append(("mkdir", f"{through}/{number}/made"))
    assert reached == []
