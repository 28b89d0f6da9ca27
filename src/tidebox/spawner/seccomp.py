"""Which system calls user code may make, and the seccomp filter that enforces it.

The policy is an allow-list. A known call that is not on it fails with EPERM; a call newer than our table fails with
ENOSYS, so that a newer C library falls back to an older call. Another architecture's calls (i386 through ``int 0x80``,
x32, 32-bit ARM) kill the process: no honest program of the box makes them, and their numbers mean something else.

A filter sees argument values, never what a pointer leads to. Where the kernel takes an ``int`` it ignores the upper
half of the register, so rules compare the lower 32 bits only.

Left out with a reason that is not obvious:

- ``vmsplice`` keeps a reference to a page across fork, which let a child read what its parent wrote later
  (CVE-2020-29374); user code is forked from its box's template or agent.
- ``io_setup`` and the other calls of old asynchronous I/O draw on one counter of the whole machine (fs.aio-max-nr).
- ``memfd_secret`` memory cannot be swapped and blocks hibernation of the host.
- ``get_mempolicy``, ``mbind`` and their kin let one box push memory to a node of its choice.
- ``remap_file_pages``, ``modify_ldt``, ``ustat``, ``sysfs``, ``uselib`` have no honest user left.

Let through with a reason: ``setuid`` and its family fail by themselves without capabilities, and programs call them
with their own id; a program may stack further filters with ``seccomp`` and rules with ``landlock_*``, which only take
away; ``mknod`` makes fifos, devices need a capability.
"""

from __future__ import annotations

import errno

from tidebox.spawner.bpf import ANY_BIT, AT_LEAST, EQUAL, Assembler
from tidebox.spawner.syscall_tables import syscall_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tidebox.spawner.bpf import Target

ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS


def fail(code: int) -> int:
    """The filter's answer for "do not run the call, return this errno" (SECCOMP_RET_ERRNO; 0 is success)."""
    return 0x00050000 | code


_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# struct seccomp_data
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16

_ALLOWED = """
    read write open close stat fstat lstat newfstatat statx poll ppoll select pselect6 lseek readv writev
    pread64 pwrite64 preadv pwritev preadv2 pwritev2 access faccessat faccessat2 openat openat2 creat
    close_range pipe pipe2 dup dup2 dup3 fcntl flock fsync fdatasync sync_file_range truncate ftruncate
    fallocate fadvise64 readahead getdents getdents64 getcwd chdir fchdir rename renameat renameat2 mkdir
    mkdirat rmdir link linkat unlink unlinkat symlink symlinkat readlink readlinkat chmod fchmod fchmodat
    fchmodat2 chown fchown lchown fchownat umask utime utimes futimesat utimensat mknod mknodat statfs fstatfs
    sendfile splice tee copy_file_range setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr
    getxattrat listxattr llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr removexattrat
    inotify_init inotify_init1 inotify_add_watch inotify_rm_watch epoll_create epoll_create1 epoll_ctl
    epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4 memfd_create

    mmap mprotect munmap brk mremap msync mincore madvise mlock mlock2 munlock mlockall munlockall mseal
    map_shadow_stack pkey_mprotect pkey_alloc pkey_free membarrier

    fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open pidfd_send_signal
    getpid getppid gettid getpgid setpgid getpgrp getsid setsid set_tid_address set_robust_list get_robust_list
    rseq futex futex_waitv futex_wake futex_wait futex_requeue restart_syscall arch_prctl get_thread_area uname
    sysinfo times getcpu rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo
    rt_tgsigqueueinfo rt_sigsuspend sigaltstack pause getrlimit setrlimit getrusage getpriority ioprio_get
    sched_yield sched_getparam sched_getscheduler sched_getattr sched_getaffinity sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval

    getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid setresuid
    setresgid setfsuid setfsgid setgroups capget capset seccomp landlock_create_ruleset landlock_add_rule
    landlock_restrict_self

    time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer
    timer_create timer_settime timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime
    timerfd_gettime getrandom

    connect accept accept4 sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown bind listen getsockname
    getpeername setsockopt getsockopt

    shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink
    mq_timedsend mq_timedreceive mq_notify mq_getsetattr
"""

