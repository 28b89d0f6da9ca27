"""The seccomp policy, answer by answer, on both architectures."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from tests.unit.bpf_machine import instructions, run, seccomp_data
from tidebox.spawner import seccomp
from tidebox.spawner.bpf import EQUAL, Assembler
from tidebox.spawner.seccomp import ALLOW, KILL, build_filter, fail
from tidebox.spawner.syscall_tables import syscall_numbers

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FILTERS = {machine: build_filter(machine) for machine in ARCHITECTURES}
GUEST = {machine: build_filter(machine, guest=True) for machine in ARCHITECTURES}
NESTED = {machine: build_filter(machine, nested=True) for machine in ARCHITECTURES}
NUMBERS = {machine: syscall_numbers(machine) for machine in ARCHITECTURES}

EPERM = fail(errno.EPERM)
ENOSYS = fail(errno.ENOSYS)

# What interpreters, compilers, shells and build tools live on: a filter without one of these breaks them.
NEEDED = """
    read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64
    pwrite64 readv writev sched_yield mremap madvise dup dup3 nanosleep getpid sendfile connect accept4 sendto
    recvfrom sendmsg recvmsg bind listen setsockopt execve exit exit_group wait4 waitid kill tgkill uname fcntl
    flock fsync ftruncate getdents64 getcwd chdir fchmodat fchownat umask getrusage sysinfo times getuid setpgid
    setsid sigaltstack statfs futex sched_getaffinity set_tid_address timer_create clock_gettime clock_nanosleep
    epoll_create1 epoll_ctl epoll_pwait openat openat2 mkdirat mknodat newfstatat unlinkat renameat2 linkat
    symlinkat readlinkat faccessat faccessat2 pselect6 ppoll set_robust_list splice copy_file_range utimensat
    signalfd4 timerfd_create eventfd2 pipe2 inotify_init1 getrandom memfd_create execveat membarrier statx rseq
    pidfd_open pidfd_send_signal close_range epoll_pwait2 fallocate getcpu landlock_create_ruleset
    landlock_restrict_self futex_waitv futex_wait futex_wake mseal shmget semget msgget mq_open getgroups setuid
    setgid setresuid setresgid setgroups capget capset seccomp fchmodat2
"""
NEEDED_ON_X86 = """
    open stat lstat poll select access pipe dup2 pause alarm fork vfork getdents rename unlink time arch_prctl
"""


REFUSED = """
    io_uring_setup io_uring_enter io_uring_register bpf perf_event_open keyctl add_key request_key userfaultfd
    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp mount umount2
    fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr pivot_root chroot unshare setns kexec_load
    kexec_file_load init_module finit_module delete_module reboot swapon swapoff quotactl quotactl_fd acct
    syslog name_to_handle_at open_by_handle_at fanotify_init fanotify_mark vhangup mbind set_mempolicy
    get_mempolicy set_mempolicy_home_node migrate_pages move_pages lookup_dcookie nfsservctl clock_settime
    settimeofday clock_adjtime adjtimex sethostname setdomainname vmsplice memfd_secret remap_file_pages
    io_setup io_submit io_destroy io_cancel io_getevents io_pgetevents
"""
REFUSED_ON_X86 = """
    iopl ioperm modify_ldt ustat sysfs uselib _sysctl create_module query_module vserver set_thread_area
"""


ABSENT = """
    clone3 statmount listmount listns cachestat lsm_get_self_attr open_tree_attr file_setattr
