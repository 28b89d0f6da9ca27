"""Doors into the kernel that programs do not need are shut."""

from __future__ import annotations

import errno
import os
import signal
import struct
from pathlib import Path

import pytest

from tests.boxes import is_root, start_runner, stop_runner
from tests.escape.probes import Probe, Run, assert_refused, outside, python, said, try_call

CALLS = [
    try_call("io_uring_setup", "1", "ctypes.create_string_buffer(120)"),
    try_call("io_uring_enter"),
    try_call("io_uring_register"),
    try_call("bpf", "0", "ctypes.create_string_buffer(72)", "72"),
    try_call("perf_event_open"),
    try_call("add_key"),
    try_call("request_key"),
    try_call("keyctl", "0", "-3", "1"),
    try_call("userfaultfd", "1"),
    try_call("fanotify_init"),
    try_call("fanotify_mark"),
    try_call("name_to_handle_at"),
    try_call("vmsplice"),
    try_call("memfd_secret"),
    try_call("process_madvise"),
    try_call("process_mrelease"),
    try_call("migrate_pages"),
    try_call("move_pages"),
    try_call("mbind"),
    try_call("set_mempolicy"),
    try_call("get_mempolicy"),
    try_call("remap_file_pages"),
    try_call("io_setup"),
    try_call("init_module"),
    try_call("finit_module", "-1"),
    try_call("delete_module"),
    try_call("kexec_load", "0", "0", "0", "-1"),
    try_call("kexec_file_load", "-1", "-1", "0", "0", "-1"),
    try_call("reboot", "0xfee1dead", "672274793", "0x12345"),
    try_call("swapon"),
    try_call("swapoff"),
    try_call("quotactl"),
    try_call("acct", "ctypes.c_char_p(b'/nowhere')"),
    try_call("syslog", "10"),
    try_call("clock_settime"),
    try_call("settimeofday"),
    try_call("adjtimex"),
    try_call("vhangup"),
    try_call("setns", "-1"),
    try_call("unshare", label="unshare-nothing"),
    try_call("clone3", refusals=("ENOSYS",)),
    try_call("statmount", refusals=("ENOSYS",)),
    try_call("listmount", refusals=("ENOSYS",)),
]
if os.uname().machine == "x86_64":
    CALLS += [try_call("iopl"), try_call("ioperm"), try_call("modify_ldt")]

# Where the kernel has no such call either, the answer is the same outside.
MAYBE_ABSENT = {"statmount", "listmount"}


@pytest.mark.parametrize("probe", CALLS, ids=str)
def test_calls_programs_do_not_need_are_refused(box_run: Run, probe: Probe) -> None:
    if probe.name in MAYBE_ABSENT:
        probe = Probe(probe.name, probe.source, probe.refusals, compare=False)
    assert_refused(box_run, probe)


NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}


@pytest.mark.parametrize("kind", sorted(NAMESPACES))
@pytest.mark.parametrize("way", ["unshare", "clone"])
def test_no_new_namespace(box_run: Run, kind: str, way: str) -> None:
    flags = NAMESPACES[kind]
    if way == "unshare":
        source = f"attempt(lambda: call(NR.unshare, {flags}))"
    else:
        source = f"""
        def make():
            child = call(NR.clone, {flags} | 17, 0, 0, 0, 0)
            if child == 0:
                os._exit(0)
            return child
        attempt(make)
        """
    assert_refused(box_run, Probe(kind, source))


def test_a_flag_hidden_behind_high_bits_is_seen(box_run: Run) -> None:
    assert_refused(box_run, Probe("high", "attempt(lambda: call(NR.unshare, (1 << 32) | 0x10000000))", compare=False))


@pytest.mark.parametrize("kind", ["mnt", "pid", "net", "user", "cgroup", "uts", "ipc"])
def test_namespaces_of_init_cannot_be_entered(box_run: Run, kind: str) -> None:
    program = python(
        f"""
        def enter():
            return call(NR.setns, os.open("/proc/1/ns/{kind}", os.O_RDONLY), 0)
        attempt(enter)
        """
    )
    assert said(box_run(program)) in {"denied EACCES", "denied EPERM", "denied ENOENT"}


@pytest.mark.parametrize(
    "request_", [0x5412, 0x5412 | 1 << 32, 0x541C, 0x5423], ids=["TIOCSTI", "TIOCSTI-high-bit", "TIOCLINUX", "TIOCSETD"]
)
def test_nothing_is_typed_into_a_terminal(box_run: Run, request_: int) -> None:
    program = python(
        f"""
        master, slave = os.openpty()
        attempt(lambda: call(NR.ioctl, slave, {request_}, ctypes.create_string_buffer(b"x" + bytes(8))))
        """
    )
    assert said(box_run(program)) == "denied EPERM"


@pytest.mark.parametrize("value", [0x0040000, 0x0400000, 8], ids=["no-randomization", "read-implies-exec", "32-bit"])
def test_the_execution_domain_cannot_be_changed(box_run: Run, value: int) -> None:
    assert_refused(box_run, Probe("personality", f"attempt(lambda: call(NR.personality, {value}))"))


def test_core_scheduling_cannot_idle_a_neighbour(box_run: Run) -> None:
    assert said(box_run(python("attempt(lambda: call(NR.prctl, 62, 1, 0, 0, 0))"))) == "denied EINVAL"


