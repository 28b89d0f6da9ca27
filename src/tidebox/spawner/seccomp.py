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
with their own id; rules added with ``landlock_*`` only take away; ``mknod`` makes fifos, devices need a capability.
A kernel other than Linux, below which a box may be, lets more through: for such a one there are further rules, for what
Linux refuses by itself without a capability.

No call loads a program into the kernel: the machine has one allowance of memory for all of them, which no control group
counts, and freeing thousands at once can hang it. That holds for filters of sockets, and for further seccomp filters
unless the operator allows those.
"""

from __future__ import annotations

import errno

from tidebox.spawner.bpf import ANY_BIT, AT_LEAST, EQUAL, Assembler
from tidebox.spawner.syscall_tables import syscall_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tidebox.spawner.bpf import Target

    Rule = Callable[[Assembler], None]

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
    pread64 pwrite64 preadv pwritev access faccessat faccessat2 openat openat2 creat
    close_range pipe pipe2 dup dup2 dup3 flock fsync fdatasync sync_file_range truncate ftruncate
    fallocate readahead getdents getdents64 getcwd chdir fchdir rename renameat renameat2 mkdir
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
    rt_tgsigqueueinfo rt_sigsuspend sigaltstack pause getrlimit getrusage getpriority ioprio_get
    sched_yield sched_getparam sched_getscheduler sched_getattr sched_getaffinity sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval

    getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid setresuid
    setresgid setfsuid setfsgid setgroups capget capset landlock_create_ruleset landlock_add_rule
    landlock_restrict_self

    time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer
    timer_create timer_settime timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime
    timerfd_gettime getrandom

    connect accept accept4 sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown bind listen getsockname
    getpeername getsockopt

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
REFUSED_CLONES = _NEW_NAMESPACES | _CLONE_PARENT
FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_SOCKET_TYPE = 0xF
_SOCK_DCCP = 6  # this and above: DCCP, and SOCK_PACKET, by which AF_INET turns into AF_PACKET
_PROTOCOLS = (0, 1, 6, 17, 58)  # default, ICMP (also AF_UNIX for itself), TCP, UDP, ICMPv6: others load kernel modules
_REFUSED_IOCTLS = (
    0x5412,  # TIOCSTI: types into a terminal
    0x541C,  # TIOCLINUX: pastes into a console
    0x5423,  # TIOCSETD: loads line disciplines
)
_PERSONALITY_QUERY = 0xFFFFFFFF
_FILE_TYPE, _CHARACTER_DEVICE, _BLOCK_DEVICE = 0o170000, 0o020000, 0o060000
_NEGATIVE = 0x80000000
_PR_SCHED_CORE = 62  # would keep the core's other thread, a neighbour's, idle
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_SECCOMP_SET_MODE_FILTER = 1
_PRIO_PROCESS = 0
_IOPRIO_WHO_PROCESS = 1
_RLIMIT_CORE = 4
_REFUSED_FCNTLS = (
    1024,  # F_SETLEASE: an object of the kernel that no control group counts
    1026,  # F_NOTIFY: signals what happens in a directory
    1036,  # F_SET_RW_HINT: changes the file for everybody
)
_POSIX_FADV_DONTNEED = 4
_RWF_NOWAIT, _RWF_DONTCACHE = 0x08, 0x80

# Options of sockets, by level; a level or an option that is not known here is refused as an old kernel would.
_SOL_IP, _SOL_SOCKET, _SOL_TCP, _SOL_UDP, _SOL_IPV6, _SOL_ICMPV6 = 0, 1, 6, 17, 41, 58
_SO_RCVBUF = 8
_ATTACHING = (26, 50, 51, 52)  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF
_PRIVILEGED = (32, 33, 36)  # SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_MARK
_LAST_OF_SOCKETS = 84  # SO_INQ
# Memberships in groups: the device's side of each is memory that no control group counts. Nobody outside could hear.
_IP_MEMBERSHIPS = (35, 39, 41)  # IP_ADD_MEMBERSHIP, IP_ADD_SOURCE_MEMBERSHIP, IP_MSFILTER
_IPV6_MEMBERSHIPS = (20, 27)  # IPV6_JOIN_GROUP, IPV6_JOIN_ANYCAST
_FIRST_MCAST, _LAST_MCAST = 42, 48  # MCAST_JOIN_GROUP to MCAST_MSFILTER, at both levels
_IPV6_FLOWLABEL_MGR = 32  # draws on one count of the whole machine
_XT_SET_REPLACE = 64  # IPT_SO_SET_REPLACE, IP6T_SO_SET_REPLACE; from here on options of IP are the packet filter's
_TCP_ULP = 31  # puts another protocol of the kernel's on top
_UDP_ENCAP = 100


def _argument(index: int, upper: bool = False) -> int:
    return _ARGUMENTS + 8 * index + (4 if upper else 0)


def _clone(program: Assembler) -> None:
    program.load(_argument(0))
    program.jump(ANY_BIT, REFUSED_CLONES, fail(errno.EPERM), ALLOW)


def _socket(program: Assembler) -> None:
    program.load(_argument(0))
    for family in FAMILIES[:-1]:
        program.jump(EQUAL, family, "socket type")
    program.jump(EQUAL, FAMILIES[-1], None, fail(errno.EAFNOSUPPORT))
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
    _any_of(program, _REFUSED_IOCTLS, fail(errno.EPERM), ALLOW)


def _on_itself(program: Assembler) -> None:
    program.load(_argument(0))
    program.jump(EQUAL, 0, ALLOW, fail(errno.EPERM))


def _setrlimit(program: Assembler) -> None:
    # Every value but the one that is set keeps or starts the machine's handler of crashes. Programs that keep secrets
    # set 0, and may go on: nothing of theirs is dumped.
    program.load(_argument(0))
    program.jump(EQUAL, _RLIMIT_CORE, fail(0), ALLOW)


def _prlimit(program: Assembler) -> None:
    # Reading limits of a process of the same user harms nobody: a null new_limit passes.
    program.load(_argument(2))
    program.jump(EQUAL, 0, None, "a new limit")
    program.load(_argument(2, upper=True))
    program.jump(EQUAL, 0, ALLOW)
    program.label("a new limit")
    program.load(_argument(0))
    program.jump(EQUAL, 0, None, fail(errno.EPERM))
    program.load(_argument(1))
    program.jump(EQUAL, _RLIMIT_CORE, None, ALLOW)
    # Answered without being run; where the old limit is asked for too, that would be a lie.
    program.load(_argument(3))
    program.jump(EQUAL, 0, fail(0), fail(errno.EPERM))


def _priority_of(kind: int, allowed: Target = ALLOW) -> Rule:
    def rule(program: Assembler) -> None:
        program.load(_argument(0))
        program.jump(EQUAL, kind, None, fail(errno.EPERM))
        program.load(_argument(1))
        program.jump(EQUAL, 0, allowed, fail(errno.EPERM))

    return rule


def _worse_priority(program: Assembler) -> None:
    _priority_of(_PRIO_PROCESS, "how nice")(program)
    program.label("how nice")
    program.load(_argument(2))
    program.jump(ANY_BIT, _NEGATIVE, fail(errno.EACCES), ALLOW)


def _no_device(mode: int) -> Rule:
    def rule(program: Assembler) -> None:
        program.load(_argument(mode))
        program.mask(_FILE_TYPE)
        program.jump(EQUAL, _CHARACTER_DEVICE, fail(errno.EPERM))
        program.jump(EQUAL, _BLOCK_DEVICE, fail(errno.EPERM), ALLOW)

    return rule


def _personality(program: Assembler) -> None:
    program.load(_argument(0))
    program.jump(EQUAL, 0, ALLOW)
    program.jump(EQUAL, _PERSONALITY_QUERY, ALLOW, fail(errno.EPERM))


def _prctl(nested: bool) -> Rule:
    def rule(program: Assembler) -> None:
        program.load(_argument(0))
        if not nested:
            program.jump(EQUAL, _PR_SET_SECCOMP, "prctl seccomp")
        program.jump(EQUAL, _PR_SCHED_CORE, fail(errno.EINVAL), ALLOW)
        if not nested:
            program.label("prctl seccomp")
            program.load(_argument(1))
            program.jump(EQUAL, _MODE_FILTER, fail(errno.EINVAL), ALLOW)

    return rule


def _seccomp(nested: bool) -> Rule:
    def rule(program: Assembler) -> None:
        program.load(_argument(0))
        # Told as by a kernel without filters, which programs go on with.
        program.jump(EQUAL, _SECCOMP_SET_MODE_FILTER, ALLOW if nested else fail(errno.EINVAL), ALLOW)

    return rule


def _fcntl(program: Assembler) -> None:
    program.load(_argument(1))
    _any_of(program, _REFUSED_FCNTLS, fail(errno.EINVAL), ALLOW)


def _fadvise(program: Assembler) -> None:
    # Would drop pages of the machine's files that others use.
    program.load(_argument(3))
    program.jump(EQUAL, _POSIX_FADV_DONTNEED, fail(0), ALLOW)


def _flagged_io(program: Assembler) -> None:
    # Would tell which pages of the machine's files are in memory, or put some out.
    program.load(_argument(5))
    program.jump(ANY_BIT, _RWF_NOWAIT | _RWF_DONTCACHE, fail(errno.EOPNOTSUPP), ALLOW)


def _setsockopt(guest: bool) -> Rule:
    refused = _ATTACHING + _PRIVILEGED if guest else _ATTACHING
    return lambda program: _socket_options(program, refused)


def _socket_options(program: Assembler, refused_options: tuple[int, ...]) -> None:
    absent, refused, no_device = fail(errno.ENOPROTOOPT), fail(errno.EPERM), fail(errno.ENODEV)
    program.load(_argument(1))
    for level in (_SOL_SOCKET, _SOL_TCP, _SOL_IP, _SOL_IPV6, _SOL_UDP):
        program.jump(EQUAL, level, f"options of level {level}")
    program.jump(EQUAL, _SOL_ICMPV6, ALLOW, absent)
    program.label(f"options of level {_SOL_SOCKET}")
    program.load(_argument(2))
    for option in refused_options:
        program.jump(EQUAL, option, refused)
    # As on a machine that allows no larger one; connections that nobody has accepted would have it too, uncounted.
    program.jump(EQUAL, _SO_RCVBUF, fail(0))
    program.jump(AT_LEAST, _LAST_OF_SOCKETS + 1, absent, ALLOW)
    program.label(f"options of level {_SOL_TCP}")
    program.load(_argument(2))
    program.jump(EQUAL, _TCP_ULP, absent, ALLOW)
    program.label(f"options of level {_SOL_UDP}")
    program.load(_argument(2))
    program.jump(EQUAL, _UDP_ENCAP, absent, ALLOW)
    program.label(f"options of level {_SOL_IP}")
    program.load(_argument(2))
    for option in _IP_MEMBERSHIPS:
        program.jump(EQUAL, option, no_device)
    program.jump(AT_LEAST, _XT_SET_REPLACE, refused)
    program.jump(AT_LEAST, _LAST_MCAST + 1, ALLOW)
    program.jump(AT_LEAST, _FIRST_MCAST, no_device, ALLOW)
    program.label(f"options of level {_SOL_IPV6}")
    program.load(_argument(2))
    for option in _IPV6_MEMBERSHIPS:
        program.jump(EQUAL, option, no_device)
    program.jump(EQUAL, _IPV6_FLOWLABEL_MGR, refused)
    program.jump(EQUAL, _XT_SET_REPLACE, refused)
    program.jump(AT_LEAST, _LAST_MCAST + 1, ALLOW)
    program.jump(AT_LEAST, _FIRST_MCAST, no_device, ALLOW)


def _any_of(program: Assembler, values: tuple[int, ...], then: int, otherwise: int) -> None:
    for value in values[:-1]:
        program.jump(EQUAL, value, then)
    program.jump(EQUAL, values[-1], then, otherwise)


_EXECUTABLE_MEMORY = "memfd_create memfd_secret"


def rules(nested: bool, guest: bool = False) -> tuple[tuple[str, Rule], ...]:
    """Calls whose answer depends on their arguments.

    ``nested`` says that programs may load filters of their own, ``guest`` that the kernel below is not Linux.
    """
    further = (("mknod", _no_device(1)), ("mknodat", _no_device(2)), ("get_robust_list", _on_itself))
    return (
        ("clone", _clone),
        ("socket socketpair", _socket),
        ("setsockopt", _setsockopt(guest)),
        ("ioctl", _ioctl),
        ("fcntl", _fcntl),
        ("fadvise64", _fadvise),
        ("preadv2 pwritev2", _flagged_io),
        ("sched_setaffinity sched_setscheduler sched_setparam sched_setattr", _on_itself),
        ("setrlimit", _setrlimit),
        ("prlimit64", _prlimit),
        ("setpriority", _worse_priority if guest else _priority_of(_PRIO_PROCESS)),
        ("ioprio_set", _priority_of(_IOPRIO_WHO_PROCESS)),
        ("personality", _personality),
        ("prctl", _prctl(nested)),
        ("seccomp", _seccomp(nested)),
        *(further if guest else ()),
    )


def allowed() -> list[str]:
    """The calls that are let through with any arguments, or answered as if they were."""
    return [*_ALLOWED.split(), *_NOTHING_TO_DO.split()]


def absent() -> list[str]:
    """The calls that are refused as an old kernel would."""
    return _ABSENT.split()


def build_filter(machine: str, nested: bool = False, executable: bool = True, guest: bool = False) -> bytes:
    """The filter for ``machine`` (as ``uname -m`` names it), ready for PR_SET_SECCOMP.

    ``nested`` lets programs load filters of their own. Where files of a box are not ``executable``, and its kernel has
    no other way to keep memory from being executed like one, such memory is refused. ``guest`` is for a kernel that is
    not Linux.
    """
    if machine not in _AUDIT_ARCH:
        raise ValueError(f"no system call table for {machine}")
    program = Assembler()
    program.load(_ARCHITECTURE)
    program.jump(EQUAL, _AUDIT_ARCH[machine], None, KILL)
    program.load(_NUMBER)
    by_argument = rules(nested, guest)
    ranges = _ranges(machine, [names for names, _ in by_argument], "" if executable else _EXECUTABLE_MEMORY)
    _decide(program, ranges, 0, len(ranges))
    for names, rule in by_argument:
        program.label(names)
        rule(program)
    return program.assemble()


def _ranges(machine: str, by_argument: list[str], refused: str) -> list[tuple[int, Target]]:
    """Each first number from which on another answer holds, with that answer; for some, where a rule begins."""
    numbers = syscall_numbers(machine)
    answers: dict[int, Target] = dict.fromkeys(numbers.values(), fail(errno.EPERM))
    groups: list[tuple[str, Target]] = [
        (_ALLOWED, ALLOW),
        (_ABSENT, fail(errno.ENOSYS)),
        (_NOTHING_TO_DO, fail(0)),
    ]
    groups += [(names, names) for names in by_argument]
    groups.append((refused, fail(errno.EPERM)))
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
