"""Programs made of system calls that the filter lets through, with hostile arguments."""

from __future__ import annotations

import asyncio
import os
import random
from functools import cache

from tests.attack.target import Target
from tests.unit import bpf_machine
from tidebox.spawner.seccomp import ALLOW, build_filter
from tidebox.spawner.syscall_tables import syscall_numbers

AT_ONCE = 4
BOXES = AT_ONCE
MACHINE = os.uname().machine
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECONDS = 1.5
_CALLS = 48

# They load BPF programs, which are kernel resources in numbers.
_LOADS_FILTERS = frozenset({"seccomp"})
_PR_SET_SECCOMP = 22
_ATTACH_FILTERS = frozenset({26, 50, 51, 52})
# A thread that ends, or waits for ever, makes no more calls; the children of a fork would all go on making calls.
_POINTLESS = frozenset({"exit", "exit_group", "pause", "rt_sigreturn", "fork", "vfork", "clone", "restart_syscall"})
# What an argument may be beside a number: an address in the program's buffer, a descriptor, the last result.
_NUMBERS = (0, 1, 2, 3, 5, 6, 7, 9, 16, 24, 4096, 4097, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 63, -1, -2, -100)


@cache
def reachable() -> tuple[str, ...]:
    """The calls that the filter lets through for at least some arguments."""
    program = build_filter(MACHINE)
    samples = [(), *((first, second, 0, 0) for first in range(3) for second in range(3)), (0xFFFFFFFF,)]
    found = []
    for name, number in syscall_numbers(MACHINE).items():
        answers = {
            bpf_machine.run(program, bpf_machine.seccomp_data(_AUDIT[MACHINE], number, sample))[0] for sample in samples
        }
        if ALLOW in answers:
            found.append(name)
    return tuple(sorted(found))


Argument = int | str
"""A number, ``b<offset>`` in the buffer, ``f<index>`` of a descriptor, or ``r`` for the last result."""
Call = tuple[int, tuple[Argument, ...]]


def calls(chance: random.Random, count: int = _CALLS) -> list[Call]:
    """System calls in a row."""
    names = [name for name in reachable() if name not in _LOADS_FILTERS | _POINTLESS]
    numbers = syscall_numbers(MACHINE)
    return [(numbers[chance.choice(names)], tuple(_argument(chance) for _ in range(6))) for _ in range(count)]


def _argument(chance: random.Random) -> Argument:
    match chance.randrange(8):
        case 0 | 1:
            return f"b{chance.choice([0, 64, 256, 1024, 4096, 65536, (1 << 20) - 8])}"
        case 2 | 3:
            return f"f{chance.randrange(12)}"
        case 4:
            return "r"
        case 5:
            # Never a number that attaches a filter: those are left to the grammars for kernel resources.
            number = chance.randrange(100)
            return 0 if number in _ATTACH_FILTERS or number == _PR_SET_SECCOMP else number
        case _:
            return chance.choice(_NUMBERS)


# In the box. Each worker goes through its calls again and again until its time is over.
_PROGRAM = """\
import ctypes, mmap, os, random, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
area = mmap.mmap(-1, 1 << 20)
base = ctypes.addressof(ctypes.c_char.from_buffer(area))
area[0:8] = b"/tmp/a\\0\\0"; area[64:80] = b"/proc/self/fd/0\\0"[:16]
area[256:272] = random.Random({seed}).randbytes(16)
area[1024:1032] = (base).to_bytes(8, "little"); area[4096:4104] = (64).to_bytes(8, "little")
def descriptors():
    left, right = socket.socketpair()
    found = [*os.pipe(), left.detach(), right.detach(), os.memfd_create("x"), socket.socket().detach()]
    found.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach())
    found += [libc.inotify_init1(0o4000), os.open("/tmp", os.O_RDONLY), os.open("/tmp/f", os.O_RDWR | os.O_CREAT)]
    found += [libc.epoll_create1(0), libc.eventfd(0, 0o4000), os.open("/dev/null", os.O_RDWR)]
    return found
def value(argument, last, held):
    if isinstance(argument, int):
        return argument
    if argument == "r":
        return last
    number = int(argument[1:])
    return base + number if argument[0] == "b" else held[number % len(held)]
def work(calls):
    end = time.monotonic() + {seconds}
    held, last = descriptors(), 0
    while time.monotonic() < end:
        for number, arguments in calls:
            last = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(value(a, last, held)) for a in arguments))
            if time.monotonic() >= end:
                break
plans = {plans}
signal.setitimer(signal.ITIMER_REAL, {seconds} + 0.3)
for plan in plans[1:3]:
    threading.Thread(target=work, args=(plan,), daemon=True).start()
for plan in plans[3:]:
    if os.fork() == 0:
        signal.setitimer(signal.ITIMER_REAL, {seconds} + 0.3)
        work(plan)
        os._exit(0)
work(plans[0])
os._exit(0)
"""


def program(chance: random.Random) -> str:
    """A whole program: two threads beside the main one, and children."""
    plans = [calls(chance) for _ in range(chance.randint(1, 6))]
    return _PROGRAM.format(seed=chance.randrange(1 << 30), seconds=SECONDS, plans=plans)


async def step(chance: random.Random, target: Target) -> list[str]:
    """Several programs at once, each in a box of its own."""
    programs = [program(chance) for _ in range(AT_ONCE)]
    limit = int(SECONDS * 1000) + 1500
    ends = await asyncio.gather(*(target.execute(text, timeout_ms=limit) for text in programs), return_exceptions=True)
    problems = [f"{type(end).__name__}: {end}" for end in ends if isinstance(end, BaseException)]
    # A program may end as it likes; that the box was lost with what makes boxes may not happen.
    return problems + [f"the program ended as {end}" for end in ends if end == "INTERNAL_ERROR"]
