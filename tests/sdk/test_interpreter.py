"""The client of the interpreter service against a real server: every method."""

from __future__ import annotations

import asyncio
import io
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tidebox.errors import (
    Conflict,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    PolicyUnsupported,
    Unauthorized,
)
from tidebox.model.git_source import GitSource
from tidebox.model.limits import MIB
from tidebox.model.run import Phase
from tidebox.sdk import (
    AsyncInterpreter,
    AsyncRunLog,
    ClientClosed,
    InputClosed,
    LogChunk,
    LogEntry,
    PhaseChange,
    ProgramStart,
    RunEnd,
    ServerUnreachable,
)
from tidebox.sdk.file_content import Content

EVERY_BYTE = bytes(range(256))
PRINT_HELLO = ["python3", "-c", "print('hello')"]


@pytest.fixture
async def client(running_server: RunningServer) -> AsyncIterator[AsyncInterpreter]:
    async with AsyncInterpreter(running_server.url, api_key=running_server.key) as client:
        yield client


async def entries(log: AsyncRunLog) -> list[LogEntry]:
    async with log:
        return [entry async for entry in log]


async def drain(log: AsyncRunLog) -> None:
    while await log.read() is not None:
        pass


def output(found: list[LogEntry], *streams: str) -> bytes:
    return b"".join(
        entry.data for entry in found if isinstance(entry, LogChunk) and entry.stream in (streams or ("stdout",))
    )


