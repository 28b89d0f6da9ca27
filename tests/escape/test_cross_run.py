"""Nothing of one run is there in another, after it or beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import uuid
from typing import Any

import pytest

from tests.escape.probes import MIB, AsyncRun, Run, python, said
from tests.escape.test_inheritance import scan_for
from tests.escape.test_processes import KILL_EVERYTHING
from tests.runtimes import RUNTIME
from tidebox.errors import ProvisionFailed


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
def test_files_are_gone(box_run: Run, place: str) -> None:
    name = f"{place}/left-{uuid.uuid4().hex}"
    assert said(box_run(f"open({name!r}, 'w').write('x'); print(len(open({name!r}).read()))")) == "1"
    known = {"main.py"} if place == "/workspace" else set()
    assert set(said(box_run(f"import os; print(*os.listdir({place!r}))")).split()) <= known


IPC = {
    "shared-memory": ("call(NR.shmget, {key}, 4096, 0o1666)", "call(NR.shmget, {key}, 0, 0)"),
    "semaphores": ("call(NR.semget, {key}, 1, 0o1666)", "call(NR.semget, {key}, 0, 0)"),
    "message-queue": ("call(NR.msgget, {key}, 0o1666)", "call(NR.msgget, {key}, 0)"),
    "posix-queue": (
        "call(NR.mq_open, b'q{key}', os.O_CREAT | os.O_RDWR, 0o666, 0)",
        "call(NR.mq_open, b'q{key}', os.O_RDWR, 0, 0)",
    ),
}


@pytest.mark.parametrize("kind", sorted(IPC))
def test_objects_of_ipc_are_gone(box_run: Run, kind: str) -> None:
    key = 0x51DE0000 + os.getpid() % 65536
    make, find = (source.format(key=key) for source in IPC[kind])
    assert said(box_run(python(f"print({make} >= 0, {find} >= 0)"))) == "True True"
    assert said(box_run(python(f"attempt(lambda: {find})"))) == "denied ENOENT"


def test_a_changed_interpreter_is_gone(box_run: Run) -> None:
    spoil = """
