"""A box sees and reaches its own processes, and leaves none behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.escape.probes import (
    NUMBERS,
    Probe,
    Run,
    assert_refused,
    host_processes_with,
    on_gvisor,
    outside,
    python,
    said,
)
from tests.patience import patient
from tests.runtimes import RUNTIME

# A caller is spared by kill(-1), and where it is alone the call finds nobody.
KILL_EVERYTHING = """
import os
try:
    os.kill(-1, 9)
except ProcessLookupError:
    pass
os.kill(os.getpid(), 9)
"""


def gone(marker: str, seconds: float = 30.0) -> bool:
    """Whether no process of this machine shows ``marker`` within ``seconds``."""
    deadline = time.monotonic() + patient(seconds)
    while host_processes_with(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this machine that a box must not reach."""
    process = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_only_processes_of_the_box_are_visible(box_run: Run) -> None:
    program = "import os; print(*[name for name in os.listdir('/proc') if name.isdigit()])"
    pids = [int(pid) for pid in said(box_run(program)).split()]
    assert len(pids) <= 3
    assert max(pids) < 100
    assert len((outside(program, shield=False) or "1 2 3 4").split()) > 3


def test_no_ancestor_is_in_sight(box_run: Run) -> None:
    # In a container the agent, which is its init, is the parent.
    parent = "0" if RUNTIME == "native" else "1"
    assert said(box_run("import os; print(os.getppid(), os.getsid(0) == os.getpid())")) == f"{parent} True"


def test_killing_everything_kills_only_oneself(box_run: Run, bystander: subprocess.Popen[bytes]) -> None:
    result = box_run(KILL_EVERYTHING)
    assert (result.outcome.value, result.signal) == ("signaled", 9)
    assert bystander.poll() is None
    assert said(box_run("print('next')")) == "next"


def test_every_pid_of_the_machine_is_out_of_reach(box_run: Run, bystander: subprocess.Popen[bytes]) -> None:
    program = """
import os
reached = []
for pid in range(2, 70000):
    if pid != os.getpid():
        try:
            os.kill(pid, 9)
            reached.append(pid)
        except ProcessLookupError:
            pass
        except PermissionError:
            reached.append(-pid)
print(len(reached))
"""
    assert int(said(box_run(program))) <= 1
    assert bystander.poll() is None


def test_a_pidfd_of_the_machine_cannot_be_had(box_run: Run, bystander: subprocess.Popen[bytes]) -> None:
    if bystander.pid < 100:
        pytest.skip("the pid could also be one of the box")
    program = python(f"attempt(lambda: os.pidfd_open({bystander.pid}))")
    assert said(box_run(program)) in {"denied ESRCH", *on_gvisor("denied ENOSYS")}
    assert (outside(program, shield=False) or "BREACH").startswith("BREACH")


SURVIVORS = {
    "daemon": """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(0); os.close(1); os.close(2)
        os.execvp("sleep", ["{marker}", "600"])
    os._exit(0)
os.wait()
""",
    "ignores-signals": """
import os, signal
if os.fork() == 0:
    os.setsid()
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    os.close(0); os.close(1); os.close(2)
    os.execvp("sleep", ["{marker}", "600"])
""",
    "stopped": """
import os, signal, time
child = os.fork()
if child == 0:
    os.execvp("sleep", ["{marker}", "600"])
time.sleep(0.1)
os.kill(child, signal.SIGSTOP)
""",
    "subreaper": """
import ctypes, os
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    if os.fork() == 0:
        os.execvp("sleep", ["{marker}", "600"])
    os._exit(0)
""",
    "sibling-of-its-maker": """
import ctypes, os
CLONE_PARENT, SIGCHLD = 0x8000, 17
libc = ctypes.CDLL(None)
number = {clone}
if libc.syscall(ctypes.c_long(number), ctypes.c_long(CLONE_PARENT | SIGCHLD), 0, 0, 0, 0) == 0:
    os.execvp("sleep", ["{marker}", "600"])
if libc.syscall(ctypes.c_long(number), ctypes.c_long(SIGCHLD), 0, 0, 0, 0) == 0:
    os.execvp("sleep", ["{marker}", "600"])
""",
    "many": """
import os
for _ in range(40):
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["{marker}", "600"])
""",
}


@pytest.mark.parametrize("kind", sorted(SURVIVORS))
def test_no_process_outlives_its_run(box_run: Run, kind: str) -> None:
    marker = f"survivor-{uuid.uuid4().hex}"
    result = box_run(SURVIVORS[kind].format(marker=marker, clone=NUMBERS["clone"]), timeout=patient(20))
    assert result.outcome.value == "exited"
    assert gone(marker)


def test_no_process_outlives_a_timeout(box_run: Run) -> None:
    marker = f"survivor-{uuid.uuid4().hex}"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    os.execvp("sleep", ["{marker}", "600"])
time.sleep(600)
"""
    assert box_run(code, timeout=0.7).outcome.value == "timeout"
    assert gone(marker)


TRACING = [
    Probe("trace-me", "attempt(lambda: call(NR.ptrace, 0, 0, 0, 0))"),
    Probe(
        "trace-a-child",
        """
        import time
        child = os.fork()
        if child == 0:
            time.sleep(5); os._exit(0)
        try:
            attempt(lambda: call(NR.ptrace, 16, child, 0, 0))
        finally:
            os.kill(child, 9)
        """,
    ),
    Probe(
        "read-a-child",
        """
        import time
        secret = ctypes.create_string_buffer(b"secret")
        child = os.fork()
        if child == 0:
            time.sleep(5); os._exit(0)
        target = ctypes.create_string_buffer(6)
        ours = (ctypes.c_uint64 * 2)(ctypes.addressof(target), 6)
        theirs = (ctypes.c_uint64 * 2)(ctypes.addressof(secret), 6)
        attempt(lambda: call(NR.process_vm_readv, child, ours, 1, theirs, 1, 0))
        os.kill(child, 9)
        """,
    ),
    Probe(
        "take-a-descriptor",
        "attempt(lambda: call(NR.pidfd_getfd, os.pidfd_open(os.getpid()), 0, 0))",
        gvisor=("ENOSYS",),
    ),
    Probe("compare-processes", "attempt(lambda: call(NR.kcmp, os.getpid(), os.getpid(), 2, 0, 0))"),
]


@pytest.mark.parametrize("probe", TRACING, ids=str)
def test_no_process_can_be_inspected_by_force(box_run: Run, probe: Probe) -> None:
    assert_refused(box_run, probe)


def test_pids_of_the_server_mean_nothing_inside(box_run: Run) -> None:
    program = python(f"attempt(lambda: open('/proc/{os.getpid()}/environ').read())")
    assert said(box_run(program)) in {"denied ENOENT", "denied ESRCH"} or os.getpid() < 100
