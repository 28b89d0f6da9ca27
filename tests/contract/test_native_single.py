"""A box for a single program: it has that one, and nothing that it does not need."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from tests.boxes import count_leaves, descendants, in_boxes, init_of, is_root, native, parent_of
from tests.contract.test_native_faults import wait_until
from tests.contract.test_runtime import collect, output
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.errors import BoxGone, ExecFailed, PayloadTooLarge, ProvisionFailed, RuntimeUnavailable, TideboxError
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited
from tidebox.model.limits import MIB, Limits
from tidebox.runtime.base import Box, Exec
from tidebox.runtime.native.box import NativeBox
from tidebox.runtime.native.runtime import NativeRuntime
from tidebox.runtime.native.spawner import SpawnerClient

Kind = Literal["run", "sandbox"]
KINDS: tuple[Kind, ...] = ("run", "sandbox")
BUSY = """
import os, time
while os.times().system < 0.3:
    for _ in range(1000):
        os.stat("/")
"""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[NativeRuntime]:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    yield native(engine)
    await engine.close()
    assert engine.runtime.live_boxes() == 0


@pytest.fixture
async def box(runtime: NativeRuntime) -> AsyncIterator[Box]:
    box = await runtime.open(BoxSpec(limits=Limits(workspace=4 * MIB)))
    yield box
    await box.close()


async def test_it_runs_one_program_and_no_second(box: Box) -> None:
    events = await collect(await box.exec(Command(argv=["cat"])), b"whole")
    assert output(events) == b"whole"
    assert isinstance(events[-1], Exited)
    assert events[-1].code == 0
    with pytest.raises(ExecFailed, match="one program"):
        await box.exec(Command(argv=["true"]))


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def test_only_programs_are_killed_first_when_memory_is_short(runtime: NativeRuntime, box: Box) -> None:
    spawner = runtime.spawner_pid()
    assert spawner is not None
    others = set(descendants(spawner)) - set(in_boxes(spawner))
    assert others
    assert {oom_score(pid) for pid in others} == {oom_score(os.getpid())}
    events = await collect(await box.exec(Command(argv=["cat", "/proc/self/oom_score_adj"])))
    assert int(output(events)) >= 500


async def test_a_program_that_could_not_be_started_was_the_one(box: Box) -> None:
    with pytest.raises(ExecFailed) as caught:
        await collect(await box.exec(Command(argv=["no-such-program"])))
    assert caught.value.details["kind"] == "not_found"


async def test_a_terminal_is_refused(box: Box) -> None:
    with pytest.raises(ExecFailed, match="on pipes"):
        await box.exec(Command(argv=["sh"], tty=(24, 80)))


async def test_it_has_no_agent_to_ask_for_files(box: Box) -> None:
    with pytest.raises(ExecFailed, match="without an agent"):
        await box.files.list("/workspace")


async def test_signals_reach_the_program_and_what_it_started(box: Box) -> None:
    script = "trap 'echo told; exit 7' TERM; sleep 600 & echo ready; wait"
    program = await box.exec(Command(argv=["sh", "-c", script]))
    seen = b""
    async for event in program.events():
        seen += output([event])
        if seen == b"ready\n":
            await program.signal(signal.SIGTERM)
            seen += b"sent\n"
        if isinstance(event, Exited):
            assert event.code == 7
    assert seen == b"ready\nsent\ntold\n"


async def test_orphans_are_taken_whenever_they_end(box: Box) -> None:
    script = """
import os, time
for _ in range(100):
    if not os.fork():
        if not os.fork():
            time.sleep(0.01)
        os._exit(0)
    os.wait()
def dead():
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
    return found
deadline = time.monotonic() + 20
while dead() and time.monotonic() < deadline:
    time.sleep(0.01)
