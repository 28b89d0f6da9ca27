"""An agent with everything that only its starter can give: a program that takes its socket's number and a directory.

It imports neither pytest nor anything of the tests: it runs under every interpreter.
"""

from __future__ import annotations

import ctypes
import os
import sys

from tidebox.agent.init_setup import InitSetup
from tidebox.agent.main import serve

PR_SET_DUMPABLE = 4


def report(arguments: list[str], _status: int) -> None:
    """A builtin: shows what it got."""
    descriptors = []
    for fd in range(64):
        try:
            os.fstat(fd)
        except OSError:
            continue
        descriptors.append(fd)
    lines = [repr(arguments), repr(dict(os.environ)), repr(descriptors), repr(os.read(0, 100))]
    os.write(1, "\n".join(lines).encode())
    os._exit(7)


def fail(_arguments: list[str], _status: int) -> None:
    """A builtin with a bug."""
    raise RuntimeError("never seen")


def confine() -> None:
    """Dumpable again, as any program is, and nothing else; for programs started in /var it cannot be had."""
    if os.getcwd() == "/var":
        raise PermissionError(1, "no")
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)


class DirectoryLeaves:
    """Leaves as plain directories: who is in one is written in a file."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._count = 0

    def make(self) -> int:
        """A new directory."""
        self._count += 1
        os.mkdir(f"{self._root}/{self._count}")
        return self._count

    def attach(self, leaf: int) -> None:
        """Note the caller."""
        with open(f"{self._root}/{leaf}/pid", "w") as file:
            file.write(str(os.getpid()))

    def kill(self, leaf: int) -> None:
        """The noted process, and who else registered itself."""
        for name in os.listdir(f"{self._root}/{leaf}"):
            with open(f"{self._root}/{leaf}/{name}") as file:
                os.kill(int(file.read()), 9)

    def usage(self, leaf: int) -> dict[str, int]:
        """Something to recognise."""
        return {"cpu_us": 42, "pids_peak": leaf}

    def remove(self, leaf: int) -> None:
        """Leaves a mark."""
        os.rename(f"{self._root}/{leaf}", f"{self._root}/removed-{leaf}")


if __name__ == "__main__":
    os._exit(
        serve(
            InitSetup(
                sock=int(sys.argv[1]),
                generation=10,
                user=(65534, 65534) if os.getuid() == 0 else (os.getuid(), os.getgid()),
                default_user_name="boxuser",
                confine=confine,
                builtins={"report": report, "fail": fail},  # type: ignore[dict-item]
                leaves=DirectoryLeaves(sys.argv[2]),
                oom_score_fd=os.open("/proc", os.O_RDONLY | os.O_DIRECTORY),
            )
        )
    )
