"""What every runtime promises: one suite, run over each runtime this machine can have."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.boxes import is_root
from tests.contract.runtimes import RUNTIMES_UNDER_TEST
from tests.patience import patient
from tidebox.errors import (
    ExecFailed,
    FileOperationFailed,
    InvalidImage,
    PayloadTooLarge,
    UnknownImage,
    UnsupportedOperation,
)
from tidebox.model.box import BoxSpec, CaptureRule, Command
from tidebox.model.events import Event, Exited, OutputEvent, Started
from tidebox.model.launch import WORKSPACE
from tidebox.model.limits import MIB, Limits
from tidebox.model.runtimes import BOUNDARIES, Guarantee
from tidebox.runtime.base import Box, Exec, Runtime
from tidebox.untrusted_files.trees import TreeLimits

MEMFD_NOEXEC = os.access("/proc/sys/vm/memfd_noexec", os.W_OK)
HOG = """
import os, time
held = bytearray(100 << 20)
pid = os.fork()
end = time.process_time() + 0.5
while time.process_time() < end:
    pass
if pid:
    os.wait()
"""


@pytest.fixture(params=RUNTIMES_UNDER_TEST)
def runtime_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def box(runtime: Runtime) -> AsyncIterator[Box]:
    box = await runtime.open(BoxSpec(kind="sandbox"))
    yield box
    await box.close()


async def collect(program: Exec, stdin: bytes | None = b"") -> list[Event]:
    if stdin is not None:
        await program.write(stdin)
        await program.end_input()
    return [event async for event in program.events()]


def output(events: list[Event], stream: str = "stdout") -> bytes:
    return b"".join(event.data for event in events if isinstance(event, OutputEvent) and event.stream == stream)


async def run(box: Box, *argv: str, stdin: bytes = b"", **options: object) -> list[Event]:
    return await collect(await box.exec(Command(argv=argv, **options)), stdin)  # type: ignore[arg-type]


async def need_cgroup(runtime: Runtime) -> None:
    if (await runtime.probe()).missing:
        pytest.skip("needs a cgroup, which an ordinary user has only where one is delegated")


async def test_probe_names_every_guarantee(runtime: Runtime) -> None:
    report = await runtime.probe()
    assert report.available
    assert {finding.guarantee for finding in report.findings} == set(Guarantee)
    assert all(finding.remedy for finding in report.missing)
    if is_root():
        assert report.missing == ()


async def test_what_it_tells_of_itself(runtime: Runtime) -> None:
    assert runtime.boundary in BOUNDARIES
    await runtime.probe()
    assert runtime.version
    default = runtime.images()[0]
    assert runtime.resolve(default.name) == default
    assert default.digest.startswith("sha256:")
    assert "sh" in runtime.interpreters


async def test_a_part_that_is_missing_says_so(runtime: Runtime, box: Box) -> None:
    parts: dict[str, Callable[[], Awaitable[object]]] = {
        "adjusts": lambda: box.adjust(Limits()),
        "freezes": box.freeze,
        "watches": lambda: box.watch(WORKSPACE, False),
    }
    assert box.features == runtime.features
    for name, use in parts.items():
        if getattr(box.features, name):
            await use()
        else:
            with pytest.raises(UnsupportedOperation):
                await use()


async def test_events_come_in_order_and_end_with_exited(box: Box) -> None:
    events = await run(box, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert isinstance(events[0], Started)
    assert output(events) == b"out\n"
    assert output(events, "stderr") == b"err\n"
    assert isinstance(events[-1], Exited)
    assert (events[-1].code, events[-1].signal) == (3, None)


async def test_stdin_is_fed_and_ended(box: Box) -> None:
    data = os.urandom(300_000)
    assert output(await run(box, "cat", stdin=data)) == data


async def test_a_signal_ends_the_program_and_is_reported(box: Box) -> None:
    program = await box.exec(Command(argv=["sleep", "60"]))
    await program.signal(signal.SIGTERM)
    last = (await collect(program, None))[-1]
    assert isinstance(last, Exited)
    assert (last.code, last.signal) == (None, signal.SIGTERM)


async def test_a_missing_program_fails_by_name(box: Box) -> None:
    with pytest.raises(ExecFailed, match="/no/such/program"):
        await run(box, "/no/such/program")
    assert output(await run(box, "echo", "still here")) == b"still here\n"


async def test_environment_and_directory_are_those_asked_for(box: Box) -> None:
    events = await run(box, "sh", "-c", "pwd; echo $A $HOME", env={"A": "b"}, cwd="/tmp")
    assert output(events) == b"/tmp\nb /workspace\n"


async def test_a_command_may_be_long(runtime: Runtime) -> None:
    long = "x" * 100_000
    box = await runtime.open(BoxSpec())
    assert output(await run(box, "echo", long, env={"LONG": long})) == long.encode() + b"\n"
    await box.close()


async def test_a_terminal_is_a_terminal(box: Box) -> None:
    program = await box.exec(Command(argv=["sh", "-c", "stty size; tty"], tty=(40, 120)))
    assert output(await collect(program, None)).split() == [b"40", b"120", b"/dev/pts/0"]


async def test_programs_share_the_box_and_its_files(box: Box) -> None:
    await run(box, "sh", "-c", "echo kept > /workspace/file")
    assert output(await run(box, "cat", "file")) == b"kept\n"


async def test_a_slow_reader_stalls_only_its_own_program(box: Box) -> None:
    flood = await box.exec(Command(argv=["sh", "-c", "yes | head -c 50000000"]))
    await asyncio.sleep(0.2)
    assert output(await asyncio.wait_for(run(box, "echo", "neighbour"), 30)) == b"neighbour\n"
    assert len(output(await collect(flood))) == 50_000_000


async def test_files_go_in_and_out_byte_exact(box: Box) -> None:
    data = os.urandom(5 * MIB + 17)
    assert await box.files.write("/workspace/deep.bin", data, mode=0o600) == len(data)
    assert b"".join([chunk async for chunk in box.files.read("/workspace/deep.bin")]) == data
    assert b"".join([chunk async for chunk in box.files.read("/workspace/deep.bin", 10, 20)]) == data[10:30]
    info = await box.files.stat("/workspace/deep.bin")
    assert (info.kind, info.size, info.mode & 0o777) == ("file", len(data), 0o600)
    owner, user = output(await run(box, "sh", "-c", "stat -c %u deep.bin; id -u")).split()
    assert owner == user != b"0"


async def test_file_operations(box: Box) -> None:
    await box.files.mkdir("/workspace/a/b")
    await box.files.write("/workspace/a/b/c", b"1")
    await box.files.rename("/workspace/a/b/c", "/workspace/a/d")
    assert sorted(info.path for info in await box.files.list("/workspace/a")) == ["/workspace/a/b", "/workspace/a/d"]
    await box.files.remove("/workspace/a", recursive=True)
    with pytest.raises(FileOperationFailed):
        await box.files.stat("/workspace/a")
    with pytest.raises(FileOperationFailed):
        await box.files.write("/usr/new", b"")


def need_freezing(box: Box) -> None:
    if not box.features.freezes:
        pytest.skip("this runtime cannot freeze boxes for this user")


async def test_freeze_stops_and_thaw_goes_on(box: Box) -> None:
    need_freezing(box)
    program = await box.exec(Command(argv=["sh", "-c", "while :; do echo tick; sleep 0.02; done"]))
    events = program.events()
    while not isinstance(await anext(events), OutputEvent):
        pass
    await box.freeze()
    await asyncio.sleep(0.05)
    silent = False
    while not silent:
        try:
            await asyncio.wait_for(anext(events), 0.5)
        except TimeoutError:
            silent = True
    await box.thaw()
    assert isinstance(await asyncio.wait_for(box.exec(Command(argv=["true"])), 30), Exec)


async def test_a_frozen_box_can_be_closed(runtime: Runtime) -> None:
    box = await runtime.open(BoxSpec())
    need_freezing(box)
    await box.freeze()
    await asyncio.wait_for(box.close(), 30)


async def test_stop_kills_everything_and_keeps_the_workspace(runtime: Runtime) -> None:
    box = await runtime.open(BoxSpec())
    await run(
        box, "sh", "-c", "mkdir out; echo 1 > out/a.txt; ln -s /etc/passwd out/link; mkfifo out/fifo; (sleep 600 &)"
    )
    await asyncio.wait_for(box.stop(), 30)
    captured = await box.capture(CaptureRule(("**",)))
    assert captured.files == {"out/a.txt": b"1\n"}
    assert captured.skipped == 2
    await box.close()
    await box.close()


async def test_a_workspace_goes_in_and_comes_out(runtime: Runtime, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "d").mkdir(parents=True)
    (source / "d" / "a").write_text("in")
    (source / "d" / "a").chmod(0o600)
    (source / "link").symlink_to("d/a")
    target.mkdir()
    box = await runtime.open(BoxSpec())
    assert (await box.place(source)).files == 2
    seen = await run(box, "sh", "-c", "cat link; echo out > d/b; mkfifo fifo; test -O d/a && echo ' mine'")
    assert output(seen) == b"in mine\n"
    await box.stop()
    tally = await box.collect(target, TreeLimits(max_bytes=MIB))
    await box.close()
    assert (tally.files, tally.left_out) == (3, 1)
    assert (target / "d" / "b").read_text() == "out\n"
    assert os.readlink(target / "link") == "d/a"
    assert (target / "d" / "a").stat().st_uid == os.getuid()


async def test_a_workspace_that_is_too_large_for_the_box(runtime: Runtime, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(bytes(2 * MIB))
    box = await runtime.open(BoxSpec(limits=Limits(workspace=MIB)))
    with pytest.raises(PayloadTooLarge):
        await box.place(source)
    await box.close()


async def test_captured_files_go_to_a_directory(runtime: Runtime, tmp_path: Path) -> None:
    box = await runtime.open(BoxSpec())
    await run(box, "sh", "-c", "mkdir out; echo 1 > out/a.txt; ln -s /etc/passwd out/link; mkfifo out/fifo; echo 2 > b")
    target = tmp_path / "target"
    target.mkdir()
    captured = await box.capture_into(target, CaptureRule(("out/**",)))
    await box.close()
    assert [(file.path, file.size, file.link_target) for file in captured.files] == [
        ("out/a.txt", 2, None),
        ("out/link", 0, "/etc/passwd"),
    ]
    assert captured.skipped == {"kind": 1}
    assert [str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()] == ["out/a.txt"]


async def test_usage_counts_cpu_memory_and_processes(runtime: Runtime) -> None:
    await need_cgroup(runtime)
    box = await runtime.open(BoxSpec(limits=Limits(memory=400 * MIB, cpus=2.0)))
    await run(box, "python3", "-c", HOG)
    await box.stop()
    usage = await box.usage()
    await box.close()
    assert usage.cpu_seconds is not None
    # A kernel that is a program of the machine takes for a program's time also what the machine gave to others.
    least = 0.3 if runtime.boundary == "user_kernel" else 1.0
    assert least <= usage.cpu_seconds < 1.0 + patient(1.0)
    assert usage.memory_peak is not None
    assert 100 * MIB <= usage.memory_peak < 260 * MIB
    # Not every kernel tells it of containers.
    assert usage.pids_peak in ((2,) if runtime.boundary == "namespaces" else (2, None))


@pytest.mark.parametrize("image", ["no-such-image", "No Image!"])
async def test_an_unknown_image_is_refused(runtime: Runtime, image: str) -> None:
    # Where images are pulled, one that cannot be is the engine's to name.
    with pytest.raises((UnknownImage, InvalidImage), match=image):
        await runtime.open(BoxSpec(image=image))


async def test_boxes_see_nothing_of_each_other(runtime: Runtime) -> None:
    one, other = await asyncio.gather(runtime.open(BoxSpec()), runtime.open(BoxSpec()))
    await run(one, "sh", "-c", "echo secret > /workspace/s; echo secret > /tmp/s; echo secret > /dev/shm/s")
    seen = output(await run(other, "sh", "-c", "ls -A /workspace /tmp /dev/shm; ps ax -o comm="))
    assert b"s\n" not in seen.splitlines(keepends=True)
    await asyncio.gather(one.close(), other.close())


@pytest.mark.parametrize("executable", [True, False])
async def test_noexec_is_kept(runtime: Runtime, executable: bool) -> None:
    box = await runtime.open(BoxSpec(kind="sandbox", executable=executable))
    script = (
        "for d in /workspace /tmp; do printf '#!/bin/sh\\necho ran' > $d/x; chmod +x $d/x; $d/x; done 2>/dev/null; true"
    )
    assert output(await run(box, "sh", "-c", script)).split() == ([b"ran", b"ran"] if executable else [])
    programs = ["open('/bin/echo', 'rb').read()"]
    if runtime.boundary != "user_kernel":
        # gVisor executes no script by a descriptor, whatever the policy.
        programs.append("b'#!/bin/sh\\necho memfd'")
    for program in programs:
        memfd = (
            f"import os\nfd = os.memfd_create('x', 0)\nos.write(fd, {program})\nos.execve(fd, ['echo', 'memfd'], {{}})"
        )
        ran = output(await run(box, "python3", "-c", memfd))
        if MEMFD_NOEXEC:
            assert ran == (b"memfd\n" if executable else b"")
    await box.close()


async def test_the_standard_streams_have_names(box: Box) -> None:
    events = await run(box, "sh", "-c", "cat /dev/stdin > /dev/stdout; echo e > /dev/stderr", stdin=b"in")
    assert (output(events), output(events, "stderr")) == (b"in", b"e\n")
