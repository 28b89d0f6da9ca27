"""The yardsticks of ``tidebox bench``: programs outside any box, in a clean environment, cheaply started."""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

# Nothing that makes an interpreter read or import more at its start than it must.
CLEAN_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
# The first thing that a server for measurements does: ask for a signal (prctl(2), PR_SET_PDEATHSIG) when the
# process that measures is killed.
ENDS_WITH_PARENT = "import ctypes; ctypes.CDLL(None).prctl(1, 15); "
_BLOCK = 1 << 20
# kcmp(2): whether two processes have one address space.
_KCMP, _KCMP_VM = {"x86_64": 312, "aarch64": 272}[os.uname().machine], 1
_libc = ctypes.CDLL(None)


class YardstickFailed(Exception):
    """The program to compare with does not work on this machine."""


class BareProgram:
    """A program that prints ``hello``, or what ``says`` is."""

    def __init__(self, *argv: str, says: bytes = b"hello\n") -> None:
        self._argv = argv
        self._says = says

    def seconds(self) -> float:
        """Measure the seconds of one program from its start until it is gone and all it said was read."""
        start = time.perf_counter()
        pid, output = _start(self._argv)
        text = _read_all(output)
        self._end(pid, text)
        return time.perf_counter() - start

    def per_second(self, count: int, at_once: int) -> float:
        """Measure the runs per second, ``at_once`` of them at any time."""
        left = count
        running: dict[int, int] = {}
        start = time.perf_counter()
        with selectors.DefaultSelector() as selector:
            while left or running:
                while left and len(running) < at_once:
                    pid, output = _start(self._argv)
                    running[output] = pid
                    selector.register(output, selectors.EVENT_READ)
                    left -= 1
                for key, _ in selector.select():
                    selector.unregister(key.fd)
                    # Its few bytes and its end come at the same time.
                    self._end(running.pop(key.fd), _read_all(key.fd))
        return count / (time.perf_counter() - start)

    def _end(self, pid: int, text: bytes) -> None:
        _, status = os.waitpid(pid, 0)
        if status or text != self._says:
            raise YardstickFailed(f"{self._argv[0]} does not work here (exit status {status})")


def bubblewrap(*argv: str) -> BareProgram | None:
    """The same in a sandbox of bubblewrap's with all its namespaces, where it is installed."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    return BareProgram(
        program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", *argv
    )


def pipe_megabytes_per_second(size: int) -> float:
    """Measure the speed of another program's bytes through a pipe, in MB/s."""
    argv = ("/bin/dd", "if=/dev/zero", f"bs={_BLOCK}", f"count={size // _BLOCK}", "status=none")
    pid, output = _start(argv)
    total = len(os.read(output, _BLOCK))
    start, counted_from = time.perf_counter(), total
    while chunk := os.read(output, _BLOCK):
        total += len(chunk)
    seconds = time.perf_counter() - start
    os.close(output)
    os.waitpid(pid, 0)
    if total != size:
        raise YardstickFailed("dd does not work here")
    return (total - counted_from) / seconds / 1e6


def pss_of_boxes(owner: int) -> list[int]:
    """The proportional memory in bytes of each box of the process that owns them: what is below it and innermost."""
    children = _children()
    parents = {pid: parent for parent, pids in children.items() for pid in pids}
    below: list[int] = []
    todo = [owner]
    while todo:
        found = children.get(todo.pop(), [])
        below += found
        todo += found
    numbers = {pid: _numbers(pid) for pid in below}
    innermost = max(map(len, numbers.values()))
    boxes: dict[str, list[int]] = {}
    for pid in below:
        if len(numbers[pid]) == innermost:
            boxes.setdefault(os.readlink(f"/proc/{pid}/ns/pid"), []).append(pid)
    # The init of a box for one program lives in the memory of the process that made it, as others do.
    sleepers = [pid for pids in boxes.values() for pid in pids if _share_memory(pid, parents[pid])]
    share = pss(sleepers[0]) // (len(sleepers) + 1) if sleepers else 0
    return [
        sum(share if pid in sleepers else pss(pid) for pid in pids)
        for pids in boxes.values()
        if not set(pids) <= set(sleepers)
    ]


def _share_memory(one: int, other: int) -> bool:
    return bool(_libc.syscall(_KCMP, one, other, _KCMP_VM, 0, 0) == 0)


def _numbers(pid: int) -> list[int]:
    """The pid of a process in each of its namespaces."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []  # it ended while we looked
    return [int(number) for number in status.partition("NSpid:")[2].partition("\n")[0].split()]


def busy_nanoseconds(parent: int) -> int:
    """The processor time that everything below a process has used so far."""
    children = _children()
    total, todo = 0, list(children.get(parent, []))
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        try:
            for times in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                total += int(times.read_text().split()[0])
        except OSError:
            continue  # it ended while we looked
    return total


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended while we looked
            found.setdefault(parent, []).append(int(entry.name))
    return found


def pss(pid: int) -> int:
    """The proportional memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise YardstickFailed(f"the kernel does not tell the memory of process {pid}")


def _start(argv: Sequence[str]) -> tuple[int, int]:
    """A program's pid and the descriptor of what it prints."""
    output, theirs = os.pipe()
    try:
        pid = os.posix_spawn(
            argv[0],
            list(argv),
            CLEAN_ENVIRONMENT,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs, 1),
            ],
        )
    finally:
        os.close(theirs)
    return pid, output


def _read_all(descriptor: int) -> bytes:
    parts = []
    while chunk := os.read(descriptor, 4096):
        parts.append(chunk)
    os.close(descriptor)
    return b"".join(parts)
