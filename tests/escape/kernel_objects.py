"""Calls that make a kernel object, as data: what to do first, what to do again and again, and how often.

``make(i)`` makes one more and may be refused. Each object takes a few hundred bytes at least, so the counts are such
that 4 MiB would be exceeded by objects of which nothing was charged. Locks are spread over files: the kernel goes
through all locks of a file for each new one. Filters are never made in numbers.
"""

from __future__ import annotations

from typing import NamedTuple


class Kernel(NamedTuple):
    """One kind of object."""

    most: int
    program: str


OBJECTS: dict[str, Kernel] = {
    "range locks": Kernel(
        40_000,
        """
fds = [os.open("/tmp/l%d" % n, os.O_RDWR | os.O_CREAT) for n in range(400)]
def make(i):
    fcntl.lockf(fds[i % 400], fcntl.LOCK_EX, 1, 2 * i)
""",
    ),
    "locks of open files": Kernel(
        40_000,
        """
fds = [os.open("/tmp/l%d" % n, os.O_RDWR | os.O_CREAT) for n in range(400)]
def make(i):
    fcntl.fcntl(fds[i % 400], 37, struct.pack("hhqqixxxx", fcntl.F_WRLCK, 0, 2 * i, 1, 0))
""",
    ),
    "flock": Kernel(
        30_000,
        """
for n in range(400):
    open("/tmp/l%d" % n, "w").close()
def make(i):
    fcntl.flock(os.open("/tmp/l%d" % (i % 400), os.O_RDONLY), fcntl.LOCK_SH)
""",
    ),
    "leases": Kernel(
        30_000,
        """
for n in range(400):
    open("/tmp/l%d" % n, "w").close()
def make(i):
    fcntl.fcntl(os.open("/tmp/l%d" % (i % 400), os.O_RDONLY), 1024, fcntl.F_RDLCK)
""",
    ),
    "directory notifications": Kernel(
        30_000,
        """
for n in range(400):
    os.mkdir("/tmp/n%d" % n)
def make(i):
    fcntl.fcntl(os.open("/tmp/n%d" % (i % 400), os.O_RDONLY), 1026, 0x80000001)
""",
    ),
    "inotify watches": Kernel(
        20_000,
        """
fd = check(libc.inotify_init1(0))
def make(i):
    name = "/tmp/w%d" % i
    open(name, "w").close()
    check(libc.inotify_add_watch(fd, name.encode(), 0xFFF))
""",
    ),
    "epoll items": Kernel(
        20_000,
        """
poll = select.epoll()
def make(i):
    poll.register(check(libc.eventfd(0, 0)))
""",
    ),
    # The bodies of these two, some 200 bytes, are charged to nobody: one for each descriptor, and those are bounded.
    "epoll instances": Kernel(15_000, "def make(i):\n    check(libc.epoll_create1(0))\n"),
    "eventfd": Kernel(20_000, "def make(i):\n    check(libc.eventfd(0, 0))\n"),
    "timerfd": Kernel(15_000, "def make(i):\n    check(libc.timerfd_create(1, 0))\n"),
    "signalfd": Kernel(20_000, "mask = bytes(128)\ndef make(i):\n    check(libc.signalfd(-1, mask, 0))\n"),
    "pidfd": Kernel(20_000, "def make(i):\n    os.pidfd_open(os.getpid())\n"),
    "memfd": Kernel(10_000, "def make(i):\n    os.memfd_create('x')\n"),
    "pipes": Kernel(10_000, "def make(i):\n    os.pipe()\n"),
    "asynchronous pipes": Kernel(
        20_000,
        """
def make(i):
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
""",
    ),
    "unix sockets": Kernel(
        10_000,
        """
def make(i):
    for end in socket.socketpair():
        end.detach()
""",
    ),
    "descriptors in flight": Kernel(
        5_000,
        """
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
left.setblocking(False)
def make(i):
    socket.send_fds(left, [b"x"], [0] * 100)
""",
    ),
    "datagram sockets": Kernel(10_000, "def make(i):\n    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()\n"),
    "stream sockets": Kernel(10_000, "def make(i):\n    socket.socket().detach()\n"),
    "listeners": Kernel(
        5_000,
        """
def make(i):
    s = socket.socket()
    held.append(s)
    s.bind(("127.0.0.1", 0))
    s.listen(1)
""",
    ),
    "connections that nobody accepts": Kernel(
        8_000,
        """
def make(i):
    if i % 50 == 0:
        held.append(socket.create_server(("127.0.0.1", 0), backlog=100))
    s = socket.create_connection(held[-1].getsockname(), 2)
    s.detach()
""",
    ),
    "groups of IPv6": Kernel(
        20_000,
        """
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
def make(i):
    s.setsockopt(41, 20, b"\\xff\\x02" + bytes(10) + i.to_bytes(4, "big") + (1).to_bytes(4, "little"))
""",
    ),
    "groups of IPv4": Kernel(
        20_000,
        """
def make(i):
    if i % 20 == 0:
        held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    group = socket.inet_aton("239.1.%d.%d" % (i >> 8 & 255, i & 255))
    held[-1].setsockopt(0, 35, group + socket.inet_aton("127.0.0.1"))
""",
    ),
    "timers": Kernel(
        40_000,
        """
event = ctypes.create_string_buffer(struct.pack("Qii", 0, 0, 1) + bytes(48))
number = ctypes.c_void_p()
def make(i):
    check(libc.timer_create(1, event, ctypes.byref(number)))
""",
    ),
    "queued signals": Kernel(
        60_000,
        """
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
def make(i):
    check(libc.sigqueue(os.getpid(), 40, 0))
""",
    ),
    "message queues": Kernel(
        5_000, "def make(i):\n    check(libc.mq_open(b'/q%d' % i, os.O_RDWR | os.O_CREAT, 0o600, None))\n"
    ),
    "System V queues": Kernel(20_000, "def make(i):\n    check(libc.msgget(0, 0o1600))\n"),
    "System V semaphores": Kernel(20_000, "def make(i):\n    check(libc.semget(0, 8, 0o1600))\n"),
    "System V memory": Kernel(4_000, "def make(i):\n    check(libc.shmget(0, 4096, 0o1600))\n"),
    "processes": Kernel(
        800,
        """
def make(i):
    if os.fork() == 0:
        time.sleep(120)
        os._exit(0)
""",
    ),
    "threads": Kernel(
        1_500,
        """
threading.stack_size(65536)
def make(i):
    try:
        threading.Thread(target=time.sleep, args=(120,), daemon=True).start()
    except RuntimeError:
        raise OSError("refused")
""",
    ),
    "mappings": Kernel(
        30_000,
        """
def make(i):
    held.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if i % 2 else mmap.PROT_READ | mmap.PROT_WRITE))
""",
    ),
    "names that do not exist": Kernel(
        40_000,
        """
def make(i):
    os.path.exists("/usr/lib/no-such-name-%d-%d" % (os.getpid(), i))
""",
    ),
    "files": Kernel(15_000, "def make(i):\n    open('/tmp/f%d' % i, 'w').close()\n"),
    "directories": Kernel(15_000, "def make(i):\n    os.mkdir('/tmp/d%d' % i)\n"),
    "links": Kernel(15_000, "def make(i):\n    os.symlink('x' * 200, '/tmp/s%d' % i)\n"),
    "fifos": Kernel(15_000, "def make(i):\n    os.mkfifo('/tmp/p%d' % i)\n"),
    "attributes": Kernel(
        20_000,
        """
open("/tmp/x", "w").close()
def make(i):
    os.setxattr("/tmp/x", "user.%d" % i, b"y" * 100)
""",
    ),
    "rule sets": Kernel(
        20_000,
        """
handled = ctypes.create_string_buffer((1).to_bytes(8, "little"))
def make(i):
    check(libc.syscall(ctypes.c_long(444), handled, ctypes.c_long(8), ctypes.c_long(0)))
""",
    ),
}