"""


def nested_answer(machine: str, name: str, *arguments: int) -> int:
    return run(NESTED[machine], seccomp_data(ARCHITECTURES[machine], NUMBERS[machine][name], arguments))[0]


def guest_answer(machine: str, name: str, *arguments: int) -> int:
    return run(GUEST[machine], seccomp_data(ARCHITECTURES[machine], NUMBERS[machine][name], arguments))[0]


def answer(machine: str, name: str, *arguments: int) -> int:
    return run(FILTERS[machine], seccomp_data(ARCHITECTURES[machine], NUMBERS[machine][name], arguments))[0]


machines = pytest.mark.parametrize("machine", sorted(ARCHITECTURES))


@machines
def test_programs_get_the_calls_they_need(machine: str) -> None:
    names = (NEEDED + (NEEDED_ON_X86 if machine == "x86_64" else "")).split()
    assert [name for name in names if answer(machine, name) != ALLOW] == []


@machines
def test_dangerous_calls_fail_with_eperm_whatever_their_arguments(machine: str) -> None:
    names = (REFUSED + (REFUSED_ON_X86 if machine == "x86_64" else "")).split()
    for arguments in ((), (-1,) * 6, (1,) * 6):
        assert [name for name in names if answer(machine, name, *arguments) != EPERM] == []


@machines
def test_calls_with_a_fallback_look_absent(machine: str) -> None:
    assert [name for name in ABSENT.split() if answer(machine, name) != ENOSYS] == []


@machines
def test_sync_succeeds_without_being_run(machine: str) -> None:
    assert answer(machine, "sync") == answer(machine, "syncfs", 3) == fail(0)


@machines
def test_every_number_outside_the_table_looks_absent(machine: str) -> None:
    known = set(NUMBERS[machine].values())
    unknown = [number for number in (*range(2048), 0xFFFF, 0x3FFFFFFF) if number not in known]
    for number in unknown:
        assert run(FILTERS[machine], seccomp_data(ARCHITECTURES[machine], number))[0] == ENOSYS, number


@machines
def test_every_number_of_the_table_gets_its_own_answer(machine: str) -> None:
    """The tree's comparisons against the policy's plain lists, number by number."""
    by_rule = {name for names, _ in seccomp.rules(nested=False) for name in names.split()}
    for name, number in NUMBERS[machine].items():
        if name in by_rule:
            continue
        expected = EPERM
        for group, value in ((seccomp._ALLOWED, ALLOW), (seccomp._ABSENT, ENOSYS), (seccomp._NOTHING_TO_DO, fail(0))):
            if name in group.split():
                expected = value
        assert run(FILTERS[machine], seccomp_data(ARCHITECTURES[machine], number))[0] == expected, name


def test_the_policy_names_only_known_calls_each_once() -> None:
    by_argument = [names for names, _ in seccomp.rules(nested=False)]
    groups = [seccomp._ALLOWED, seccomp._ABSENT, seccomp._NOTHING_TO_DO, *by_argument]
    names = " ".join(groups).split()
    assert sorted(set(names)) == sorted(names)
    assert set(names) <= NUMBERS["x86_64"].keys() | NUMBERS["aarch64"].keys()


@pytest.mark.parametrize("architecture", [0x40000003, 0x40000028, 0xC000003E, 0xC00000B7, 0])
@machines
def test_another_architecture_kills(machine: str, architecture: int) -> None:
    if architecture == ARCHITECTURES[machine]:
        return
    for number in (0, 1, 56, 59, 257, 435, 0x40000000):
        assert run(FILTERS[machine], seccomp_data(architecture, number))[0] == KILL


@pytest.mark.parametrize("number", [0, 1, 59, 101, 257, 512, 520, 0x3FFFFFFF])
def test_x32_numbers_kill(number: int) -> None:
    data = seccomp_data(ARCHITECTURES["x86_64"], number | 0x40000000)
    assert run(FILTERS["x86_64"], data)[0] == KILL


@machines
def test_clone_makes_processes_and_threads(machine: str) -> None:
    fork = 0x01200011
    thread = 0x003D0F00
    vfork = 0x00004111
    assert {answer(machine, "clone", flags) for flags in (fork, thread, vfork, 17)} == {ALLOW}


@pytest.mark.parametrize(
    "flag",
    [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00008000],
    ids=["mount", "cgroup", "uts", "ipc", "user", "pid", "net", "parent"],
)
@machines
def test_clone_makes_no_namespace_and_no_sibling(machine: str, flag: int) -> None:
    assert answer(machine, "clone", flag) == EPERM
    assert answer(machine, "clone", flag | 17) == EPERM
    # The kernel looks at the lower half only, so a high bit must not hide the flag.
    assert answer(machine, "clone", flag | 0xDEADBEEF << 32) == EPERM


@pytest.mark.parametrize("call", ["socket", "socketpair"])
@pytest.mark.parametrize("family", range(64))
@machines
def test_socket_families(machine: str, family: int, call: str) -> None:
    expected = ALLOW if family in (1, 2, 10) else fail(errno.EAFNOSUPPORT)
    for kind in (1, 2, 1 | 0o2000000, 2 | 0o4000):
        assert answer(machine, call, family, kind, 0) == expected
        assert answer(machine, call, family | 1 << 32, kind, 0) == expected
    assert answer(machine, call, -family - 1, 1, 0) == fail(errno.EAFNOSUPPORT)


@pytest.mark.parametrize("kind", [6, 10, 10 | 0o2000000, 15], ids=["dccp", "packet", "packet-cloexec", "last"])
@machines
def test_socket_types_that_lead_to_other_families(machine: str, kind: int) -> None:
    assert answer(machine, "socket", 2, kind, 0x300) == fail(errno.ESOCKTNOSUPPORT)


@pytest.mark.parametrize("protocol", [33, 132, 136, 115, 255, 256, 262, 6 | 1 << 16])
@machines
def test_socket_protocols_that_load_modules(machine: str, protocol: int) -> None:
    assert answer(machine, "socket", 2, 1, protocol) == fail(errno.EPROTONOSUPPORT)


@pytest.mark.parametrize("protocol", [0, 1, 6, 17, 58])
@machines
def test_common_socket_protocols(machine: str, protocol: int) -> None:
    assert answer(machine, "socket", 2, 1, protocol) == ALLOW


@pytest.mark.parametrize("request_", [0x5412, 0x541C, 0x5423], ids=["TIOCSTI", "TIOCLINUX", "TIOCSETD"])
@machines
def test_terminal_injection(machine: str, request_: int) -> None:
    assert answer(machine, "ioctl", 0, request_) == EPERM
    # CVE-2019-10063: a filter that compares all 64 bits is passed by setting a high one.
    assert answer(machine, "ioctl", 0, request_ | 1 << 32) == EPERM


@pytest.mark.parametrize(
    "request_", [0x5401, 0x5413, 0x5414, 0x541B, 0x5421, 0x540E, 0x5410, 0x5422, 0x5424, 0x8004667E]
)
@machines
def test_ordinary_ioctls(machine: str, request_: int) -> None:
    assert answer(machine, "ioctl", 0, request_) == ALLOW


@pytest.mark.parametrize("call", ["sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"])
@machines
def test_scheduling_is_set_on_oneself_only(machine: str, call: str) -> None:
    assert answer(machine, call, 0, 8, 0x7FFF0000) == ALLOW
    assert answer(machine, call, 1 << 32, 8, 0x7FFF0000) == ALLOW
    for pid in (1, 2, 4194304, -1):
        assert answer(machine, call, pid, 8, 0x7FFF0000) == EPERM


@machines
def test_limits_are_set_on_oneself_and_read_on_others(machine: str) -> None:
    new, old = 0x7FFF00000000, 0x7FFF00001000
    assert answer(machine, "prlimit64", 0, 7, new, old) == ALLOW
    assert answer(machine, "prlimit64", 1, 7, 0, old) == ALLOW
    for pointer in (new, 1, 1 << 32, 0x1000, -1):
        assert answer(machine, "prlimit64", 1, 7, pointer, old) == EPERM


@machines
def test_priority_is_set_on_oneself_only(machine: str) -> None:
    assert answer(machine, "setpriority", 0, 0, 10) == ALLOW
    for which, who in ((0, 1), (1, 0), (1, 1), (2, 0), (2, 1000)):
        assert answer(machine, "setpriority", which, who, 19) == EPERM


@machines
def test_io_priority_is_set_on_oneself_only(machine: str) -> None:
    assert answer(machine, "ioprio_set", 1, 0, 3 << 13) == ALLOW
    for which, who in ((1, 1), (2, 0), (2, 1), (3, 0), (3, 1000), (0, 0)):
        assert answer(machine, "ioprio_set", which, who, 3 << 13) == EPERM


@machines
def test_personality_may_be_asked_but_not_changed(machine: str) -> None:
    assert answer(machine, "personality", 0xFFFFFFFF) == answer(machine, "personality", 0) == ALLOW
    for value in (0x0040000, 0x0400000, 8, 0x20000, 0xFFFFFFFE):
        assert answer(machine, "personality", value) == EPERM


@machines
def test_core_scheduling_cannot_idle_a_neighbour(machine: str) -> None:
    assert answer(machine, "prctl", 62, 1, 0, 0) == fail(errno.EINVAL)
    for option in (1, 4, 15, 21, 22, 36, 38):
        assert answer(machine, "prctl", option) == ALLOW


@pytest.mark.parametrize("option", [26, 50, 51, 52])
@machines
def test_no_socket_loads_a_program_into_the_kernel(machine: str, option: int) -> None:
    for level in (1, 1 | 1 << 32):
        for number in (option, option | 1 << 32):
            assert answer(machine, "setsockopt", 3, level, number) == EPERM


SOCKET_OPTIONS = {
    "reuse an address": (1, 2, ALLOW),
    "detach a filter": (1, 27, ALLOW),
    "a larger buffer": (1, 8, fail(0)),
    "the last that is known": (1, 84, ALLOW),
    "one that is newer": (1, 85, fail(errno.ENOPROTOOPT)),
    "no delay": (6, 1, ALLOW),
    "a protocol on top": (6, 31, fail(errno.ENOPROTOOPT)),
    "segmentation": (17, 103, ALLOW),
    "encapsulation": (17, 100, fail(errno.ENOPROTOOPT)),
    "time to live": (0, 2, ALLOW),
    "send to a group": (0, 32, ALLOW),
    "a group": (0, 35, fail(errno.ENODEV)),
    "a group with a source": (0, 39, fail(errno.ENODEV)),
    "a newer way into a group": (0, 42, fail(errno.ENODEV)),
    "a filter of sources": (0, 48, fail(errno.ENODEV)),
    "after those": (0, 49, ALLOW),
    "packet filter": (0, 64, EPERM),
    "only version 6": (41, 26, ALLOW),
    "a group of version 6": (41, 20, fail(errno.ENODEV)),
    "anycast": (41, 27, fail(errno.ENODEV)),
    "a newer way into one": (41, 42, fail(errno.ENODEV)),
    "flow labels": (41, 32, EPERM),
    "packet filter of version 6": (41, 64, EPERM),
    "traffic class": (41, 67, ALLOW),
    "ICMPv6": (58, 1, ALLOW),
    "raw": (255, 1, fail(errno.ENOPROTOOPT)),
    "packets": (263, 18, fail(errno.ENOPROTOOPT)),
    "netlink": (270, 1, fail(errno.ENOPROTOOPT)),
}


@pytest.mark.parametrize("option", sorted(SOCKET_OPTIONS))
@machines
def test_socket_options(machine: str, option: str) -> None:
    level, number, expected = SOCKET_OPTIONS[option]
    assert answer(machine, "setsockopt", 3, level, number) == expected


@machines
def test_further_filters_are_the_operators_choice(machine: str) -> None:
    set_filter, by_prctl = ("seccomp", 1, 0), ("prctl", 22, 2)
    for call in (set_filter, by_prctl, ("seccomp", 1, 8), ("seccomp", 1 | 1 << 32), ("prctl", 22, 2 | 1 << 32)):
        assert answer(machine, *call) == fail(errno.EINVAL)
        assert nested_answer(machine, *call) == ALLOW
    # Asking what there is, and the mode without a filter.
    for call in (("seccomp", 0), ("seccomp", 2), ("prctl", 22, 1), ("prctl", 21)):
        assert answer(machine, *call) == nested_answer(machine, *call) == ALLOW


@machines
def test_the_limit_of_cores_is_kept_and_who_sets_it_goes_on(machine: str) -> None:
    new, old = 0x7FFF00000000, 0x7FFF00001000
    assert answer(machine, "prlimit64", 0, 4, new, 0) == fail(0)
    assert answer(machine, "prlimit64", 0, 4, new, old) == EPERM
    assert answer(machine, "prlimit64", 0, 4, 0, old) == ALLOW
    assert answer(machine, "prlimit64", 1, 4, new, 0) == EPERM
    if machine == "x86_64":
        assert answer(machine, "setrlimit", 4, new) == fail(0)
        assert answer(machine, "setrlimit", 7, new) == ALLOW


@machines
def test_files_are_locked_but_neither_leased_nor_watched_by_signal(machine: str) -> None:
    for command in (1024, 1026, 1036, 1026 | 1 << 32):
        assert answer(machine, "fcntl", 3, command) == fail(errno.EINVAL)
    for command in (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1033):
        assert answer(machine, "fcntl", 3, command) == ALLOW


@machines
def test_pages_of_files_are_neither_asked_for_nor_dropped(machine: str) -> None:
    assert answer(machine, "fadvise64", 3, 0, 0, 4) == fail(0)
    assert answer(machine, "fadvise64", 3, 0, 0, 3) == ALLOW
    for call in ("preadv2", "pwritev2"):
        for flags in (0x08, 0x80, 0x09, 0x08 | 1 << 32):
            assert answer(machine, call, 3, 0, 1, 0, 0, flags) == fail(errno.EOPNOTSUPP)
        for flags in (0, 1, 2, 4, 0x10):
            assert answer(machine, call, 3, 0, 1, 0, 0, flags) == ALLOW


@machines
def test_another_kernel_is_not_asked_for_what_it_would_grant(machine: str) -> None:
    """Each is for root alone on Linux."""
    for kind, expected in ((0o020000, EPERM), (0o060000, EPERM), (0, ALLOW), (0o010000, ALLOW), (0o140000, ALLOW)):
        for mode in (kind | 0o666, kind | 0o4777, kind | 1 << 32):
            assert guest_answer(machine, "mknodat", -100, 0x1000, mode, 0x103) == expected
            if machine == "x86_64":
                assert guest_answer(machine, "mknod", 0x1000, mode, 0x103) == expected
    for better in (-1, -20, 0xFFFFFFFF, 0xFFFFFFFF | 1 << 32):
        assert guest_answer(machine, "setpriority", 0, 0, better) == fail(errno.EACCES)
    assert guest_answer(machine, "setpriority", 0, 0, 10) == ALLOW
    assert guest_answer(machine, "setpriority", 0, 1, 10) == guest_answer(machine, "setpriority", 2, 0, 10) == EPERM
    for option in (26, 32, 33, 36, 50, 51, 52):
        assert guest_answer(machine, "setsockopt", 3, 1, option) == EPERM
    assert guest_answer(machine, "setsockopt", 3, 1, 2) == ALLOW
    assert guest_answer(machine, "get_robust_list", 0, 0x1000, 0x2000) == ALLOW
    assert guest_answer(machine, "get_robust_list", 1, 0x1000, 0x2000) == EPERM


@machines
def test_rules_for_another_kernel_only_take_away(machine: str) -> None:
    for name in NUMBERS[machine]:
        for arguments in ((), (1,) * 6, (-1,) * 6, (0, 0, 5), (1, 2)):
            answers = {answer(machine, name, *arguments), guest_answer(machine, name, *arguments)}
            assert len(answers) == 1 or ALLOW in answers - {guest_answer(machine, name, *arguments)}, name


@machines
def test_the_filter_is_short_and_shallow(machine: str) -> None:
    """Loading time grows with the length, and with the depth times the number of calls: both are held."""
    assert len(instructions(FILTERS[machine])) <= 200
    steps = [run(FILTERS[machine], seccomp_data(ARCHITECTURES[machine], number))[1] for number in range(600)]
    assert max(steps) <= 24
    plain = [
        run(FILTERS[machine], seccomp_data(ARCHITECTURES[machine], NUMBERS[machine][name]))[1]
        for name in seccomp._ALLOWED.split()
        if name in NUMBERS[machine]
    ]
    assert max(plain) <= 3 + 7 + 1


def test_the_assembler_refuses_a_jump_it_cannot_encode() -> None:
    program = Assembler()
    program.jump(EQUAL, 1, "end")
    for _ in range(256):
        program.load(0)
    program.label("end")
    program.jump(EQUAL, 2, 3, 4)
    with pytest.raises(ValueError, match="jump of 256"):
        program.assemble()


def test_the_assembler_refuses_unplaced_and_doubled_labels() -> None:
    program = Assembler()
    program.jump(EQUAL, 1, "nowhere")
    with pytest.raises(ValueError, match="nowhere"):
        program.assemble()
    program.label("here")
    with pytest.raises(ValueError, match="twice"):
        program.label("here")


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        build_filter("riscv64")


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_the_tables_agree_with_installed_kernel_headers(machine: str, header: str) -> None:
    path = Path(header)
    if not path.exists():
        pytest.skip(f"{header} is not installed")
    text = path.read_text()
    seen = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", text)}
    assert len(seen) > 250
    common = seen.keys() & NUMBERS[machine].keys()
    assert len(common) > 250
    assert {name: NUMBERS[machine][name] for name in common} == {name: seen[name] for name in common}
