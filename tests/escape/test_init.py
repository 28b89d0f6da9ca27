"""The box's init is ours: user code can neither end, stop, starve, read nor change it."""

from __future__ import annotations

import signal

import pytest

from tests.escape.probes import Probe, Run, on_gvisor, outside, python, said, try_call
from tests.patience import patient
from tests.runtimes import RUNTIME, native_only

SIGNALS = [
    "SIGKILL",
    "SIGSTOP",
    "SIGTERM",
    "SIGINT",
    "SIGHUP",
    "SIGQUIT",
    "SIGSEGV",
    "SIGUSR1",
    "SIGCHLD",
    "SIGPIPE",
    "SIGXCPU",
    "SIGRTMIN",
]


@pytest.mark.parametrize("name", SIGNALS)
def test_init_survives_every_signal(box_run: Run, name: str) -> None:
    number = int(getattr(signal, name))
    program = f"""
import os, sys, time
for _ in range(3):
    try:
        os.kill(1, {number})
    except PermissionError:
        pass
time.sleep(0.05)
print("still here", flush=True)
sys.exit(3)
"""
    result = box_run(program)
    assert (result.outcome.value, result.exit_code, result.stdout) == ("exited", 3, b"still here\n")


WAYS = {
    "tkill": "call(NR.tkill, 1, 9)",
    "tgkill": "call(NR.tgkill, 1, 1, 9)",
    "queue": "call(NR.rt_sigqueueinfo, 1, 9, b'\\x09' + bytes(7) + b'\\xff' * 4 + bytes(116))",
    "pidfd": "call(NR.pidfd_send_signal, os.pidfd_open(1), 9, 0, 0)",
    "group": "os.killpg(1, 9)",
}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_init_survives_a_kill_by_any_call(box_run: Run, way: str) -> None:
    program = python(
        f"""
        try:
            {WAYS[way]}
        except OSError:
            pass
        print("still here")
        """
    )
    assert said(box_run(program)) == "still here"


def test_init_survives_a_flood_of_signals(box_run: Run) -> None:
    program = """
import os
for _ in range(50000):
    for number in (17, 10, 34):
        try:
            os.kill(1, number)
        except (PermissionError, BlockingIOError):
            pass
print("done")
"""
    assert said(box_run(program)) == "done"


STARVING = [
    Probe(
        "limit-its-files",
        """
        import resource
        attempt(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)))
        """,
    ),
    Probe(
        "limit-its-memory", "import resource; attempt(lambda: resource.prlimit(1, resource.RLIMIT_AS, (4096, 4096)))"
    ),
    Probe("limit-its-time", "import resource; attempt(lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)))"),
    Probe("pin-it", "attempt(lambda: os.sched_setaffinity(1, {0}))"),
    Probe("idle-it", "attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))"),
    Probe("schedule-it", "attempt(lambda: os.sched_setparam(1, os.sched_param(0)))"),
    Probe("slow-it", "attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))"),
    Probe("slow-its-group", "attempt(lambda: os.setpriority(os.PRIO_PGRP, 1, 19))"),
    Probe("slow-its-user", "attempt(lambda: os.setpriority(os.PRIO_USER, 0, 19))"),
    Probe("slow-everything-of-ones-own", "attempt(lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))"),
    Probe("idle-its-disk", "attempt(lambda: call(NR.ioprio_set, 1, 1, 3 << 13))"),
    try_call(
        "sched_setattr",
        "1",
        "ctypes.create_string_buffer(bytes([48, 0, 0, 0]) + bytes(44))",
        label="set-its-attributes",
    ),
    try_call("migrate_pages", "1", label="move-its-memory"),
    try_call("move_pages", "1", label="move-its-pages"),
]


@pytest.mark.parametrize("probe", STARVING, ids=str)
def test_init_cannot_be_starved(box_run: Run, probe: Probe) -> None:
    """Where init has the uid of user code only the system call filter stands between them."""
    assert said(box_run(python(probe.source))) == "denied EPERM"


READING = [
    "mem",
    "environ",
    "maps",
    "smaps",
    "auxv",
    "syscall",
    "stack",
    "pagemap",
    "io",
    "personality",
    "map_files",
    "fdinfo",
    "task/1/mem",
]


@pytest.mark.parametrize("entry", READING)
def test_init_cannot_be_read(box_run: Run, entry: str) -> None:
    program = python(
        f"""
        path = "/proc/1/{entry}"
        attempt(lambda: len(os.listdir(path)) if os.path.isdir(path) else len(open(path, "rb").read(1)))
        """
    )
    # Some entries exist only in some kernels; an empty answer tells nothing either.
    assert said(box_run(program)) in {"denied EACCES", "denied EPERM", "denied ENOENT", "denied EIO", "BREACH 0"}


@pytest.mark.parametrize("link", ["exe", "cwd", "root", "fd/0", "fd/3", "ns/mnt", "ns/user"])
def test_no_link_of_init_can_be_followed(box_run: Run, link: str) -> None:
    program = python(f"attempt(lambda: os.open('/proc/1/{link}', os.O_RDONLY))")
    # Where init has the uid of user code it is not even to be seen.
    assert said(box_run(program)) in {"denied EACCES", "denied EPERM", "denied ENOENT"}
    assert link == "fd/3" or (outside(program) or "BREACH").startswith("BREACH")


