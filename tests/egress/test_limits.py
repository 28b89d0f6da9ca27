"""What a box may have of the network is bounded, and nothing of it is left when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.egress.programs import ONLY_ONE, python
from tests.egress.world import ALL, BULK, ECHO, ONE, SILENT, TRICKLE, Machine, rules
from tests.patience import patient
from tidebox.errors import BoxGone
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import OutputEvent
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.result import Outcome
from tidebox.runtime.base import Box, Exec

MIB = 1 << 20


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, machine: Machine) -> Iterator[Machine]:
    """A machine that allows little."""
    little = {"connections": 20, "connections_total": 30, "bytes": 24 * MIB, "rate": 16 * MIB}
    made = Machine(tmp_path_factory.mktemp("strict"), machine, **little)
    yield made
    made.stop()


def until(check: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a fact."""
    deadline = time.monotonic() + patient(seconds)
    while not check():
        assert time.monotonic() < deadline, "it did not become so"
        time.sleep(0.01)


HOLD = python(f"""
held = []
denied = 0
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 25):
    try:
        sock = socket.create_connection(("one.example.com", {ECHO}), 20)
        sock.sendall(b"!")
        if sock.recv(1) == b"!":
            held.append(sock)
            continue
    except ConnectionResetError:
        pass
    denied += 1
print(len(held), denied, flush=True)
""")


def test_connections_of_a_box_are_bounded(strict: Machine) -> None:
    after = f"\nheld.pop().close()\ntime.sleep(0.2)\nattempt(lambda: talk(('one.example.com', {ECHO}), b'?'))"
    ran = strict.run(HOLD + after, ONLY_ONE)
    assert ran.out == "20 5\n?\n", ran.err
    assert (None, None, "limit") in ran.denied()


def test_connections_of_all_boxes_are_bounded(strict: Machine) -> None:
    """The second box gets what the first leaves, and all of its own when that is gone."""

    async def both() -> tuple[str, str, str]:
        told = asyncio.Event()
        cancel = OneShotFlag()
        first = asyncio.create_task(
            strict.arun(HOLD + "\ntime.sleep(600)", ONLY_ONE, cancel=cancel, on_output=lambda _: told.set())
        )
        await told.wait()
        second = await strict.arun(HOLD, ONLY_ONE)
        cancel.set()
        return (await first).out, second.out, (await strict.arun(HOLD, ONLY_ONE)).out

    assert strict.do(both()) == ("20 5\n", "10 15\n", "20 5\n")


def test_bytes_of_a_box_are_bounded(strict: Machine) -> None:
    program = python(f"""
    def download(size):
        with socket.create_connection(("one.example.com", {BULK}), 20) as sock:
            sock.sendall(b"%d\\n" % size)
            got = 0
            try:
                while data := sock.recv(1 << 20):
                    got += len(data)
            except ConnectionResetError:
                return "reset", got < (24 << 20)
            return got
    attempt(lambda: download(20 << 20))
    attempt(lambda: download(20 << 20))
    attempt(lambda: talk(("one.example.com", {ECHO}), b"?"))
    """)
    ran = strict.run(program, ONLY_ONE)
    assert ran.out.splitlines() == [str(20 * MIB), "('reset', True)", "denied ECONNRESET"]
    assert "limit" in {reason for _, _, reason in ran.denied()}
    # 16 MiB at once and 16 MiB in a second: the first download alone takes a quarter of one.
    assert ran.ending.usage.wall_seconds > 0.25


def test_a_connection_on_which_nothing_is_said_is_ended(
    tmp_path: Path, machine: Machine, request: pytest.FixtureRequest
) -> None:
    """And one on which a byte goes by now and then, either way, is not."""
    hasty = Machine(tmp_path, machine, idle=patient(4.0))
    request.addfinalizer(hasty.stop)
    program = python(f"""
    idle, heard = (socket.create_connection(("one.example.com", port), 60) for port in ({SILENT}, {TRICKLE}))
    said = socket.create_connection(("one.example.com", {SILENT}), 60)
    began = time.monotonic()
    def talk_on():
        while True:
            said.sendall(b".")
            time.sleep(0.05)
    threading.Thread(target=talk_on, daemon=True).start()
    attempt(lambda: idle.recv(1))
    print(time.monotonic() - began >= {patient(3.9)})
    said.setblocking(False)
    attempt(lambda: said.recv(1))
    print(len(heard.recv(1)))
    """)
    ran = hasty.run(program, ONLY_ONE)
    assert ran.out.splitlines() == ["denied ECONNRESET", "True", "denied EAGAIN", "1"], ran.err