print(dead())
"""
    events = await collect(await box.exec(Command(argv=["python3", "-c", script])))
    assert output(events) == b"0\n"


async def test_files_are_put_there_before_the_program(box: Box) -> None:
    await box.put({"main.txt": b"main", "deep/er/file.bin": bytes(range(256))})
    await box.put({"main.txt": b"again"})
    script = "cat main.txt; wc -c < deep/er/file.bin; echo more >> deep/er/file.bin && stat -c %U deep deep/er/file.bin"
    events = await collect(await box.exec(Command(argv=["sh", "-c", script])))
    assert output(events).splitlines() == [b"again256", b"user", b"user"]


async def test_files_that_do_not_fit_are_refused(box: Box) -> None:
    with pytest.raises(PayloadTooLarge, match="do not fit"):
        await box.put({"large": bytes(8 * MIB)})


async def test_a_box_that_cannot_be_asked_for_costs_no_descriptor(
    runtime: NativeRuntime, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "none left")

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(SpawnerClient, "send", refuse)
    for kind in KINDS:
        with pytest.raises(OSError, match="none left"):
            await runtime.open(BoxSpec(kind=kind, limits=Limits(workspace=4 * MIB)))
    assert sorted(os.listdir("/proc/self/fd")) == before
    monkeypatch.undo()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_box_whose_descriptors_find_no_room_is_refused(runtime: NativeRuntime, kind: Kind) -> None:
    spec = BoxSpec(kind=kind)
    await (await runtime.open(spec)).close()
    before = count_descriptors()
    opening = asyncio.ensure_future(runtime.open(spec))
    await asyncio.sleep(0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(ProvisionFailed, match="no descriptors left"):
            await opening
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await (await runtime.open(spec)).close()
    assert count_descriptors() == before


def count_descriptors() -> int:
    """Those of this process but the counters of cgroups, of which some are kept."""
    # The listing's own is gone by the time it is looked at.
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and not os.readlink(link).startswith("/sys/fs/cgroup") for link in links)


async def test_the_end_of_init_ends_the_program(box: Box) -> None:
    seconds = str(100_000 + os.getpid())
    program = await box.exec(Command(argv=["sh", "-c", f"echo up; exec sleep {seconds}"]))
    events = program.events()
    while output([await anext(events)]) != b"up\n":
        pass
    gone = asyncio.Event()
    box.on_gone(gone.set)
    async with asyncio.timeout(20):
        program_pid = await asyncio.to_thread(_await_process, ["sleep", seconds])
        os.kill(init_of(program_pid), signal.SIGKILL)
        with pytest.raises(BoxGone):
            await anext(events)
        await gone.wait()


async def start_program(box: Box) -> tuple[Exec, int]:
    """A program that waits for its input, and its pid."""
    seconds = str(100_000 + os.getpid())
    program = await box.exec(Command(argv=["sh", "-c", f"sleep {seconds} & echo $!; read line; echo $line"]))
    events = program.events()
    while not output([await anext(events)]):
        pass
    return program, await asyncio.to_thread(_await_process, ["sleep", seconds])


def keepers(runtime: NativeRuntime) -> list[int]:
    """What stands behind the boxes, parents first: as root what built their root, the template, and its helpers."""
    spawner = runtime.spawner_pid()
    assert spawner is not None
    # In this order: what is made meanwhile is in a box.
    found = descendants(spawner)
    boxed = set(in_boxes(spawner))
    return [pid for pid in found if pid not in boxed]


def template_of(runtime: NativeRuntime) -> int:
    """The child of the spawner, or as root that one's child. Not by its number: these begin anew after the highest."""
    return keepers(runtime)[1 if is_root() else 0]


async def test_a_box_nobody_waits_for_any_more_leaves_no_cgroup(runtime: NativeRuntime) -> None:
    if not is_root():
        pytest.skip("needs a cgroup, which an ordinary user has only where one is delegated")
    # So little of the processor that it is long under way.
    slow = BoxSpec(limits=Limits(cpus=0.01))
    await (await runtime.open(slow)).close()
    template = template_of(runtime)

    async def await_leaves(spares: int, used: int) -> None:
        wanted = {"leaves": spares + used, "populated": 0}
        await asyncio.to_thread(wait_until, lambda: count_leaves(runtime.spawner_pid()) == wanted, f"not {wanted}")

    await await_leaves(2, 0)
    os.kill(template, signal.SIGSTOP)
    openings = [asyncio.ensure_future(runtime.open(slow)) for _ in range(4)]
    await await_leaves(2, 4)
    for opening in openings:
        opening.cancel()
    await asyncio.wait(openings)
    os.kill(template, signal.SIGCONT)
    await await_leaves(2, 0)


