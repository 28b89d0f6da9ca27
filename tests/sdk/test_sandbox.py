"""What can be done in a sandbox of a real server: programs, terminals and files."""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import os
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.api.conftest import NO_CELLS, RunningServer, finish, start
from tests.sdk.proxy import cutting
from tests.sdk.sandboxes import access_to, calls, our_tasks, until
from tidebox.errors import Conflict, ExecFailed, Forbidden, InvalidRequest, NotFound
from tidebox.model.ids import new_id
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome
from tidebox.sdk import AsyncAccess, AsyncProcess, AsyncSandbox, Change, Chunk, ClientClosed
from tidebox.sdk.file_content import Content

EVERY_BYTE = bytes(range(256))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Its tokens are good for four seconds, so that much is done across refreshes."""
    server = start(tmp_path_factory.mktemp("sandbox"), rate_limit="off", token_ttl_sec="4", **NO_CELLS)
    yield server
    finish(server)


@pytest.fixture
def thread() -> str:
    return new_id("thr")


@pytest.fixture(params=["ensure", "acquire"])
async def sandbox(request: pytest.FixtureRequest, server: RunningServer, thread: str) -> AsyncIterator[AsyncSandbox]:
    """A sandbox, by each of the protocols: their addresses differ."""
    async with access_to(server) as access:
        ask = access.ensure if request.param == "ensure" else access.acquire
        async with await ask(thread) as sandbox:
            yield sandbox
    assert our_tasks() == []


async def printed(process: AsyncProcess) -> bytes:
    return b"".join([chunk.data async for chunk in process])


# Programs


async def test_a_program_and_all_it_printed(sandbox: AsyncSandbox) -> None:
    done = await sandbox.exec(
        ["sh", "-c", 'cat; echo "$WHO in $PWD" >&2; exit 3'], cwd="/tmp", env={"WHO": "crab"}, stdin="in"
    )
    assert (done.stdout, done.stderr, done.exit_code) == (b"in", b"crab in /tmp\n", 3)
    assert (done.ok, done.outcome, done.signal, done.truncated) == (False, Outcome.EXITED, None, False)


async def test_output_that_is_no_text(sandbox: AsyncSandbox) -> None:
    await sandbox.files.upload("bytes", EVERY_BYTE)
    assert (await sandbox.exec("cat bytes")).stdout == EVERY_BYTE


async def test_bounds(sandbox: AsyncSandbox) -> None:
    slow = await sandbox.exec("echo started; sleep 60", timeout=2)
    assert (slow.outcome, slow.signal, slow.text) == (Outcome.TIMEOUT, "KILL", "started\n")
    killed = await sandbox.exec("kill -TERM $$")
    assert (killed.ok, killed.outcome, killed.exit_code, killed.signal) == (False, Outcome.SIGNALED, 143, "TERM")
    long = await sandbox.exec("echo 0123456789", output=4)
    assert (long.text, long.truncated, long.exit_code) == ("0123", True, 0)
    for wrong in (0, -1, float("nan"), float("inf"), 1e308):
        with pytest.raises(InvalidRequest):
            await sandbox.exec("true", timeout=wrong)


async def test_a_program_that_is_not_there(sandbox: AsyncSandbox) -> None:
    for run in (sandbox.exec, sandbox.start):
        with pytest.raises(ExecFailed) as caught:
            await run(["no-such-program"])
        assert caught.value.details["code"] == "EXEC_FAILED"
        assert caught.value.details["request_id"].startswith("req-")


async def test_a_call_that_is_cancelled_kills_its_program(sandbox: AsyncSandbox) -> None:
    call = asyncio.create_task(sandbox.exec("echo $$ > pid; exec sleep 600"))
    while not (await sandbox.exec("cat pid")).text:
        pass
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await gone(sandbox)


async def test_input_and_output_as_they_come(sandbox: AsyncSandbox) -> None:
    async with await sandbox.start(["cat"], stdin=True) as process:
        await process.write(EVERY_BYTE)
        assert await process.read() == Chunk("stdout", EVERY_BYTE)
        await process.write("tide ☃")
        await process.end_input()
        assert await printed(process) == "tide ☃".encode()
        assert (await process.wait()).ok
        # What comes too late does no harm.
        await process.write("more")
        await process.signal("INT")


async def test_much_output_and_a_reader_that_takes_its_time(sandbox: AsyncSandbox) -> None:
    size = 16 * MIB
    async with await sandbox.start(f"head -c {size} /dev/zero; echo end >&2") as process:
        await asyncio.sleep(0.5)
        seen, said = 0, b""
        async for stream, data in process:
            seen += len(data) if stream == "stdout" else 0
            said += data if stream == "stderr" else b""
        assert (seen, said) == (size, b"end\n")
        assert (await process.wait()).exit_code == 0


async def test_a_signal(sandbox: AsyncSandbox) -> None:
    async with await sandbox.start(
        "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    ) as process:
        assert await process.read() == Chunk("stdout", b"ready\n")
        await process.signal("INT")
        assert await printed(process) == b"caught\n"
        assert (await process.wait()).exit_code == 5


async def test_what_cannot_be_done_with_a_program_is_said_to_its_reader(sandbox: AsyncSandbox) -> None:
    async with await sandbox.start("read line; echo on", stdin=True) as process:
        await process.resize(10, 20)
        with pytest.raises(Conflict, match="no terminal"):
            await process.read()
        await process.signal("NONSENSE")
        with pytest.raises(InvalidRequest, match="NONSENSE"):
            await process.read()
        await process.write("\n")
        assert await printed(process) == b"on\n"


async def test_closing_it_ends_the_program(sandbox: AsyncSandbox) -> None:
    async with await sandbox.start("echo $$ > pid; echo ready; exec sleep 600") as process:
        await process.read()
    with pytest.raises(ClientClosed):
        await process.read()
    await gone(sandbox)


async def gone(sandbox: AsyncSandbox) -> None:
    """The program whose number is in the file ``pid`` is no more."""
    assert (await sandbox.exec("while kill -0 $(cat pid); do sleep 0.05; done", timeout=30)).ok


async def test_a_program_that_is_left_running_is_found_again(sandbox: AsyncSandbox) -> None:
    script = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 7"
    async with await sandbox.start(script, detach=True) as process:
        assert await process.read() == Chunk("stdout", b"one\n")
        assert process.id is not None
    await sandbox.files.upload("go", b"")
    again = await sandbox.attach(process.id, process.offset)
    assert await printed(again) == b"two\n"
    from_its_beginning = await sandbox.attach(process.id)
    assert await printed(from_its_beginning) == b"one\ntwo\n"
    assert (await from_its_beginning.wait()).exit_code == 7
    with pytest.raises(NotFound):
        await sandbox.attach("proc-unknown")


async def test_a_shell(sandbox: AsyncSandbox) -> None:
    async with await sandbox.shell(terminal=(31, 101), env={"PS1": ""}) as shell:
        await shell.write("stty size; tty\n")
        assert b"31 101" in await read_until(shell, b"/dev/pts/")
        await shell.resize(45, 120)
        await shell.write("stty size\n")
        await read_until(shell, b"45 120")
        # Printed by what the terminal's keys are for by then, and not by the shell, which is still about to start it.
        await shell.write("sh -c 'echo be\"\"gun; exec sleep 600'\n")
        await read_until(shell, b"begun")
        await shell.write(b"\x03")
        await read_until(shell, b"^C")
        await shell.write("exit 4\n")
        assert (await shell.wait()).exit_code == 4


async def read_until(process: AsyncProcess, words: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(30):
        while words not in seen:
            chunk = await process.read()
            assert chunk is not None
            seen += chunk.data
    return seen


# Files


async def test_files_there_and_back(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(EVERY_BYTE * 5000)
    assert await sandbox.files.upload("new/a file ☃", tmp_path / "here", mode=0o600) == 1_280_000
    assert (await sandbox.files.stat("new/a file ☃")).mode == 0o600
    assert await sandbox.files.download("new/a file ☃") == EVERY_BYTE * 5000
    assert await sandbox.files.download("new/a file ☃", tmp_path / "there") == 1_280_000
    assert (tmp_path / "there").read_bytes() == EVERY_BYTE * 5000
    source = io.BytesIO(b"skipped" + EVERY_BYTE)
    source.seek(7)
    target = io.BytesIO()
    await sandbox.files.upload("from-a-file", source)
    await sandbox.files.download("from-a-file", target)
    assert target.getvalue() == EVERY_BYTE
    assert sorted(os.listdir(tmp_path)) == ["here", "there"]


async def test_a_large_file_costs_no_memory(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    size = 96 * MIB
    write_large(tmp_path / "large", size)
    await sandbox.exec("true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await sandbox.files.upload("large", tmp_path / "large") == size
    assert await sandbox.files.download("large", tmp_path / "back") == size
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 24 * MIB
    assert digest(tmp_path / "back") == digest(tmp_path / "large")


def write_large(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        for number in range(size // MIB):
            file.write(hashlib.sha256(bytes([number])).digest() * (MIB // 32))


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def test_a_download_that_fails_leaves_what_was_there(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")
    with pytest.raises(NotFound) as caught:
        await sandbox.files.download("missing", tmp_path / "kept")
    assert caught.value.details["code"] == "FILE_NOT_FOUND"
    assert (tmp_path / "kept").read_text() == "as it was"
    assert os.listdir(tmp_path) == ["kept"]


async def test_directories(sandbox: AsyncSandbox) -> None:
    files = sandbox.files
    await files.mkdir("a/b")
    await files.upload("a/file", b"12345")
    await sandbox.exec("ln -s file a/link")
    assert [(entry.name, entry.type) for entry in await files.list("a")] == [
        ("b", "directory"),
        ("file", "file"),
        ("link", "symlink"),
    ]
    found = await files.stat("a/file")
    assert (found.path, found.size, found.mode) == ("/workspace/a/file", 5, 0o644)
    assert found.modified_at is not None
    assert found.modified_at.tzinfo is not None
    await files.move("a/file", "moved")
    assert await files.download("moved") == b"12345"
    with pytest.raises(Conflict):
        await files.remove("a")
    await files.remove("a", recursive=True)
    assert [entry.name for entry in await files.list()] == ["moved"]


async def test_what_files_do_not_do(sandbox: AsyncSandbox) -> None:
    with pytest.raises(Forbidden) as caught:
        await sandbox.files.upload("/etc/passwd", b"")
    assert caught.value.details["code"] == "FILE_ACCESS_DENIED"
    with pytest.raises(InvalidRequest, match="pathlib"):
        await sandbox.files.upload("file", "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="pathlib"):
        await sandbox.files.download("file", "text")  # type: ignore[call-overload]


async def test_a_file_is_sent_again_with_another_token(sandbox: AsyncSandbox, server: RunningServer) -> None:
    def revoke() -> None:
        url = f"{server.url}/v1/sandbox/sessions/{sandbox.session_id}/revoke"
        assert httpx2.post(url, headers=server.headers, timeout=60).is_success

    source = io.BytesIO(b"-" + EVERY_BYTE)
    source.seek(1)
    revoke()
    assert await sandbox.files.upload("again", source) == len(EVERY_BYTE)
    assert await sandbox.files.download("again") == EVERY_BYTE

    async def upload_pipes() -> None:
        for _ in range(5):  # one may go well: tokens are renewed every other second, perhaps in this moment
            reading, writing = os.pipe()
            os.write(writing, b"once")
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                revoke()
                await sandbox.files.upload("never", pipe)

    with pytest.raises(InvalidRequest, match="cannot be read again"):
        await upload_pipes()


@pytest.mark.parametrize("kind", ["bytes", "path", "file"])
async def test_a_large_upload_goes_on_where_it_was(
    server: RunningServer, thread: str, tmp_path: Path, kind: str
) -> None:
    content = hashlib.sha256(b"tide").digest() * 250_000
    (tmp_path / "here").write_bytes(content)
    offered: dict[str, Content] = {"bytes": content, "path": tmp_path / "here", "file": io.BytesIO(content)}
    cuts = itertools.chain([3_000_000, 2_000_000, 1_500_000], itertools.repeat(None))
    async with cutting(server, cuts, of_client=True) as proxy, AsyncAccess(proxy.url, api_key=server.key) as access:
        async with await access.ensure(thread) as sandbox:
            assert await sandbox.files.upload("there/large", offered[kind], mode=0o640) == len(content)
            assert proxy.cut == 3
            assert await sandbox.files.download("there/large") == content
            assert [(entry.name, entry.mode) for entry in await sandbox.files.list("there")] == [("large", 0o640)]
    # Sent again was only what was on its way when a connection was lost.
    assert proxy.handed_on < len(content) * 1.5


async def test_a_small_upload_is_sent_again(server: RunningServer, thread: str) -> None:
    cuts = itertools.chain([100_000], itertools.repeat(None))
    async with cutting(server, cuts, of_client=True) as proxy, AsyncAccess(proxy.url, api_key=server.key) as access:
        async with await access.ensure(thread) as sandbox:
            assert await sandbox.files.upload("small", EVERY_BYTE * 1000) == 256_000
            assert await sandbox.files.download("small") == EVERY_BYTE * 1000
            assert [entry.name for entry in await sandbox.files.list()] == ["small"]
    assert proxy.cut == 1


class Breaking(io.BytesIO):
    """A file that cannot be read to its end, from the moment it is told so."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.broken = threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 2 * MIB:
            assert self.broken.wait(60)
            raise OSError("the disk is broken")
        return super().read(size)