def test_a_cancelled_run_leaves_no_connection(machine: Machine) -> None:
    world = machine.world
    until(lambda: not world.open)

    async def cancelled() -> Outcome:
        told = asyncio.Event()
        cancel = OneShotFlag()
        program = HOLD + "\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
        run = asyncio.create_task(machine.arun(program, ONLY_ONE, cancel=cancel, on_output=lambda _: told.set()))
        await told.wait()
        assert len(world.open) == 25
        cancel.set()
        return (await run).ending.outcome

    assert machine.do(cancelled()) is Outcome.CANCELLED
    until(lambda: not world.open)


def test_nothing_is_left_of_boxes(machine: Machine) -> None:
    """Descriptors of the server and, where they can be seen, of the process are as many as before."""

    def opened(process: str) -> int:
        """Without the counters of control groups, of which a few are kept for boxes to come."""
        found = 0
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                found += not entry.readlink().is_relative_to("/sys/fs/cgroup")
        return found

    def counts() -> list[int]:
        return [opened("self"), *([opened(str(machine.process))] if os.geteuid() == 0 else [])]

    machine.run(HOLD, ONLY_ONE)
    machine.do(machine.pool.filled())
    until(lambda: not machine.world.open)
    before = counts()
    for _ in range(5):
        machine.run(HOLD, ONLY_ONE)
    machine.do(machine.pool.filled())
    until(lambda: all(now <= then for now, then in zip(counts(), before, strict=True)))


async def start(machine: Machine, box: Box, program: str) -> tuple[Exec, Callable[[], asyncio.Future[str]]]:
    """A program in a sandbox, and what gives its next line."""
    exec_ = await box.exec(Command(argv=["python3", "-c", program]))
    lines: asyncio.Queue[str] = asyncio.Queue()

    async def read() -> None:
        text = ""
        with contextlib.suppress(BoxGone):
            async for event in exec_.events():
                if isinstance(event, OutputEvent):
                    text += event.data.decode()
                    *whole, text = text.split("\n")
                    for line in whole:
                        lines.put_nowait(line)

    exec_.reading = asyncio.create_task(read())  # type: ignore[attr-defined]
    return exec_, lambda: asyncio.ensure_future(lines.get())


AGAIN = python(f"""
def dial(): return socket.create_connection(("rebinding.example.com", {ECHO}), 20)
sock = dial()
sock.sendall(b"!")
print(sock.recv(1), flush=True)
attempt(lambda: sock.recv(1))
sys.stdout.flush()
sys.stdin.readline()
sock = dial()
sock.sendall(b"?")
attempt(lambda: sock.recv(1))
""")


def rebinding(machine: Machine) -> object:
    machine.world.resolver.rebinding["rebinding.example.com"] = itertools.chain([ONE], itertools.repeat("127.0.0.1"))
    return rules(ALL, {"hosts": ["rebinding.example.com"]})


def test_a_frozen_sandbox_has_no_connection(machine: Machine) -> None:
    if not machine.runtime.features.freezes:
        pytest.skip("this user cannot freeze boxes: without root there are no control groups here")

    async def live() -> list[str]:
        box = await machine.runtime.open(BoxSpec(kind="sandbox", egress=rebinding(machine)))  # type: ignore[arg-type]
        try:
            exec_, line = await start(machine, box, AGAIN)
            said = [await line()]
            await box.freeze()
            await asyncio.to_thread(until, lambda: not machine.world.open)
            await box.thaw()
            said.append(await line())
            await exec_.write(b"\n")
            return [*said, await line()]
        finally:
            await box.close()

    # What it would have received is gone; what it dials anew works, by the name it had.
    assert machine.do(live()) == ["b'!'", "denied ECONNRESET", "b'?'"]


