"""Kernel resources taken in numbers, until the kernel or the box's limits refuse more.

Some of these, filters above all, can bring down a kernel that has a fault, with everything that runs on it: they are
tried in a virtual machine only.
"""

from __future__ import annotations

import asyncio
import random

from tests.attack.target import Target

AT_ONCE = 2
BOXES = AT_ONCE
_SECONDS = 3.0
_PRELUDE = "import ctypes, fcntl, mmap, os, socket, struct, time\nlibc = ctypes.CDLL(None, use_errno=True)\nheld = []\n"
_UNTIL_REFUSED = """
end = time.monotonic() + {seconds}
try:
    while time.monotonic() < end:
        make()
except OSError:
    pass
{then}
os._exit(0)
"""
# Each defines make(), which takes one more of something. The filters are long, as a filter's memory is its length.
TAKES: dict[str, str] = {
    "socket filters": """
code = struct.pack("HBBI", 0x06, 0, 0, 0xFFFF)
body = ctypes.create_string_buffer(struct.pack("HBBI", 0x34, 0, 0, 3) * 4000 + code)
fprog = struct.pack("HxxxxxxQ", 4001, ctypes.addressof(body))
def make():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 26, fprog)
    held.append(s)
""",
    "reuseport filters": """
body = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
fprog = struct.pack("HxxxxxxQ", 1, ctypes.addressof(body))
def make():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.setsockopt(socket.SOL_SOCKET, 51, fprog)
    held.append(s)
""",
    "seccomp filters": """
body = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(body)))
def make():
    if libc.prctl(22, 2, fprog, 0, 0):
        raise OSError(ctypes.get_errno(), "refused")
""",
    "range locks": """
fd = os.open("/tmp/l", os.O_RDWR | os.O_CREAT)
place = 0
def make():
    global place
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, place)
    place += 2
""",
    "inotify watches": """
fds = [libc.inotify_init1(0) for _ in range(64)]
names = [os.path.join(top, name).encode() for top, _, files in os.walk("/usr/lib") for name in files][:5000]
place = 0
def make():
    global place
    if libc.inotify_add_watch(fds[place // len(names) % 64], names[place % len(names)], 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), "refused")
    place += 1
""",
    "unaccepted connections": """
def make():
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    held.append(listener)
    for _ in range(100):
        s = socket.create_connection(listener.getsockname(), 0.5)
        s.setblocking(False)
        held.append(s)
        try:
            while True:
                s.send(bytes(65536))
        except BlockingIOError:
            pass
""",
    "groups of IPv6": """
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
place = 0
def make():
    global place
    s.setsockopt(41, 20, b"\\xff\\x02" + bytes(10) + place.to_bytes(4, "big") + (1).to_bytes(4, "little"))
    place += 1
""",
    "message queues": """
place = 0
def make():
    global place
    if libc.mq_open(b"/q%d" % place, os.O_RDWR | os.O_CREAT, 0o600, None) < 0:
        raise OSError(ctypes.get_errno(), "refused")
    place += 1
""",
}


def program(chance: random.Random) -> tuple[str, str]:
    """Which resource, and a program that takes it, holds it for a moment or not, and ends."""
    name = chance.choice(sorted(TAKES))
    then = chance.choice(["", "time.sleep(0.5)", "held.clear()"])
    return name, _PRELUDE + TAKES[name] + _UNTIL_REFUSED.format(seconds=_SECONDS, then=then)


async def step(chance: random.Random, target: Target) -> list[str]:
    """Two boxes at once."""
    made = [program(chance) for _ in range(AT_ONCE)]
    limit = int(_SECONDS * 1000) + 5000
    ends = await asyncio.gather(*(target.execute(code, timeout_ms=limit) for _, code in made), return_exceptions=True)
    pairs = zip(made, ends, strict=True)
    return [f"{name}: {end}" for (name, _), end in pairs if isinstance(end, BaseException) or end == "INTERNAL_ERROR"]