def packed(**files: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


# The server


async def test_what_the_server_can_do(client: AsyncInterpreter) -> None:
    found = await client.runtimes()
    native = next(runtime for runtime in found.runtimes if runtime.name == "native")
    assert (native.available, found.execution_enabled, found.default_runtime) == (True, True, "native")
    assert {"1.0", "1.1"} <= set(found.supported_spec_versions)
    assert native.isolation is not None
    assert all(fact.how for fact in native.isolation.guarantees)


async def test_how_the_server_is(client: AsyncInterpreter) -> None:
    health = await client.health()
    assert (health.status, health.runtimes["native"]) == ("ok", True)
    assert health.store is not None
    assert health.store.ok


async def test_a_wrong_key(running_server: RunningServer) -> None:
    async with AsyncInterpreter(running_server.url, api_key="wrong") as client:
        for call in (client.runtimes(), client.stream_log("run-0"), client.run(["true"])):
            with pytest.raises(Unauthorized):
                await call


async def test_a_server_that_is_not_there_is_told_at_once() -> None:
    with io.BytesIO() as target:
        async with AsyncInterpreter("http://127.0.0.1:1", api_key="k") as client, asyncio.timeout(20):
            for call in (
                client.runtimes(),
                client.stream_log("run-0"),
                client.start_run(["true"]),
                client.upload_files("ses-0", {"a": b""}),
                client.download_artifact("run-0", "a", target),
            ):
                with pytest.raises(ServerUnreachable):
                    await call


async def test_after_the_end(client: AsyncInterpreter) -> None:
    run = await client.start_run(PRINT_HELLO)
    log = await client.stream_log(run.id)
    await client.close()
    for call in (client.get_run(run.id), client.stream_log(run.id)):
        with pytest.raises(ClientClosed):
            await call
    with pytest.raises(ClientClosed):
        await drain(log)
    await log.close()


@pytest.mark.parametrize("options", [{"source": "Toaster"}, {"url": "ftp://x"}, {"api_key": "a\nb"}])
def test_wrong_arguments(options: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        AsyncInterpreter(**options)  # type: ignore[arg-type]


# Sessions and their files


async def test_a_session_from_its_beginning_to_its_end(client: AsyncInterpreter) -> None:
    session = await client.create_session(
        base_image="python:3.11-slim", ttl=600, timeout=20, memory=128 * MIB, env={"WHO": "tide"}, labels={"a": "b"}
    )
    assert (session.base_image, session.labels, session.timeout_sec) == ("python:3.11-slim", {"a": "b"}, 20)
    assert session.resources["memory_mb"] == 128
    assert session.created_at is not None
    assert session.expires_at is not None
    assert session.expires_at - session.created_at == timedelta(seconds=600)
    assert await client.get_session(session.id) == session
    listed = await client.list_sessions(limit=1000)
    assert session in listed.items
    assert listed.total == len(listed.items)
    result = await client.run(["sh", "-c", "echo $WHO; echo kept > file"], session_id=session.id)
    assert (result.text, result.run.session_id) == ("tide\n", session.id)
    assert (await client.run(["cat", "file"], session_id=session.id)).text == "kept\n"
    assert [run.id for run in (await client.list_runs(session_id=session.id)).items][-1] == result.run.id
    await client.delete_session(session.id)
    for call in (client.get_session(session.id), client.delete_session(session.id)):
        with pytest.raises(NotFound):
            await call


async def test_files_of_a_session(client: AsyncInterpreter, tmp_path: Path) -> None:
    session = await client.create_session()
    (tmp_path / "here").write_bytes(EVERY_BYTE * 2000)
    files: dict[str, Content] = {
        "bytes": EVERY_BYTE,
        "deep/down/path": tmp_path / "here",
        'a "quoted" ☃.txt': io.BytesIO(b"snow"),
        "left.out": b"",
        "kept.tar": packed(inner=b"1"),
    }
    made = await client.upload_files(session.id, files, ignore=["*.out"])
    assert (made.file_count, made.ignored_count) == (4, 1)
    assert (await client.upload_files(session.id, {"a.tar": packed(inner=b"in")}, expand=True)).file_count == 1
    assert (await client.upload_archive(session.id, packed(one=b"1", two=b"2"), ignore=["two"])).file_count == 1
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("zipped", "z")
    await client.upload_archive(session.id, tmp_path / "a.zip", kind="zip")
    found = await client.list_files(session.id)
    names = {"bytes", "deep/down/path", 'a "quoted" ☃.txt', "kept.tar", "inner", "one", "zipped"}
    assert {file.path for file in found.items} == names
    assert found.total_bytes == sum(file.size for file in found.items)
    assert await client.download_file(session.id, "bytes") == EVERY_BYTE
    assert await client.download_file(session.id, 'a "quoted" ☃.txt') == b"snow"
    assert await client.download_file(session.id, "deep/down/path", tmp_path / "there") == len(EVERY_BYTE) * 2000
    assert (tmp_path / "there").read_bytes() == EVERY_BYTE * 2000
    with pytest.raises(NotFound):
        await client.download_file(session.id, "nothing", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(InvalidRequest):
        await client.upload_archive(session.id, b"no archive")
    with pytest.raises(Forbidden):
        await client.upload_git(session.id, GitSource(url="https://git.invalid/x.git"))
    await client.delete_session(session.id)


@pytest.mark.parametrize("path", ["", "..", "a/../b", "/a", "a//b"])
async def test_paths_that_are_none(client: AsyncInterpreter, path: str) -> None:
    for call in (client.download_file("ses-0", path), client.download_artifact("run-0", path)):
        with pytest.raises(InvalidRequest):
            await call


@pytest.mark.parametrize("run_id", ["", ".", ".."])
async def test_ids_that_are_none(client: AsyncInterpreter, run_id: str) -> None:
    for call in (client.get_run(run_id), client.stream_log(run_id), client.delete_session(run_id)):
        with pytest.raises(InvalidRequest):
            await call


# Runs


async def test_a_program_that_was_killed(client: AsyncInterpreter) -> None:
    result = await client.run(["sh", "-c", "kill -9 $$"])
    assert (result.ok, result.exit_code, result.signal) == (False, 137, 9)


async def test_a_run_with_all_that_can_be_said_of_it(client: AsyncInterpreter) -> None:
    result = await client.run(
        ["sh", "-c", "cat in.txt; echo $WHO >&2; echo made > out.txt; exit 3"],
        base_image="python:3.11-slim",
        files={"in.txt": EVERY_BYTE},
        env={"WHO": "tide"},
        labels={"kind": "test"},
        timeout=20,
        startup_timeout=20,
        cpus=0.5,
        memory=64 * MIB + 1,
        pids=32,
        network_policy="deny_all",
        trust_level="untrusted",
        artifacts=["out.txt"],
    )
    assert (result.ok, result.exit_code, result.stdout, result.stderr) == (False, 3, EVERY_BYTE, b"tide\n")
    run = result.run
    assert (run.phase, run.reason_code, run.labels) == (Phase.FAILED, "exit_code_nonzero", {"kind": "test"})
    limits = run.resource_usage.limits
    assert (limits.cpu, limits.memory_mb, limits.pids, limits.timeout_sec) == (0.5, 65, 32, 20)
    assert run.resource_usage.log_bytes == 256 + 5
    assert run.started_at is not None
    assert run.finished_at is not None
    assert run.started_at <= run.finished_at


async def test_input_of_a_run(client: AsyncInterpreter) -> None:
    assert (await client.run(["cat"], stdin=EVERY_BYTE * 500)).stdout == EVERY_BYTE * 500
    assert (await client.run(["wc", "-c"], stdin="☃")).text == "3\n"
    # One that does not want it is not at fault.
    assert (await client.run(["true"], stdin=EVERY_BYTE * 500)).ok


async def test_input_that_is_too_much(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(interactive_max_bytes=str(MIB))
    async with AsyncInterpreter(server.url, api_key=server.key) as client:
        with pytest.raises(Conflict, match="stdin_max_bytes"):
            await client.run(["cat"], stdin=b"x" * 2 * MIB)


async def test_more_output_than_is_wanted(client: AsyncInterpreter) -> None:
    label = {"test": "too-much"}
    with pytest.raises(PayloadTooLarge):
        await client.run(["sh", "-c", "yes; sleep 600"], max_output=1000, labels=label, timeout=600)
    run = next(run for run in (await client.list_runs(limit=1000)).items if run.labels == label)
    assert (await client.wait_run(run.id)).phase is Phase.KILLED


async def test_a_run_that_is_waited_for(client: AsyncInterpreter) -> None:
    run = await client.start_run(["sleep", "0.6"])
    assert not run.phase.terminal
    assert (await client.wait_run(run.id)).phase is Phase.COMPLETED
    assert (await client.get_run(run.id)).ok


async def test_a_run_that_is_cancelled(client: AsyncInterpreter) -> None:
    run = await client.start_run(["sleep", "600"], timeout=600)
    assert (await client.cancel_run(run.id)).cancel_requested is True
    ended = await client.wait_run(run.id)
    assert (ended.phase, ended.reason_code) == (Phase.KILLED, "canceled_by_user")
    assert (await client.cancel_run(run.id)).cancel_requested is False


async def test_cancelling_the_call_cancels_the_run(client: AsyncInterpreter) -> None:
    label = {"test": "cancelled-call"}
    call = asyncio.create_task(client.run(["sh", "-c", "echo; sleep 600"], labels=label, timeout=600))
    run_id = ""
    async with asyncio.timeout(60):
        while not run_id:
            running = (await client.list_runs(phase=Phase.RUNNING, limit=1000)).items
            run_id = next((run.id for run in running if run.labels == label), "")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await client.wait_run(run_id)).phase is Phase.KILLED


async def test_runs_are_listed_page_by_page(client: AsyncInterpreter) -> None:
    session = await client.create_session()
    for _ in range(3):
        await client.run(["true"], session_id=session.id)
    await client.run(["false"], session_id=session.id)
    first = await client.list_runs(session_id=session.id, phase=Phase.COMPLETED, limit=2)
    assert (len(first.items), first.total, first.has_more) == (2, 3, True)
    second = await client.list_runs(session_id=session.id, phase=Phase.COMPLETED, limit=2, offset=2)
    assert (len(second.items), second.has_more) == (1, False)
    assert len({run.id for run in (*first.items, *second.items)}) == 3


async def test_the_same_key_is_the_same_run(client: AsyncInterpreter, running_server: RunningServer) -> None:
    key = f"key-{datetime.now(UTC).timestamp()}"
    first = await client.start_run(PRINT_HELLO, idempotency_key=key)
    assert (await client.start_run(PRINT_HELLO, idempotency_key=key)).id == first.id
    with pytest.raises(IdempotencyConflict) as caught:
        await client.start_run(["true"], idempotency_key=key)
    assert caught.value.details["prior_id"] == first.id
    session = await client.create_session(idempotency_key=key)
    assert (await client.create_session(idempotency_key=key)).id == session.id
    for wrong in ("", "a\nb", "é", " a", "a" * 129):
        with pytest.raises(InvalidRequest, match="idempotency_key"):
            await client.start_run(PRINT_HELLO, idempotency_key=wrong)


async def test_what_the_server_refuses(client: AsyncInterpreter) -> None:
    with pytest.raises(NotFound) as caught:
        await client.get_run("run-0")
    assert (caught.value.details["code"], caught.value.details["status"]) == ("not_found", 404)
    with pytest.raises(PolicyUnsupported):
        await client.start_run(["true"], network_policy="allowlist")
    with pytest.raises(InvalidRequest):
        await client.start_run(["true"], env={"A=B": "c"})
    with pytest.raises(InvalidRequest, match="list of words"):
        await client.start_run("true")
    with pytest.raises(NotFound):
        await client.stream_log("run-0")


# Logs


async def test_a_log_as_it_is_made(client: AsyncInterpreter) -> None:
    run = await client.start_run(["sh", "-c", "read line; echo got $line; echo also >&2"], interactive=True)
    async with await client.stream_log(run.id) as log:
        await log.write("input\n")
        found = [entry async for entry in log]
        assert await log.read() is None
    assert output(found) == b"got input\n"
    assert output(found, "stderr") == b"also\n"
    phases = [entry.phase for entry in found if isinstance(entry, PhaseChange)]
    assert phases[-1] is Phase.RUNNING
    start = next(entry for entry in found if isinstance(entry, ProgramStart))
    assert start.at is not None
    end = found[-1]
    assert isinstance(end, RunEnd)
    assert end == log.end
    assert (end.phase, end.exit_code, end.log_bytes, end.ok) == (Phase.COMPLETED, 0, 15, True)
    assert [entry.seq for entry in found] == list(range(1, end.seq + 1))


async def test_a_log_from_somewhere_on(client: AsyncInterpreter) -> None:
    run = (await client.run(["sh", "-c", "echo one; sleep 0.1; echo two"])).run
    whole = await entries(await client.stream_log(run.id))
    middle = next(entry.seq for entry in whole if isinstance(entry, LogChunk)) + 1
    assert await entries(await client.stream_log(run.id, from_seq=middle)) == whole[middle - 1 :]
    assert await entries(await client.stream_log(run.id, from_seq=0)) == whole
    # Of one that is over at least the end comes.
    assert await entries(await client.stream_log(run.id, from_seq=9999)) == whole[-1:]
    assert await entries(await client.stream_log(run.id, tail=True)) == whole[-1:]


async def test_only_what_comes_next(client: AsyncInterpreter) -> None:
    run = await client.start_run(["sh", "-c", "echo before; read line; echo after"], interactive=True)
    async with await client.stream_log(run.id) as first:
        while not isinstance(await first.read(), LogChunk):
            pass
        async with await client.stream_log(run.id, tail=True) as log:
            await log.write("\n")
            await log.end_input()
            assert output([entry async for entry in log]) == b"after\n"


async def test_input_to_a_run_that_takes_none(client: AsyncInterpreter) -> None:
    run = await client.start_run(["sleep", "600"], timeout=600)
    async with await client.stream_log(run.id) as log:
        await log.write("input")
        with pytest.raises(Conflict, match="not interactive"):
            await drain(log)
        # The log goes on.
        await client.cancel_run(run.id)
        assert isinstance([entry async for entry in log][-1], RunEnd)


async def test_rules_of_input(client: AsyncInterpreter) -> None:
    run = await client.start_run(
        ["cat"], interactive=True, stdin_max_bytes=9, stdin_max_frame_bytes=4, stdin_bps=9, stdin_idle_timeout=20
    )
    async with await client.stream_log(run.id) as log:
        await log.write("12345")
        with pytest.raises(Conflict):
            await drain(log)
        closed = [entry.reason async for entry in log if isinstance(entry, InputClosed)]
    assert closed in ([], ["stdin_max_frame_bytes"])
    assert InputClosed in map(type, await client.read_log_entries(run.id))


async def test_a_log_that_was_made(client: AsyncInterpreter) -> None:
    run = (await client.run(["sh", "-c", "echo out; sleep 0.1; echo err >&2; printf '\\377'"])).run
    assert await client.read_log(run.id) == b"out\nerr\n\xff"
    assert await client.read_log(run.id, stream="stderr") == b"err\n"
    found = await client.read_log_entries(run.id)
    assert found == await entries(await client.stream_log(run.id))
    middle = next(entry.seq for entry in found if isinstance(entry, LogChunk)) + 1
    assert await client.read_log(run.id, from_seq=middle) == b"err\n\xff"
    assert await client.read_log_entries(run.id, from_seq=middle) == found[middle - 1 :]


# Artifacts


async def test_artifacts(client: AsyncInterpreter, tmp_path: Path) -> None:
    code = "import os\nos.makedirs('out dir')\nopen('out dir/☃', 'wb').write(bytes(range(256)) * 4000)\nopen('b', 'w')"
    run = (await client.run(["python3", "-c", code], artifacts=["**"])).run
    found = {artifact.path: artifact.size for artifact in (await client.list_artifacts(run.id)).items}
    assert found == {"b": 0, "out dir/☃": 1_024_000}
    assert await client.download_artifact(run.id, "out dir/☃") == EVERY_BYTE * 4000
    assert await client.download_artifact(run.id, "b") == b""
    assert await client.download_artifact(run.id, "out dir/☃", tmp_path / "file") == 1_024_000
    assert (tmp_path / "file").read_bytes() == EVERY_BYTE * 4000
    size = await client.download_artifacts(run.id, tmp_path / "all.zip")
    assert size == (tmp_path / "all.zip").stat().st_size
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        assert sorted(archive.namelist()) == ["b", "out dir/☃"]
    with pytest.raises(InvalidRequest, match="to:"):
        await client.download_artifact(run.id, "b", "text")  # type: ignore[call-overload]
    assert (await client.delete_artifacts(run.id)).freed_bytes == 1_024_000
    with pytest.raises(NotFound):
        await client.download_artifact(run.id, "b")


# Admins


async def test_what_admins_see(client: AsyncInterpreter) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=1)
    key = f"admin-{begin.timestamp()}"
    code = "open('made', 'w').write('12345')"
    started = await client.start_run(["python3", "-c", code], artifacts=["made"], idempotency_key=key)
    run = await client.wait_run(started.id)
    admin = client.admin
    page = await admin.list_runs(
        user_id="local", phase=Phase.COMPLETED, started_at_from=begin, sort="started_at:asc", limit=1000
    )
    assert run.id in {found.id for found in page.items}
    assert page.has_more is False
    assert (await admin.list_runs(user_id="nobody")).items == ()
    details = await admin.get_run(run.id)
    assert (details.user_id, details.ok, details.resource_usage) == ("local", True, run.resource_usage)
    assert [(artifact.path, artifact.size) for artifact in details.artifacts] == [("made", 5)]
    keys = await admin.list_idempotency_keys(endpoint="runs", user_id="local", limit=1000)
    assert next(entry.object_id for entry in keys.items if entry.key == key) == run.id
    assert next(user.artifact_bytes for user in (await admin.list_usage()).items if user.user_id == "local") >= 5
    summary = await admin.summarize_usage(begin=begin, end=datetime.now(UTC) + timedelta(seconds=1))
    assert summary.totals.completed >= 1
    assert "native" in {totals.runtime for totals in summary.by_runtime}
    assert "local" in {totals.user_id for totals in summary.top_users}
    assert summary.window.begin < summary.window.end
    assert "sandbox_runs_completed_total" in await admin.metrics()


async def test_the_audit_log_names_the_client(running_server: RunningServer) -> None:
    async with AsyncInterpreter(running_server.url, api_key=running_server.key, source="MCP") as client:
        run = (await client.run(["true"])).run
        found = await client.admin.list_audit(run_id=run.id, sort="asc")
        assert {event.source for event in found.items} == {"MCP"}
        created = found.items[0]
        assert (created.event, created.user_id, created.surface) == ("sandbox.run.created", "local", "rest")
        assert created.fields["policy_hash"] == run.policy_hash
        assert "sandbox.run.log_read" in {event.event for event in found.items}
        assert (await client.admin.list_audit(run_id=run.id, limit=1)).has_more is True