def test_a_dead_process_fails_what_used_it_and_comes_back(machine: Machine) -> None:
    async def live() -> list[str]:
        box = await machine.runtime.open(BoxSpec(kind="sandbox", egress=rebinding(machine)))  # type: ignore[arg-type]
        try:
            exec_, line = await start(machine, box, AGAIN)
            said = [await line()]
            dead = machine.process
            assert dead is not None
            os.kill(dead, signal.SIGKILL)
            said.append(await line())
            # At once: the connection waits until there is a process again. The name is not resolved anew.
            await exec_.write(b"\n")
            said.append(await line())
            assert machine.process not in (None, dead)
            usage = await box.usage()
            assert usage.egress is not None
            return said
        finally:
            await box.close()

    assert machine.do(live()) == ["b'!'", "denied ECONNRESET", "b'?'"]
    # Boxes without a way out do not notice, and others with one have it.
    assert machine.run("print(1)", None).out == "1\n"
    assert machine.run(python(f"print(talk(('one.example.com', {ECHO}), b'?'))"), ONLY_ONE).out == "?\n"


def test_slow_servers_and_floods_do_not_hold_up_a_neighbour(machine: Machine) -> None:
    """One box holds as many slow and silent connections as it may, dials without end and asks for names without end."""
    flood = python(f"""
    held = []
    for number in range(200):
        sock = socket.create_connection(("one.example.com", {SILENT} if number % 2 else {TRICKLE}), 20)
        sock.sendall(b"GET / HTTP/1.1\\r\\nX: ")
        held.append(sock)
    print("ready", flush=True)
    def dial():
        while True:
            try:
                with socket.socket() as sock:
                    sock.settimeout(1)
                    sock.connect(("{ONE}", 81))
                    sock.recv(1)
            except OSError:
                pass
    def ask():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(("127.0.0.1", 53))
        head = struct.pack(">6H", 1, 0x100, 1, 0, 0, 0)
        while True:
            try:
                sock.send(head + b"\\x04evil\\x03net\\0\\0\\1\\0\\1")
            except OSError:
                pass
    for work in (dial, dial, ask):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(600)
    """)

    async def beside() -> list[str]:
        ready = asyncio.Event()
        cancel = OneShotFlag()
        attacker = asyncio.create_task(
            machine.arun(flood, ONLY_ONE, cancel=cancel, on_output=lambda _: ready.set(), timeout=600)
        )
        await ready.wait()
        program = python(f"attempt(lambda: talk(('two.example.com', {ECHO}), b'?'))")
        said = [(await machine.arun(program, rules(ALL, {"hosts": ["two.example.com"]}))).out for _ in range(5)]
        cancel.set()
        await attacker
        return said

    assert machine.do(beside()) == ["?\n"] * 5


def test_names_that_nobody_answers_do_not_hold_up_a_neighbour(machine: Machine) -> None:
    """One box asks without end for names of a domain whose servers are silent."""
    flood = python("""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", 53))
    for number in range(1500):
        name = b"x%d" % number
        question = bytes([len(name)]) + name + b"\\x05quiet\\x07example\\x03com\\0\\0\\1\\0\\1"
        sock.send(struct.pack(">6H", 1, 0x100, 1, 0, 0, 0) + question)
        if number == 250:
            print("ready", flush=True)
        time.sleep(0.002)
    time.sleep(600)
    """)

    async def beside() -> list[tuple[str, float]]:
        ready = asyncio.Event()
        cancel = OneShotFlag()
        lists = rules(ALL, {"hosts": ["*.quiet.example.com"]})
        attacker = asyncio.create_task(
            machine.arun(flood, lists, cancel=cancel, on_output=lambda _: ready.set(), timeout=600)
        )
        await ready.wait()
        program = python(f"attempt(lambda: talk(('two.example.com', {ECHO}), b'?'))")
        said = []
        for _ in range(3):
            began = time.monotonic()
            ran = await machine.arun(program, rules(ALL, {"hosts": ["two.example.com"]}))
            said.append((ran.out, time.monotonic() - began))
        cancel.set()
        await attacker
        return said

    said = machine.do(beside())
    assert [out for out, _ in said] == ["?\n"] * 3
    # Less than a question that nobody answers takes.
    assert max(seconds for _, seconds in said) < patient(1.8), said


def test_a_box_that_is_killed_takes_its_connections_along(machine: Machine) -> None:
    """Its own processes cannot say goodbye."""
    until(lambda: not machine.world.open)

    async def killed() -> None:
        box = await machine.runtime.open(BoxSpec(kind="sandbox", egress=ONLY_ONE))
        _, line = await start(machine, box, HOLD + "\ntime.sleep(600)")
        assert await line() == "25 0"
        assert len(machine.world.open) == 25
        await box.close()

    machine.do(killed())
    until(lambda: not machine.world.open)