async def test_a_stopped_template_does_not_keep_its_boxes_from_closing(runtime: NativeRuntime) -> None:
    box = await runtime.open(BoxSpec())
    other = await runtime.open(BoxSpec())
    program, _ = await start_program(other)
    await start_program(box)
    os.kill(template_of(runtime), signal.SIGSTOP)
    async with asyncio.timeout(8):
        await box.close()
    assert runtime.live_boxes() == 1
    assert output(await collect(program, b"still here\n")) == b"still here\n"
    await other.close()


async def test_what_is_said_of_one_that_ended_is_not_said_of_the_next(runtime: NativeRuntime) -> None:
    """Its numbers are taken again while the template still has something to hear about it."""
    box = await runtime.open(BoxSpec())
    program, pid = await start_program(box)
    template = template_of(runtime)
    os.kill(template, signal.SIGSTOP)
    os.kill(init_of(pid), signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: _command(str(pid)) == b"", "the program did not end")
    order = Command(argv=["echo", "next"])
    opening = asyncio.ensure_future(runtime.open(BoxSpec(), first=order))
    # The order goes through the spawner, and there is no way to see that it arrived.
    await asyncio.sleep(0.3)
    await program.signal(signal.SIGTERM)
    os.kill(template, signal.SIGCONT)
    async with asyncio.timeout(20):
        following = await opening
        assert following.first is not None
        assert output(await collect(following.first)) == b"next\n"
        await following.close()
        await box.close()


async def test_what_is_said_of_one_that_ended_is_not_said_of_one_that_is_being_made(runtime: NativeRuntime) -> None:
    """The same, where the numbers are taken by what the template's helpers make meanwhile."""
    box = await runtime.open(BoxSpec())
    program, pid = await start_program(box)
    template = template_of(runtime)
    helpers = [keeper for keeper in keepers(runtime) if parent_of(keeper) == template]
    for helper in helpers:
        os.kill(helper, signal.SIGSTOP)
    opening = asyncio.ensure_future(runtime.open(BoxSpec()))
    # Orders and what was made are on their way, and there is no way to see that they arrived.
    await asyncio.sleep(0.3)
    os.kill(template, signal.SIGSTOP)
    os.kill(init_of(pid), signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: _command(str(pid)) == b"", "the program did not end")
    for helper in helpers:
        os.kill(helper, signal.SIGCONT)
    await asyncio.sleep(0.3)
    await program.signal(signal.SIGTERM)
    os.kill(template, signal.SIGCONT)
    async with asyncio.timeout(20):
        waiting = await opening
        await open_and_close(runtime, 1)
        await waiting.close()
        await box.close()


async def test_boxes_asked_for_at_the_end_start_nothing_anew(tmp_path: Path) -> None:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    await open_and_close(native(engine), 1)
    spawner = native(engine).spawner_pid()
    assert spawner is not None
    openings = [asyncio.ensure_future(engine.runtime.open(BoxSpec())) for _ in range(20)]
    await asyncio.sleep(0)
    await engine.close()
    for opened in await asyncio.gather(*openings, return_exceptions=True):
        if isinstance(opened, Box):
            await opened.close()
        else:
            assert isinstance(opened, RuntimeUnavailable)
    assert native(engine).spawner_pid() is None
    assert descendants(spawner) == []


async def test_the_answer_of_a_box_that_comes_with_the_end_is_no_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    await open_and_close(native(engine), 1)
    before = count_descriptors()
    take_answer = SpawnerClient.take_answer
    closing: list[asyncio.Future[None]] = []

    def close_and_take(spawner: SpawnerClient, data: bytes, descriptors: list[int]) -> None:
        os.kill(spawner.pid, signal.SIGKILL)
        os.waitid(os.P_PID, spawner.pid, os.WEXITED | os.WNOWAIT)
        closing.append(asyncio.ensure_future(engine.runtime.close()))
        take_answer(spawner, data, descriptors)

    monkeypatch.setattr(SpawnerClient, "take_answer", close_and_take)
    with pytest.raises(RuntimeUnavailable):
        await engine.runtime.open(BoxSpec())
    await closing[0]
    await engine.close()
    # The spawner's socket and the set of descriptors are gone too.
    assert count_descriptors() <= before - 2