import builtins, os, sys, signal, warnings
builtins.print = lambda *a: None
builtins.planted = sys.planted = os.planted = 1
sys.modules["planted"] = os
sys.path.insert(0, "/tmp")
sys.setrecursionlimit(777)
sys.excepthook = lambda *a: None
os.environ["PLANTED"] = "1"
os.umask(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.write("spoiled")
"""
    look = """
import builtins, os, sys, signal
print(hasattr(builtins, "planted") or hasattr(sys, "planted") or hasattr(os, "planted"), "planted" in sys.modules,
      "/tmp" in sys.path, sys.getrecursionlimit(), sys.excepthook is sys.__excepthook__, "PLANTED" in os.environ,
      oct(os.umask(0)), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
    assert said(box_run(spoil)) == "spoiled"
    assert said(box_run(look)) == "False False False 1000 True False 0o22 True"


def test_environment_of_one_run_is_not_in_the_next(box_run: Run) -> None:
    program = "import os; print(os.environ.get('RUN_SECRET', 'none'))"
    assert said(box_run(program, env={"RUN_SECRET": "first"})) == "first"
    assert said(box_run(program)) == "none"


def test_unread_input_of_one_run_is_not_in_the_next(box_run: Run) -> None:
    assert said(box_run("print('ignored')", stdin=b"left over\n" * 1000)) == "ignored"
    assert said(box_run("import sys; print(repr(sys.stdin.read()))", stdin=b"")) == "''"


def test_secrets_of_a_run_are_not_in_the_memory_of_the_next(box_run: Run) -> None:
    secret = "canary-" + os.urandom(12).hex()
    hold = f"held = [{secret!r} + str(n) for n in range(1000)]; print(len(held))"
    assert said(box_run(hold, env={"RUN_SECRET": secret}, stdin=secret.encode())) == "1000"
    baseline = int(said(box_run(scan_for("canary-" + os.urandom(12).hex()))))
    assert int(said(box_run(scan_for(secret)))) <= baseline


# Ways to hand a secret to a program; each gets it in the place of {}.
HANDED: dict[str, dict[str, Any]] = {
    "python": {"code": "held = '{}'", "env": {"HELD": "{}"}, "stdin": "{}"},
    "shell": {"code": ": {}", "language": "shell", "env": {"HELD": "{}"}, "stdin": "{}"},
    "javascript": {"code": "// {}", "language": "javascript", "env": {"HELD": "{}"}, "stdin": "{}"},
    "command": {"command": ["true", "{}"], "env": {"HELD": "{}"}, "stdin": "{}"},
    "absent-command": {"command": ["no-{}"], "env": {"HELD": "{}"}, "stdin": "{}"},
    "files": {"code": "open('file').read()", "files": {"file": b"{}", "other-{}": b""}},
    "pool": {"code": "held = '{}'", "memory": 100 * MIB, "stdin": "{}"},
}


@pytest.mark.parametrize("way", sorted(HANDED))
async def test_what_one_program_is_handed_no_other_finds_in_its_memory(box_arun: AsyncRun, way: str) -> None:
    """Programs are forked from one template, which never holds what they are to do."""
    secret = "canary-" + os.urandom(12).hex()
    await box_arun(**_fill_in(HANDED[way], secret))
    holder = asyncio.ensure_future(box_arun("import time; time.sleep(1)", env={"HELD": secret}, stdin=secret))
    baseline = int(said(await box_arun(scan_for("canary-" + os.urandom(12).hex()))))
    for memory in (256 * MIB, 100 * MIB):
        assert int(said(await box_arun(scan_for(secret), memory=memory))) <= baseline
    await holder


def _fill_in(value: Any, secret: str) -> Any:
    if isinstance(value, dict):
        return {_fill_in(name, secret): _fill_in(item, secret) for name, item in value.items()}
    if isinstance(value, list):
        return [_fill_in(item, secret) for item in value]
    if isinstance(value, str | bytes):
        return value.replace("{}", secret) if isinstance(value, str) else value.replace(b"{}", secret.encode())
    return value


@pytest.mark.parametrize(
    "source",
    [
        "import random; print(random.random())",
        "import uuid; print(uuid.uuid4())",
        "import os; print(os.urandom(8).hex())",
        "import tempfile; print(tempfile.mktemp())",
        "import secrets; print(secrets.token_hex())",
        "import ssl; print(ssl.RAND_bytes(8).hex())",
    ],
    ids=["random", "uuid", "urandom", "tempfile", "secrets", "openssl"],
)
def test_randomness_is_not_shared(box_run: Run, source: str) -> None:
    """Programs are forked from one warm interpreter; what it had seeded would be the same in each."""
    assert len({said(box_run(source)) for _ in range(4)}) == 4


def test_a_server_left_running_is_gone(box_run: Run) -> None:
    serve = """
import os, socket
server = socket.create_server(("127.0.0.1", 41973))
if os.fork() == 0:
    os.setsid()
    for fd in (0, 1, 2):
        os.close(fd)
    while True:
        server.accept()[0].sendall(b"BREACH")
print("serving")
"""
    assert said(box_run(serve)) == "serving"
    program = python("import socket; attempt(lambda: socket.create_connection(('127.0.0.1', 41973)))")
    assert said(box_run(program)) == "denied ECONNREFUSED"


def test_late_output_does_not_reach_the_next_run(box_run: Run) -> None:
    late = """
import os, time
if os.fork() == 0:
    os.setsid()
    for _ in range(200):
        os.write(1, b"late output\\n")
        time.sleep(0.01)
print("first")
"""
    assert b"first" in box_run(late).stdout
    assert said(box_run("import time; time.sleep(0.3); print('second')")) == "second"


BESIDE = {
    "tcp": (
        "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(1.5); print('up')",
        "import socket; attempt(lambda: socket.create_connection(('127.0.0.1', {port})))",
        "denied ECONNREFUSED",
    ),
    "abstract-socket": (
        """
import socket, time
server = socket.socket(socket.AF_UNIX)
server.bind("\\0beside-{port}")
server.listen()
time.sleep(1.5)
print("up")
""",
        "import socket; attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0beside-{port}'))",
        "denied ECONNREFUSED",
    ),
    "shared-memory": (
        "import time; call(NR.shmget, {port}, 4096, 0o1666); time.sleep(1.5); print('up')",
        "attempt(lambda: call(NR.shmget, {port}, 0, 0))",
        "denied ENOENT",
    ),
    "files": (
        "import time; open('/tmp/beside-{port}', 'w').close(); time.sleep(1.5); print('up')",
        "attempt(lambda: os.stat('/tmp/beside-{port}'))",
        "denied ENOENT",
    ),
    "terminals": (
        "import time; pair = os.openpty(); time.sleep(1.5); print('up')",
        "print(*[name for name in os.listdir('/dev/pts') if name != 'ptmx'])",
        "",
    ),
    "processes": (
        "import time; time.sleep(1.5); print('up')",
        "print(len([name for name in os.listdir('/proc') if name.isdigit()]) <= 3)",
        "True",
    ),
}


@pytest.mark.parametrize("kind", sorted(BESIDE))
async def test_a_box_beside_it_is_out_of_reach(box_arun: AsyncRun, kind: str) -> None:
    holder, seeker, expected = BESIDE[kind]
    port = 42000 + os.getpid() % 1000
    holding = asyncio.ensure_future(box_arun(python(holder.format(port=port))))
    await asyncio.sleep(0.6)
    found = said(await box_arun(python(seeker.format(port=port))))
    assert said(await holding) == "up"
    assert found == expected


async def test_a_kill_of_everything_spares_the_box_beside_it(box_arun: AsyncRun) -> None:
    victim = asyncio.ensure_future(box_arun("import time; time.sleep(1); print('alive')"))
    await asyncio.sleep(0.3)
    killer = await box_arun(KILL_EVERYTHING)
    assert killer.signal == 9
    assert said(await victim) == "alive"


FILL_THE_WAY = """
import array, os, socket, time
ends = []
null = os.open("/dev/null", os.O_RDONLY)
message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 200))]
try:
    while True:
        ends.append(socket.socketpair())
        ends[-1][0].setblocking(False)
        try:
            while True:
                ends[-1][0].sendmsg([b"x"], message)
        except BlockingIOError:
            pass
except OSError as error:
    print(error.strerror, flush=True)
time.sleep(2)
"""


async def test_descriptors_sent_and_never_received_spare_the_box_beside_it(box_arun: AsyncRun) -> None:
    """Without root the kernel counts them for the user of all boxes and of the server, which sends some itself."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    victim = asyncio.ensure_future(box_arun("import time; time.sleep(3); print('alive')"))
    filler = asyncio.ensure_future(box_arun(FILL_THE_WAY, open_files=most))
    await asyncio.sleep(1)
    for _ in range(3):
        # Of a kind that the pool does not have.
        with contextlib.suppress(ProvisionFailed):
            await box_arun("print(1)", open_files=100)
    assert said(await victim) == "alive"
    assert said(await filler) == "Too many references: cannot splice"
    assert said(await box_arun("print(1)", open_files=100)) == "1"


async def test_a_box_for_few_descriptors_opens_beside_programs_that_send_many(box_arun: AsyncRun) -> None:
    """Those on the way are more than it may have open itself, and more than we may unless we raise that."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1000, limits[0]), limits[1]))
    try:
        filler = asyncio.ensure_future(box_arun(FILL_THE_WAY, open_files=1024))
        opened = []
        while not filler.done():
            opened.append(said(await box_arun("print(1)", open_files=64)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(opened) == {"1"}
    assert said(await filler) == "Too many references: cannot splice"


async def test_boxes_run_under_different_users(box_arun: AsyncRun) -> None:
    """As root each box has ids of its own outside, so that nothing shared by accident is shared by right."""
    if os.geteuid() != 0:
        pytest.skip("without root every box maps to the one user who runs it")
    # Where boxes have no user namespace of their own the id is the one that they see.
    asked = "open('/proc/self/uid_map').read().split()[1]" if RUNTIME == "native" else "__import__('os').getuid()"
    program = f"import time; print({asked}, flush=True); time.sleep(0.5)"
    first, second = await asyncio.gather(box_arun(program), box_arun(program))
    assert said(first) != said(second)
