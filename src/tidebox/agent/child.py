"""A forked child on its way to its program: from a copy of an agent or a template to a plain process of the user.

Nothing here may raise into what was copied, and nothing of that may be left when the program starts: descriptors,
signal dispositions, environment, identity.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os
import resource
from struct import Struct

from tidebox.agent import descendants, pty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Callable, NoReturn

    from tidebox.agent.init_setup import InitSetup
    from tidebox.agent.users import BoxUser

# Linux' numbers, the same on every architecture we run on; the resource module lacks one of them.
RLIMITS = {
    "cpu": 0,
    "fsize": 1,
    "data": 2,
    "stack": 3,
    "core": 4,
    "rss": 5,
    "nproc": 6,
    "nofile": 7,
    "memlock": 8,
    "as": 9,
    "locks": 10,
    "sigpending": 11,
    "msgqueue": 12,
    "nice": 13,
    "rtprio": 14,
    "rttime": 15,
}
_UNLIMITED = 2**63  # from here on Python's resource module takes only the infinity

BUILTIN_PREFIX = "tidebox:"

# User code goes first when memory runs out, init last.
OOM_SCORE = b"500"
# Descriptors of the agent are all close-on-exec. A builtin keeps the process, so there they are closed by number
# (before Python 3.10 one by one, which is too slow for every exec).
HIGHEST_DESCRIPTOR = 65536
FIRST_OF_OURS = 3
_FAILURE = Struct("=i")
# What the interpreter itself handles or ignores.
PYTHONS_OWN = frozenset((_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ))

# The steps at which a start can fail, as the parent needs to tell them apart.
STEP_PROCESS = "process"
STEP_RLIMIT = "rlimit"
STEP_USER = "user"
STEP_CWD = "cwd"
STEP_CONFINE = "confine"
STEP_EXEC = "exec"
_STEPS = (STEP_PROCESS, STEP_RLIMIT, STEP_USER, STEP_CWD, STEP_CONFINE, STEP_EXEC)


class ChildStart:
    """Everything decided before the fork; standard streams and cgroup leaf or mark come when they are made.

    ``apart`` says that the child is no copy of the agent any more, but for its identity: see ``part``.
    ``keeps_status`` says that a builtin can still report through the status descriptor that its program could not be
    executed; for an agent's exec the end of that descriptor means that the builtin runs.
    """

    __slots__ = ("argv", "env", "cwd", "user", "rlimits", "tty", "stdio", "leaf", "mark", "apart", "keeps_status")

    def __init__(
        self,
        argv: list[bytes],
        env: dict[bytes, bytes],
        cwd: bytes,
        user: BoxUser,
        rlimits: Sequence[tuple[int, int, int]],
        tty: bool,
    ) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.user = user
        self.rlimits = rlimits
        self.tty = tty
        self.stdio = (-1, -1, -1)
        self.leaf: int | None = None
        self.mark: int | None = None
        self.apart = False
        self.keeps_status = False


def rlimit(name: str, soft: int, hard: int) -> tuple[int, int, int]:
    """A limit as setrlimit takes it; ValueError for a name Linux does not have."""
    number = RLIMITS.get(name)
    if number is None:
        raise ValueError(f'unknown resource "{name}"')
    infinity = resource.RLIM_INFINITY
    return number, infinity if soft >= _UNLIMITED else soft, infinity if hard >= _UNLIMITED else hard


def parse_failure(record: bytes) -> tuple[int, str]:
    """Errno and step of a start that failed."""
    if len(record) < _FAILURE.size:
        return errno.EIO, STEP_PROCESS  # not from a child of ours: programs of the same user can reach its pipe
    (number,) = _FAILURE.unpack_from(record)
    step = record[_FAILURE.size :].decode("ascii", "replace")
    return number, step if step in _STEPS else STEP_PROCESS


def changed_signals() -> list[int]:
    """The signals this process does not leave to the kernel, which a program must not inherit."""
    # None stands for what was not set from Python: the C library's own two signals, which nobody can change.
    unchanged = (_signal.SIG_DFL, None)
    return [number for number in range(1, _signal.NSIG) if _signal.getsignal(number) not in unchanged]


def part(signals: Sequence[int], for_builtin: bool = False) -> None:
    """Take the handlers of the agent's signals out of a child, and the child out of the agent's session."""
    _signal.set_wakeup_fd(-1)
    # A builtin is a Python again, and has those as Python has them.
    reset_signals([number for number in signals if not (for_builtin and number in PYTHONS_OWN)])
    os.setsid()


def reset_signals(signals: Sequence[int]) -> None:
    """Leave them to the kernel."""
    for number in signals:
        _signal.signal(number, _signal.SIG_DFL)


def become(start: ChildStart, setup: InitSetup, status: int, signals: Sequence[int]) -> NoReturn:
    """Runs in the child; reports a failing step through ``status`` and exits."""
    step = STEP_PROCESS
    try:
        builtin = find_builtin(start.argv[0], setup.builtins)
        if not start.apart:
            part(signals, builtin is not None)
        if start.tty:
            pty.take_control(start.stdio[0])
        # The agent's own 0, 1 and 2 are open, so none of these is below 3 and none is overwritten before it is copied.
        for target, fd in enumerate(start.stdio):
            os.dup2(fd, target, inheritable=True)
        if start.leaf is not None and setup.leaves is not None:
            setup.leaves.attach(start.leaf)
        step = STEP_RLIMIT
        for number, soft, hard in start.rlimits:
            resource.setrlimit(number, (soft, hard))
        if start.mark is not None:
            descendants.put_on(start.mark)
        step = STEP_USER
        _change_user(start.user)
        step = STEP_CWD
        os.chdir(start.cwd)
        os.umask(0o022)
        step = STEP_CONFINE
        if setup.shares_user:
            close_all_but(status, setup.oom_score_fd)
        setup.confine()
        if setup.oom_score_fd is not None:
            # Only now: before, the process is as undumpable as init, and then its /proc files are not its own.
            _raise_oom_score(setup.oom_score_fd)
        step = STEP_EXEC
        if builtin is None:
            search(start.argv[0], start.env, lambda path: os.execve(path, start.argv, start.env))
        else:
            control, status = status if start.keeps_status else -1, -1
            # What is kept is the first descriptor after the streams.
            os.closerange(FIRST_OF_OURS if control < 0 else control + 1, HIGHEST_DESCRIPTOR)
            if start.env != setup.environment:
                replace_environment(start.env)
            builtin([argument.decode("utf-8", "surrogateescape") for argument in start.argv[1:]], control)
    except OSError as error:
        _report(status, error.errno or errno.EIO, step)
    except ValueError:
        _report(status, errno.EINVAL, step)  # an embedded NUL, or a limit the kernel does not take
    except MemoryError:
        _report(status, errno.ENOMEM, step)
    except BaseException:
        _report(status, errno.EIO, step)
    finally:
        os._exit(127)


def close_all_but(*kept: int | None) -> None:
    """Close every descriptor but the standard streams and these."""
    low = FIRST_OF_OURS
    for fd in sorted({fd for fd in kept if fd is not None and fd >= low}):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, HIGHEST_DESCRIPTOR)


def find_builtin(
    command: bytes, builtins: Mapping[str, Callable[[list[str], int], Any]]
) -> Callable[[list[str], int], Any] | None:
    """Return the builtin that a command of the form ``tidebox:name`` runs; None for a program."""
    text = command.decode("utf-8", "surrogateescape")
    if not text.startswith(BUILTIN_PREFIX):
        return None
    return builtins.get(text[len(BUILTIN_PREFIX) :])


def _report(status: int, number: int, step: str) -> None:
    if status < 0:
        return  # a builtin failed on its own account
    try:
        os.write(status, _FAILURE.pack(number) + step.encode("ascii"))
    except OSError:
        pass  # the agent is gone


def _raise_oom_score(proc: int) -> None:
    fd = os.open("self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        os.write(fd, OOM_SCORE)
    except PermissionError:
        pass  # raising it is always allowed: somebody set a higher one, as for a whole container
    finally:
        os.close(fd)


def _change_user(user: BoxUser) -> None:
    if os.getresuid() == (user.uid,) * 3 and os.getresgid() == (user.gid,) * 3:
        return
    try:
        os.setgroups([user.gid])
    except PermissionError:
        # In a user namespace made without root, where the kernel forbids it: the groups there are nobody's.
        pass
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


def replace_environment(env: dict[bytes, bytes]) -> None:
    """Have these variables and no others."""
    for name in list(os.environb):
        del os.environb[name]
    os.environb.update(env)


def search(command: bytes, env: dict[bytes, bytes], start: Callable[[bytes], int]) -> int:
    """Start the command where PATH finds it (os.execvpe imports a module for that, and here nothing can be)."""
    if b"/" in command:
        return start(command)
    denied: OSError | None = None
    for directory in env.get(b"PATH", b"").split(b":"):
        try:
            return start((directory or b".") + b"/" + command)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
    raise denied or FileNotFoundError(errno.ENOENT, "not found in PATH")
