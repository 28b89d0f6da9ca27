"""Programs that go at a resource of the machine as hard as their box lets them, as data.

Each runs until it is killed, in a fresh box; one that ends, as by its memory limit, is started again. ``loop`` repeats
a function and ignores refusals: that a limit was reached does not end an attack. None attaches filters.
"""

from __future__ import annotations

PRELUDE = """\
import ctypes, errno, fcntl, mmap, os, select, signal, socket, struct, sys, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
held = []
def loop(step):
    i = 0
    while True:
        try:
            step(i)
        except OSError:
            pass
        i += 1
def refill(step):
    i = 0
    while True:
        try:
            step(i)
        except OSError:
            for one in held:
                os.close(one)
            held.clear()
        i += 1
"""
SPIN = "while True: pass\n"

_LIBC = "name = next(line.split()[-1] for line in open('/proc/self/maps') if '/libc.so' in line or '/libc-' in line)\n"

ATTACKS: dict[str, str] = {
    "range locks": """
fds = [os.open("/tmp/l%d" % n, os.O_RDWR | os.O_CREAT) for n in range(100)]
loop(lambda i: fcntl.lockf(fds[i % 100], fcntl.LOCK_EX, 1, 2 * i % 40000))
""",
    "flock on libc": _LIBC
    + """
def step(i):
    held.append(os.open(name, os.O_RDONLY))
    fcntl.flock(held[-1], fcntl.LOCK_SH)
refill(step)
""",
    "inotify watches": """
names = [os.path.join("/usr/bin", n).encode() for n in os.listdir("/usr/bin")]
def step(i):
    if i % len(names) == 0:
        os.close(step.fd)
        step.fd = libc.inotify_init1(0o4000)
    libc.inotify_add_watch(step.fd, names[i % len(names)], 0xFFF)
step.fd = libc.inotify_init1(0o4000)
loop(step)
""",
    "pipes": """
def step(i):
    reader, writer = os.pipe()
    held.extend((reader, writer))
    fcntl.fcntl(writer, 1031, 1 << 20)
    os.set_blocking(writer, False)
    os.write(writer, bytes(1 << 20))
refill(step)
""",
    "TCP buffers": """
listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
def step(i):
    s = socket.create_connection(listener.getsockname(), 1)
    s.setblocking(False)
    held.append(s.detach())
    while True:
        try:
            os.write(held[-1], bytes(65536))
        except BlockingIOError:
            return
refill(step)
""",
    "UDP buffers": """
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(50)]
loop(lambda i: senders[i % 50].sendto(bytes(60000), receiver.getsockname()))
""",
    "descriptors in flight": """
def step(i):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.setblocking(False)
    try:
        while True:
            socket.send_fds(left, [b"x"], [right.fileno()] * 200)
    finally:
        left.close()
        right.close()
loop(step)
""",
    "terminals": "refill(lambda i: held.extend(os.openpty()))\n",
    "timers": """
event = ctypes.create_string_buffer(struct.pack("Qii", 0, 0, 1) + bytes(48))
when = ctypes.create_string_buffer(struct.pack("qqqq", 0, 50000, 0, 50000))
for _ in range(20000):
    number = ctypes.c_void_p()
    if libc.timer_create(1, event, ctypes.byref(number)):
        break
    libc.timer_settime(number, 0, when, None)
while True: pass
""",
    "message queues": """
def step(i):
    queue = libc.mq_open(b"/q%d" % (i % 8), os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600, None)
    for _ in range(20):
        libc.mq_send(queue, bytes(8192), 8192, 0)
    os.close(queue)
    libc.mq_unlink(b"/q%d" % (i % 8))
loop(step)
""",
    "fork bomb": "while True:\n    try: os.fork()\n    except OSError: pass\n",
    "mapping storm": """
def step(i):
    area = mmap.mmap(-1, 4 << 20)
    for place in range(0, 4 << 20, 4096):
        area[place] = 1
    area.close()
loop(step)
""",
    "page tables": """
area = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
for place in range(0, 1 << 40, 2 << 20):
    area[place]
while True: pass
""",
    "names looked up": """
loop(lambda i: os.path.exists("/usr/lib/none-%d-%d" % (os.getpid(), i)))
""",
    "files made": """
def step(i):
    if os.path.exists("/tmp/f%d" % (i % 10000)):
        os.unlink("/tmp/f%d" % (i % 10000))
    else:
        os.close(os.open("/tmp/f%d" % (i % 10000), os.O_CREAT | os.O_WRONLY))
loop(step)
""",
    "tmpfs filled": """
def step(i):
    with open("/tmp/fill", "wb", 0) as file:
        while True:
            file.write(bytes(1 << 20))
loop(step)
""",
    "memfd": """
def step(i):
    held.append(os.memfd_create("x"))
    os.write(held[-1], bytes(1 << 20))
    if len(held) > 100:
        raise OSError
refill(step)
""",
    "page cache evicted": """
paths = [os.path.join("/usr/bin", n) for n in os.listdir("/usr/bin")] + [
    line.split()[-1] for line in open("/proc/self/maps") if "/lib" in line]
def step(i):
    fd = os.open(paths[i % len(paths)], os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
loop(step)
""",
    "signal storm": """
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
for _ in range(8):
    if os.fork() == 0:
        break
loop(lambda i: os.kill(0, signal.SIGUSR1))
""",
    "queued signals": """
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
def step(i):
    if libc.sigqueue(os.getpid(), 40, 0):
        while signal.sigtimedwait({40}, 0):
            pass
loop(step)
""",
    "futex storm": """
word = ctypes.c_int(0)
number = ctypes.c_long({"x86_64": 202, "aarch64": 98}[os.uname().machine])
def wait():
    spec = ctypes.create_string_buffer(struct.pack("qq", 0, 100000))
    while True:
        libc.syscall(number, ctypes.byref(word), 0, 0, spec, 0, 0)
for _ in range(60):
    threading.Thread(target=wait, daemon=True).start()
loop(lambda i: libc.syscall(number, ctypes.byref(word), 1, 1000, 0, 0, 0))
""",
    "output flood": "block = b'x' * 65536\nwhile True: os.write(1, block)\n",
    "epoll nests": """
def step(i):
    polls = [select.epoll() for _ in range(4)]
    reader, writer = os.pipe()
    try:
        polls[0].register(reader)
        for below, above in zip(polls, polls[1:]):
            for _ in range(50):
                above.register(os.dup(below.fileno()))
        os.write(writer, b"x")
        polls[-1].poll(0)
    finally:
        os.closerange(3, 1000)
loop(step)
""",
    "memory bomb": "block = []\nwhile True: block.append(bytearray(b'x') * (1 << 20))\n",
    "exec storm": """
def step(i):
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
loop(step)
""",
    "crash loop": """
def step(i):
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    os.waitpid(child, 0)
loop(step)
""",
    "multicast groups": """
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
def step(i):
    group = b"\\xff\\x02" + bytes(10) + (i % 1000).to_bytes(4, "big") + (1).to_bytes(4, "little")
    s.setsockopt(41, 20 + (i // 1000) % 2, group)
loop(step)
""",
}