@pytest.mark.parametrize("milliseconds", [0, 2, 5, 10, 20])
async def test_programs_end_with_the_runtime_that_is_closed_over_them(tmp_path: Path, milliseconds: int) -> None:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    await open_and_close(native(engine), 1)
    runs = [asyncio.ensure_future(run_on(engine, "import time; time.sleep(60)", timeout=60)) for _ in range(5)]
    await asyncio.sleep(milliseconds / 1000)
    await engine.close()
    async with asyncio.timeout(20):
        for error in await asyncio.gather(*runs, return_exceptions=True):
            assert isinstance(error, (BoxGone, RuntimeUnavailable))


async def test_orders_that_a_dead_spawner_never_took_keep_no_descriptor(runtime: NativeRuntime) -> None:
    await open_and_close(runtime, 1)
    before = count_descriptors()
    spawner = runtime.spawner_pid()
    assert spawner is not None
    os.kill(spawner, signal.SIGSTOP)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        openings = [asyncio.ensure_future(runtime.open(BoxSpec())) for _ in range(400)]
        await asyncio.sleep(0.1)
        # More than what a box holds here: what did not fit into the socket is kept to be sent.
        assert count_descriptors() - before > 4 * len(openings)
        for opening in openings:
            opening.cancel()
        await asyncio.wait(openings)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.kill(spawner, signal.SIGKILL)
    await open_and_close(runtime, 1)
    assert count_descriptors() == before


async def test_a_limit_that_may_not_be_raised_is_named(runtime: NativeRuntime) -> None:
    await open_and_close(runtime, 1)
    template = template_of(runtime)
    set_limit(template, resource.RLIMIT_NOFILE, (512, 512))
    with pytest.raises(ProvisionFailed, match="limit nofile: Operation not permitted"):
        await runtime.open(BoxSpec())


