"""The real filter in the real kernel, loaded by a forked child."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys

import pytest

MACHINE = os.uname().machine

pytestmark = pytest.mark.skipif(MACHINE not in ("x86_64", "aarch64"), reason=f"no system call table for {MACHINE}")

# Loads the filter given in hexadecimal, then runs the rest of the program under it.
LOAD = """
import ctypes, errno, fcntl, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
code = bytes.fromhex(sys.argv[1])
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0) == 0
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(value) for value in arguments])
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "ok"
"""


def under_filter(source: str) -> subprocess.CompletedProcess[str]:
    from tidebox.spawner.seccomp import build_filter

    command = [sys.executable, "-I", "-S", "-c", LOAD + source, build_filter(MACHINE).hex()]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def printed(source: str) -> list[str]:
    done = under_filter(source)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_programs_fork_read_and_talk() -> None:
    assert printed(
        """
import subprocess, threading
print(subprocess.run(["/bin/echo", "child"], capture_output=True, text=True).stdout.strip())
thread = threading.Thread(target=lambda: print("thread")); thread.start(); thread.join()
left, right = socket.socketpair(); left.send(b"x"); print(right.recv(1).decode())
server = socket.create_server(("127.0.0.1", 0)); socket.create_connection(server.getsockname()).close(); print("tcp")
os.nice(1); os.sync(); print(len(open("/proc/self/status").read()) > 0)
"""
    ) == ["child", "thread", "x", "tcp", "True"]


def test_numbers_of_the_new_calls_on_every_architecture() -> None:
    calls = {"io_uring_setup": 425, "open_tree": 428, "fsopen": 430, "pidfd_getfd": 438, "clone3": 435, "future": 900}
    source = f"print(*[call(number, 0, 0, 0, 0) for number in {list(calls.values())!r}])"
    assert printed(source) == ["EPERM", "EPERM", "EPERM", "EPERM", "ENOSYS", "ENOSYS"]


def test_other_socket_families() -> None:
    source = """
for family in (16, 17, 38, 40):
    try:
        socket.socket(family, socket.SOCK_RAW)
        print("made")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    assert printed(source) == ["EAFNOSUPPORT"] * 4


def test_no_namespaces() -> None:
    source = """
for flag in (0x10000000, 0x40000000, 0):
    print("ok" if libc.unshare(flag) == 0 else errno.errorcode[ctypes.get_errno()])
"""
    assert printed(source) == ["EPERM", "EPERM", "EPERM"]


def test_limits_of_others_stay() -> None:
    source = """
try:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE))
    print("set")
except PermissionError:
    print("refused")
try:
    os.sched_setaffinity(os.getppid(), {0})
    print("set")
except PermissionError:
    print("refused")
os.sched_setaffinity(0, os.sched_getaffinity(0))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("own")
"""
    assert printed(source) == ["refused", "refused", "own"]


def test_terminal_injection_with_a_hidden_high_bit() -> None:
    ioctl = {"x86_64": 16, "aarch64": 29}[MACHINE]
    assert printed(f"print(call({ioctl}, 0, 0x5412 | 1 << 32, 0))") == ["EPERM"]


def test_the_filter_stays_on_after_exec() -> None:
    source = """
os.execv(sys.executable, [sys.executable, "-I", "-S", "-c",
    "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.unshare(0x10000000), ctypes.get_errno())"])
"""
    assert printed(source) == ["-1", "1"]


@pytest.mark.skipif(MACHINE != "x86_64", reason="x32 and int 0x80 are of x86_64")
@pytest.mark.parametrize(
    "code",
    [
        struct.pack("<BI", 0xB8, 20) + b"\xcd\x80\xc3",  # mov eax, 20 (getpid of i386); int 0x80; ret
        struct.pack("<BI", 0xB8, 0x40000000 | 39) + b"\x0f\x05\xc3",  # mov eax, x32 getpid; syscall; ret
    ],
    ids=["int80", "x32"],
)
def test_another_call_interface_kills(code: bytes) -> None:
    source = f"""
import mmap
area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
area.write({code!r})
print("alive", flush=True)
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(area)))()
print("BREACH")
"""
    done = under_filter(source)
    assert (done.stdout.split(), done.returncode) == (["alive"], -signal.SIGSYS)