# Refused as an old kernel would, because their callers have a fallback for ENOSYS only. The flags of clone3 lie behind
# a pointer, so it cannot be filtered; the others show mounts, page cache or security modules of the host.
_ABSENT = """
    clone3 statmount listmount listns cachestat lsm_get_self_attr lsm_set_self_attr lsm_list_modules
    open_tree_attr file_getattr file_setattr
"""

# Everything a box can write is memory: there is nothing to sync, but the real call flushes every file system of the
# host.
_NOTHING_TO_DO = "sync syncfs"

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; NEWTIME is a flag of clone3(2) only, not of clone(2).
_NEW_NAMESPACES = 0x7E020000
# A child for the parent of the program, which is outside the box and would have to wait for it.
_CLONE_PARENT = 0x8000
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_SOCKET_TYPE = 0xF
_SOCK_DCCP = 6  # this and above: DCCP, and SOCK_PACKET, by which AF_INET turns into AF_PACKET
_PROTOCOLS = (0, 1, 6, 17, 58)  # default, ICMP (also AF_UNIX for itself), TCP, UDP, ICMPv6: others load kernel modules
_REFUSED_IOCTLS = (
    0x5412,  # TIOCSTI: types into a terminal
    0x541C,  # TIOCLINUX: pastes into a console
    0x5423,  # TIOCSETD: loads line disciplines
)
_PERSONALITY_QUERY = 0xFFFFFFFF
_PR_SCHED_CORE = 62  # would keep the core's other thread, a neighbour's, idle
_PRIO_PROCESS = 0
_IOPRIO_WHO_PROCESS = 1


def _argument(index: int, upper: bool = False) -> int:
    return _ARGUMENTS + 8 * index + (4 if upper else 0)


def _clone(program: Assembler) -> None:
    program.load(_argument(0))
    program.jump(ANY_BIT, _NEW_NAMESPACES | _CLONE_PARENT, fail(errno.EPERM), ALLOW)


def _socket(program: Assembler) -> None:
    program.load(_argument(0))
    for family in _FAMILIES[:-1]:
        program.jump(EQUAL, family, "socket type")
    program.jump(EQUAL, _FAMILIES[-1], None, fail(errno.EAFNOSUPPORT))
    program.label("socket type")
    program.load(_argument(1))
    program.mask(_SOCKET_TYPE)
    program.jump(AT_LEAST, _SOCK_DCCP, fail(errno.ESOCKTNOSUPPORT))
    program.load(_argument(2))
    for protocol in _PROTOCOLS[:-1]:
        program.jump(EQUAL, protocol, ALLOW)
    program.jump(EQUAL, _PROTOCOLS[-1], ALLOW, fail(errno.EPROTONOSUPPORT))


def _ioctl(program: Assembler) -> None:
    program.load(_argument(1))
    for request in _REFUSED_IOCTLS[:-1]:
        program.jump(EQUAL, request, fail(errno.EPERM))
    program.jump(EQUAL, _REFUSED_IOCTLS[-1], fail(errno.EPERM), ALLOW)


def _on_itself(program: Assembler) -> None:
    program.load(_argument(0))
    program.jump(EQUAL, 0, ALLOW, fail(errno.EPERM))


def _prlimit(program: Assembler) -> None:
    # Reading limits of a process of the same user harms nobody: a null new_limit passes.
    program.load(_argument(0))
    program.jump(EQUAL, 0, ALLOW)
    program.load(_argument(2))
    program.jump(EQUAL, 0, None, fail(errno.EPERM))
    program.load(_argument(2, upper=True))
    program.jump(EQUAL, 0, ALLOW, fail(errno.EPERM))