async def test_a_runtime_can_be_closed_over_a_spawner_that_has_just_died(tmp_path: Path) -> None:
    engine = Engine(load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root()), pool=False)
    await open_and_close(native(engine), 1)
    spawner = native(engine).spawner_pid()
    assert spawner is not None
    os.kill(template_of(native(engine)), signal.SIGSTOP)
    opening = asyncio.ensure_future(engine.runtime.open(BoxSpec()))
    await asyncio.sleep(0.1)
    os.kill(spawner, signal.SIGKILL)
    # Nothing else has its turn until the runtime is closed: it has not heard of the death.
    os.waitid(os.P_PID, spawner, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
    await engine.runtime.close()
    with pytest.raises(RuntimeUnavailable):
        await opening
    await engine.close()


async def test_a_box_whose_template_dies_over_it_is_made_by_the_next(runtime: NativeRuntime) -> None:
    await open_and_close(runtime, 1)
    for _ in range(5):
        template = template_of(runtime)
        most = _highest(template, "open files")
        # Not all that comes with the next order gets a number.
        set_limit(template, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{template}/fd")) + 3, most))
        await open_and_close(runtime, 1)
        assert template_of(runtime) != template


async def test_a_spawner_without_descriptors_for_spare_parts_spares_the_boxes_there_are(runtime: NativeRuntime) -> None:
    await open_and_close(runtime, 1)
    await asyncio.sleep(0.3)
    # What these took of the spare parts is made anew, one after the other, when they have had their time.
    boxes = [await runtime.open(BoxSpec()) for _ in range(4)]
    spawner = runtime.spawner_pid()
    assert spawner is not None
    soft, hard = resource.prlimit(spawner, resource.RLIMIT_NOFILE)
    set_limit(spawner, resource.RLIMIT_NOFILE, (3, hard))
    await asyncio.sleep(0.5)
    set_limit(spawner, resource.RLIMIT_NOFILE, (soft, hard))
    assert runtime.spawner_pid() == spawner
    for box in boxes:
        assert not box.gone
        await box.close()
    await open_and_close(runtime, 10)


async def test_a_box_whose_socket_cannot_be_made_is_closed(runtime: NativeRuntime) -> None:
    (runtime._sockets / "sb-1.sock" / "in the way").mkdir(parents=True)
    with pytest.raises(ProvisionFailed, match="cannot listen"):
        await runtime.open(BoxSpec(kind="sandbox", sandbox_id="sb-1"))
    if is_root():
        wait_until(lambda: count_leaves(runtime.spawner_pid())["populated"] == 0, "the box is left")


async def test_a_box_is_not_blamed_for_what_earlier_ones_made_the_kernel_do(runtime: NativeRuntime) -> None:
    if not is_root():
        pytest.skip("without root nothing tells what the kernel spends for a box")
    first = await runtime.open(BoxSpec())
    program = await first.exec(Command(argv=["python3", "-c", BUSY]))
    await collect(program)
    assert isinstance(first, NativeBox)
    assert first.system_seconds() > 0.1
    await first.close()
    for _ in range(4):
        box = await runtime.open(BoxSpec())
        assert isinstance(box, NativeBox)
        assert box.system_seconds() < 0.1
        await box.close()


async def test_a_box_that_is_dead_is_not_watched(runtime: NativeRuntime) -> None:
    box = await runtime.open(BoxSpec(), spare=True)
    assert isinstance(box, NativeBox)
    await box.close()
    with contextlib.suppress(TideboxError):
        await box.adjust(Limits())
    assert box not in runtime._guard._times


async def open_and_close(runtime: NativeRuntime, count: int, kind: Kind = "run") -> None:
    for _ in range(count):
        await (await runtime.open(BoxSpec(kind=kind))).close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_machine_without_another_network_spares_the_boxes_there_are(runtime: NativeRuntime, kind: Kind) -> None:
    if not is_root():
        pytest.skip("needs a way into the template's user namespace: not without root")
    box = await runtime.open(BoxSpec(kind=kind))
    program = await box.exec(Command(argv=["cat"]))
    async with asyncio.timeout(20):
        await anext(program.events())
    template = template_of(runtime) if kind == "run" else keepers(runtime)[-1]
    _allow_networks(template, 0)
    with pytest.raises(ProvisionFailed) as caught:
        await open_and_close(runtime, 10, kind)
    assert caught.value.details["errno"] == errno.ENOSPC
    _allow_networks(template, 1000)
    await open_and_close(runtime, 10, kind)
    assert output(await collect(program, b"still here")) == b"still here"
    await box.close()


def _allow_networks(template: int, count: int) -> None:
    """How many there may be in its user namespace."""
    _as_root_of(template, "sh", "-c", f"echo {count} > /proc/sys/user/max_net_namespaces")


def set_limit(template: int, number: int, limits: tuple[int, int]) -> None:
    """Set a limit of a process that has another user namespace."""
    with contextlib.suppress(PermissionError):
        resource.prlimit(template, number, limits)
        return
    code = f"import resource; resource.prlimit({template}, {number}, {limits})"
    _as_root_of(template, sys.executable, "-I", "-S", "-c", code)


def _highest(pid: int, name: str) -> int:
    """The hard limit of a process."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    value = next(line for line in lines if line.startswith(f"Max {name}")).split()[-2]
    return resource.RLIM_INFINITY if value == "unlimited" else int(value)


def _as_root_of(template: int, *command: str) -> None:
    """Run a command of the machine with all powers in the user namespace of ``template``."""
    into = ["nsenter", "-t", str(template), "-U", "-S", "0", "-G", "0"]
    subprocess.run([*into, *command], check=True)


async def test_a_machine_without_room_for_another_spares_the_boxes_there_are(runtime: NativeRuntime) -> None:
    box = await runtime.open(BoxSpec())
    program, _ = await start_program(box)
    # What makes hulls, and what makes the programs in them.
    *others, maker = keepers(runtime)
    for full in ([maker], others):
        most = _highest(maker, "processes")
        for keeper in full:
            set_limit(keeper, resource.RLIMIT_NPROC, (1, most))
        with pytest.raises(ProvisionFailed) as caught:
            await open_and_close(runtime, 10)  # some are ready
        assert caught.value.details["errno"] == errno.EAGAIN
        for keeper in full:
            set_limit(keeper, resource.RLIMIT_NPROC, (most, most))
        await open_and_close(runtime, 10)
    events = await collect(program, b"still here\n")
    assert output(events) == b"still here\n"
    await box.close()


def _await_process(argv: list[str]) -> int:
    wanted = b"".join(argument.encode() + b"\0" for argument in argv)
    for _ in range(1000):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if _command(pid) == wanted:
                return int(pid)
        time.sleep(0.01)
    raise AssertionError(f"nothing runs {argv}")


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
