"""Run by a clean interpreter: forks a child that parks on the standard streams, and ends as that child ends.

Arguments: the directory that holds the package, and how many frames deep the fork is to happen, as inside a box's init.
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


def fork_below(depth: int) -> None:
    if depth:
        fork_below(depth - 1)
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    pid = os.fork()
    if pid == 0:
        warm.park([])
    os.closerange(0, 3)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


fork_below(int(sys.argv[2]))