@pytest.mark.parametrize(
    "entry",
    [
        "mem",
        "oom_score_adj",
        "comm",
        "coredump_filter",
        "clear_refs",
        "uid_map",
        "timerslack_ns",
        "attr/current",
        "autogroup",
    ],
)
def test_init_cannot_be_written(box_run: Run, entry: str) -> None:
    # Where /proc may be written some can be opened, and nothing comes of it.
    value = {"timerslack_ns": "5000", "attr/current": "x"}.get(entry, "1")
    program = python(f"attempt(lambda: os.write(os.open('/proc/1/{entry}', os.O_WRONLY), {value.encode()!r}))")
    refusals = {"denied EACCES", "denied EPERM", "denied EROFS", "denied ENOENT", "denied EINVAL"}
    assert said(box_run(program)) in refusals


# Its kernel has no descriptors of processes at all.
NO_PIDFD = ("ENOSYS",)
FORCE = [
    Probe("attach", "attempt(lambda: call(NR.ptrace, 16, 1, 0, 0))"),
    Probe("seize", "attempt(lambda: call(NR.ptrace, 0x4206, 1, 0, 0))"),
    Probe("read-memory", "attempt(lambda: call(NR.process_vm_readv, 1, 0, 0, 0, 0, 0))"),
    Probe("write-memory", "attempt(lambda: call(NR.process_vm_writev, 1, 0, 0, 0, 0, 0))"),
    Probe("take-descriptor", "attempt(lambda: call(NR.pidfd_getfd, os.pidfd_open(1), 3, 0))", gvisor=NO_PIDFD),
    Probe("advise-memory", "attempt(lambda: call(NR.process_madvise, os.pidfd_open(1), 0, 0, 4, 0))", gvisor=NO_PIDFD),
    Probe("release-memory", "attempt(lambda: call(NR.process_mrelease, os.pidfd_open(1), 0))", gvisor=NO_PIDFD),
    Probe("compare", "attempt(lambda: call(NR.kcmp, 1, os.getpid(), 0, 0, 0))"),
    Probe(
        "robust-futexes",
        "attempt(lambda: call(NR.get_robust_list, 1, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)))",
    ),
]


@pytest.mark.parametrize("probe", FORCE, ids=str)
def test_init_cannot_be_opened_by_force(box_run: Run, probe: Probe) -> None:
    answers = {"denied EPERM", *(f"denied {name}" for name in on_gvisor(*probe.gvisor))}
    assert said(box_run(python(probe.source))) in answers


# To start a process takes ten times as long on gVisor.
# To fork takes gVisor as long as to start a program.
ORPHANS, ORPHANS_SECONDS = (300, 120) if RUNTIME == "gvisor" else (3000, 40)


def test_init_outlives_thousands_of_orphans(box_run: Run) -> None:
    program = f"""
import os
for _ in range({ORPHANS}):
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
print("done", len([name for name in os.listdir("/proc") if name.isdigit()]) < 40)
"""
    assert said(box_run(program, timeout=patient(ORPHANS_SECONDS))) == "done True"


def test_signal_delivery_cannot_be_aimed_at_init(box_run: Run) -> None:
    program = python(
        """
        import fcntl, signal
        reader, writer = os.pipe()
        try:
            fcntl.fcntl(reader, fcntl.F_SETOWN, 1)
            fcntl.fcntl(reader, 10, signal.SIGKILL)  # F_SETSIG
        except OSError:
            pass
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
        os.write(writer, b"x")
        print("still here")
        """
    )
    assert said(box_run(program)) == "still here"


def test_what_the_server_writes_cannot_be_made_a_signal_for_init(box_run: Run) -> None:
    """Signals from outside the box could kill its init; this one is sent by the writer into the pipe."""
    program = python(
        """
        import fcntl
        for number in (9, 19, 0):
            try:
                fcntl.fcntl(0, fcntl.F_SETOWN, 1)
                fcntl.fcntl(0, 10, number)  # F_SETSIG
            except OSError:
                pass
            fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)
            left = 300_000
            while left:
                left -= len(os.read(0, min(left, 10_000)))
        print("still here")
        """
    )
    # Far more than a pipe holds: most of it is written while the program reads.
    assert said(box_run(program, stdin=b"x" * 900_000)) == "still here"


@native_only("init of a container is of the same user, and so among the processes that are seen")
def test_orphans_are_taken_whatever_signal_they_end_with(box_run: Run) -> None:
    """A child that ends with another signal than SIGCHLD, or none, waits for a parent that asks for just that."""
    program = python(
        """
        import time
        def states():
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    yield open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0]
                except OSError:
                    pass
        for number in (0, 10, 17, 18, 34):
            parent = os.fork()
            if parent == 0:
                for end in (0, 0.05):
                    for _ in range(20):
                        if call(NR.clone, number, 0, 0, 0, 0) == 0:
                            time.sleep(end)
                            os._exit(0)
                # Of both kinds: those that are dead before their parent, and those that outlive it.
                time.sleep(0.02)
                os.kill(os.getpid(), 9)
            os.waitpid(parent, 0)
        deadline = time.monotonic() + 15
        while list(states()) != ["R"] and time.monotonic() < deadline:
            time.sleep(0.01)
        print(*states())
        """
    )
    assert said(box_run(program)) == "R"


def test_init_answers_while_every_pid_is_taken(box_run: Run) -> None:
    program = """
import os, sys, time
made = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
    except BlockingIOError:
        break
print("full", flush=True)
os._exit(4)
"""
    result = box_run(program, pids=24)
    assert (result.outcome.value, result.exit_code, result.stdout) == ("exited", 4, b"full\n")


def test_a_program_cannot_take_the_place_of_init(box_run: Run) -> None:
    program = python(
        """
        import subprocess
        attempt(lambda: os.setpgid(1, 0))
        attempt(lambda: os.setpgid(0, 1))
        """
    )
    assert set(said(box_run(program)).split("\n")) <= {"denied EPERM", "denied ESRCH", "denied EACCES"}