FOREIGN = {
    # mov eax, 20 (getpid of i386); int 0x80; ret
    "int80": struct.pack("<BI", 0xB8, 20) + b"\xcd\x80\xc3",
    # mov eax, getpid of x32; syscall; ret
    "x32": struct.pack("<BI", 0xB8, 0x40000000 | 39) + b"\x0f\x05\xc3",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="these interfaces are of x86_64")
@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_another_call_interface_kills(box_run: Run, kind: str) -> None:
    program = f"""
import ctypes, mmap
area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
area.write({FOREIGN[kind]!r})
print("ready", flush=True)
print("BREACH", ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(area)))())
"""
    result = box_run(program)
    assert (result.outcome.value, result.signal, result.stdout) == ("signaled", signal.SIGSYS, b"ready\n")
    if kind == "int80":
        assert "BREACH" in (outside(program) or "BREACH")


# A filter that lets everything through, whether packets or system calls: one instruction, BPF_RET.
ATTACH = """
import socket, struct
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
filter = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
"""


@pytest.mark.parametrize("option", [26, 51], ids=["SO_ATTACH_FILTER", "SO_ATTACH_REUSEPORT_CBPF"])
@pytest.mark.parametrize("kind", ["AF_INET", "AF_INET6"])
def test_no_socket_loads_a_program_into_the_kernel(box_run: Run, option: int, kind: str) -> None:
    source = f"""
{ATTACH}
sock = socket.socket(socket.{kind}, socket.SOCK_DGRAM)
sock.setsockopt(1, 15, 1)
attempt(lambda: sock.setsockopt(1, {option}, filter))
"""
    assert_refused(box_run, Probe("attach", source))


@pytest.mark.parametrize("option", [50, 52], ids=["SO_ATTACH_BPF", "SO_ATTACH_REUSEPORT_EBPF"])
def test_no_socket_takes_a_loaded_program(box_run: Run, option: int) -> None:
    source = f"""
import socket
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt(1, {option}, 0))
"""
    assert_refused(box_run, Probe("attach", source))


FURTHER_FILTERS = {
    "seccomp": "call(NR.seccomp, 1, 0, ctypes.create_string_buffer(filter))",
    "seccomp-listener": "call(NR.seccomp, 1, 8, ctypes.create_string_buffer(filter))",
    "prctl": "call(NR.prctl, 22, 2, ctypes.create_string_buffer(filter), 0, 0)",
}


@pytest.mark.parametrize("way", sorted(FURTHER_FILTERS))
def test_no_program_loads_a_further_filter(box_run: Run, way: str) -> None:
    source = ATTACH + f"call(NR.prctl, 38, 1, 0, 0, 0)\nattempt(lambda: {FURTHER_FILTERS[way]})"
    assert_refused(box_run, Probe(way, source, ("EINVAL",)))


def test_further_filters_are_the_operators_choice(tmp_path: Path) -> None:
    runner = start_runner(
        tmp_path, pool_node=0, pool_python=0, allow_nested_filters=True, allow_weak_isolation=not is_root()
    )
    try:
        program = python(ATTACH + f"attempt(lambda: {FURTHER_FILTERS['prctl']})")
        assert said(runner(program)) == "BREACH 0"
    finally:
        stop_runner(runner)


GROUPS = {
    "IPv4": "sock = socket.socket(socket.AF_INET, 2); args = (0, 35, socket.inet_aton('239.1.1.1') + bytes(4))",
    "IPv4-by-index": "sock = socket.socket(socket.AF_INET, 2); args = (0, 42, bytes(136))",
    "IPv6": "sock = socket.socket(socket.AF_INET6, 2); args = (41, 20, socket.inet_pton(10, 'ff02::1:2') + bytes(4))",
}


@pytest.mark.parametrize("kind", sorted(GROUPS))
def test_no_group_is_joined(box_run: Run, kind: str) -> None:
    """Each would be an object of the kernel that nothing counts."""
    program = python(f"import socket\n{GROUPS[kind]}\nattempt(lambda: sock.setsockopt(*args))")
    assert said(box_run(program)) == "denied ENODEV"


def test_pages_of_the_machine_are_not_dropped(box_run: Run) -> None:
    """A file of the machine is in memory for everybody who uses it."""
    program = """
import os
fd = os.open(os.path.realpath("/usr/bin/env"), os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
try:
    print("BREACH", os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT))
except OSError as error:
    print(error.errno)
"""
    path = os.path.realpath("/usr/bin/env")
    Path(path).read_bytes()
    assert said(box_run(program)) == str(errno.EOPNOTSUPP)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    finally:
        os.close(fd)


def test_unknown_calls_look_absent(box_run: Run) -> None:
    assert said(box_run(python("attempt(lambda: call(999, 0, 0, 0, 0, 0, 0))"))) == "denied ENOSYS"


def test_sync_does_not_reach_the_disks_of_the_machine(box_run: Run) -> None:
    program = """
import os, time
start = time.monotonic()
for _ in range(20000):
    os.sync()
print(time.monotonic() - start < 5)
"""
    assert said(box_run(program)) == "True"


def test_the_filter_stays_on_after_exec(box_run: Run) -> None:
    program = python(
        """
        import subprocess
        inner = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.unshare(1 << 28), ctypes.get_errno())"
        print(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True).stdout.strip())
        """
    )
    assert said(box_run(program)) == "-1 1"