def _priority_of(kind: int) -> Callable[[Assembler], None]:
    def rule(program: Assembler) -> None:
        program.load(_argument(0))
        program.jump(EQUAL, kind, None, fail(errno.EPERM))
        program.load(_argument(1))
        program.jump(EQUAL, 0, ALLOW, fail(errno.EPERM))

    return rule


def _personality(program: Assembler) -> None:
    program.load(_argument(0))
    program.jump(EQUAL, 0, ALLOW)
    program.jump(EQUAL, _PERSONALITY_QUERY, ALLOW, fail(errno.EPERM))


def _prctl(program: Assembler) -> None:
    program.load(_argument(0))
    program.jump(EQUAL, _PR_SCHED_CORE, fail(errno.EINVAL), ALLOW)


_RULES: tuple[tuple[str, Callable[[Assembler], None]], ...] = (
    ("clone", _clone),
    ("socket socketpair", _socket),
    ("ioctl", _ioctl),
    ("sched_setaffinity sched_setscheduler sched_setparam sched_setattr", _on_itself),
    ("prlimit64", _prlimit),
    ("setpriority", _priority_of(_PRIO_PROCESS)),
    ("ioprio_set", _priority_of(_IOPRIO_WHO_PROCESS)),
    ("personality", _personality),
    ("prctl", _prctl),
)


def build_filter(machine: str) -> bytes:
    """The filter for ``machine`` (as ``uname -m`` names it), ready for PR_SET_SECCOMP."""
    if machine not in _AUDIT_ARCH:
        raise ValueError(f"no system call table for {machine}")
    program = Assembler()
    program.load(_ARCHITECTURE)
    program.jump(EQUAL, _AUDIT_ARCH[machine], None, KILL)
    program.load(_NUMBER)
    ranges = _ranges(machine)
    _decide(program, ranges, 0, len(ranges))
    for names, rule in _RULES:
        program.label(names)
        rule(program)
    return program.assemble()


def _ranges(machine: str) -> list[tuple[int, Target]]:
    """Each first number from which on another answer holds, with that answer."""
    numbers = syscall_numbers(machine)
    answers: dict[int, Target] = dict.fromkeys(numbers.values(), fail(errno.EPERM))
    groups: list[tuple[str, Target]] = [
        (_ALLOWED, ALLOW),
        (_ABSENT, fail(errno.ENOSYS)),
        (_NOTHING_TO_DO, fail(0)),
    ]
    groups += [(names, names) for names, _ in _RULES]
    for names, answer in groups:
        for name in names.split():
            if name in numbers:
                answers[numbers[name]] = answer
    ranges: list[tuple[int, Target]] = []
    for number in range(max(answers) + 2):
        answer = answers.get(number, fail(errno.ENOSYS))
        if not ranges or ranges[-1][1] != answer:
            ranges.append((number, answer))
    if machine == "x86_64":
        ranges.append((_X32_BIT, KILL))
    return ranges


def _decide(program: Assembler, ranges: list[tuple[int, Target]], first: int, last: int) -> None:
    """A balanced tree of comparisons over ``ranges[first:last]``.

    Short in both senses: the kernel runs a filter for every number once when it is loaded.
    """
    lone = last - first == 3 and ranges[first][1] == ranges[first + 2][1]
    if lone and ranges[first + 2][0] == ranges[first + 1][0] + 1:
        program.jump(EQUAL, ranges[first + 1][0], ranges[first + 1][1], ranges[first][1])
        return
    middle = (first + last) // 2
    lower = ranges[first][1] if middle - first == 1 else None
    upper = ranges[middle][1] if last - middle == 1 else f"from {ranges[middle][0]}"
    program.jump(AT_LEAST, ranges[middle][0], upper, lower)
    if middle - first > 1:
        _decide(program, ranges, first, middle)
    if last - middle > 1:
        program.label(f"from {ranges[middle][0]}")
        _decide(program, ranges, middle, last)