async def test_an_upload_that_is_given_up_leaves_nothing(sandbox: AsyncSandbox) -> None:
    file = Breaking(bytes(4 * MIB))
    upload = asyncio.create_task(sandbox.files.upload("never", file))
    async with asyncio.timeout(60):
        while not any(entry.size for entry in await sandbox.files.list()):
            pass
    file.broken.set()
    with pytest.raises(OSError, match="the disk is broken"):
        await upload
    assert await sandbox.files.list() == []


async def test_watching_goes_on_after_its_token(sandbox: AsyncSandbox, server: RunningServer, thread: str) -> None:
    await sandbox.files.mkdir("seen")
    async with await sandbox.files.watch("seen", recursive=True) as watch:
        await sandbox.exec("mkdir seen/below")
        assert await watch.read() == Change("created", "/workspace/seen/below", is_directory=True)
        seen = calls(server, thread).count("refreshed")
        await until(lambda: calls(server, thread).count("refreshed") >= seen + 3)
        await sandbox.exec("echo > seen/below/file")
        assert await watch.read() == Change("created", "/workspace/seen/below/file")
        await sandbox.exec("mv seen/below/file seen/moved")
        moved = Change("moved", "/workspace/seen/moved", "/workspace/seen/below/file")
        while await watch.read() != moved:
            pass
        await sandbox.exec("rm -r seen")
        assert [change async for change in watch][-1].kind == "removed"
