"""Run by a clean interpreter: forks children that park, each on standard streams, and tells how they ended.

Arguments: the directory that holds the package, how many frames deep the fork is to happen, as inside a box's init, the
modules to load before, with commas between them, and ``once`` or ``often``. Once: one child, on our own streams, and we
end as it ends. Often: one for each request on our standard input.
"""

import sys

_BARE_MODULES = frozenset(sys.modules)
_BARE_PATH = tuple(sys.path[1:])
sys.path[:] = [*_BARE_PATH, sys.argv[1]]

import gc  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402

from tidebox.spawner import warm  # noqa: E402

warm.capture(_BARE_MODULES, _BARE_PATH)
if sys.argv[3]:
    from tidebox.spawner import handover

    answer = warm.load(sys.argv[3].split(","), handover.load)
    assert "refused" not in answer, answer


def fork_below(depth: int) -> None:
    if depth:
        fork_below(depth - 1)
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    fork_often() if sys.argv[4] == "often" else fork_once()


def fork_once() -> None:
    pid = os.fork()
    if pid == 0:
        warm.park([])
    os.closerange(0, 3)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def fork_often() -> None:
    while request := os.read(0, 4096).decode():
        home, *streams = request.split("\0")
        pid = os.fork()
        if pid == 0:
            opened = [os.open(path, os.O_WRONLY if number else os.O_RDONLY) for number, path in enumerate(streams)]
            os.write(1, b"opened\n")
            for number, descriptor in enumerate(opened):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.chdir(home)
            os.environ["HOME"] = home
            warm.park([])
        os.write(1, b"%d\n" % os.waitpid(pid, 0)[1])
    os._exit(0)


fork_below(int(sys.argv[2]))
