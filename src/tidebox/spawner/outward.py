"""The network of a box with egress: every address leads to one listener in it, and names to one resolver.

Nothing of the machine's network is in it. All addresses are local, so that the kernel takes every connection itself;
a constant set of nftables rules leads it to the listener, which learns the address that was meant by the name of the
accepted socket. What is neither TCP nor for the box itself is refused as it is sent. The descriptors go to the server:
their holder decides what is dialled, elsewhere; without a holder every connection is refused.

The rules are sent to the kernel as the bytes they are: the program ``nft`` would take longer than a whole box.
"""

from __future__ import annotations

import _socket
import errno
import os
from struct import pack, unpack_from

from tidebox.spawner import steps
from tidebox.spawner import syscalls as sys_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LISTENER_PORT = 15001
DESCRIPTORS = 3
"""The listener, and a socket for questions on 127.0.0.1 and one on ::1."""
_RESOLVER_PORT = 53
_IP_TRANSPARENT, _IPV6_TRANSPARENT = 19, 75
_BACKLOG = 128
_TRIAL_SECONDS = 2.0
# What waits in the kernel for a program that does not read is counted for no box: so it is little.
_SET_UP = steps.prepare([["write", "/proc/sys/net/ipv4/tcp_wmem", "4096 65536 524288"]])

_NETLINK_ROUTE, _NETLINK_NETFILTER = 0, 12
_REQUEST, _ACK, _EXCLUSIVE, _CREATE, _APPEND = 1, 4, 0x200, 0x400, 0x800
_ERROR = 2
_NEW_ROUTE = 24
_INET, _INET6 = 2, 10
# A route for all addresses: in the local table, for this machine itself.
_LOCAL_TABLE, _BOOT, _SCOPE_HOST, _LOCAL = 255, 3, 254, 2
_OUT_INTERFACE, _LOOPBACK = 4, 1

_NF_INET = 1
_BATCH_BEGIN, _BATCH_END = 16, 17
_NF_TABLES = 10
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_NESTED = 0x8000
_PREROUTING, _OUTPUT = 0, 3
_ACCEPT = 1
_VERDICT_REGISTER, _REGISTER = 0, 1
_NETWORK, _TRANSPORT = 1, 2
_TABLE = b"egress\0"


def _message(kind: int, flags: int, number: int, body: bytes) -> bytes:
    return pack("=IHHII", 16 + len(body), kind, _REQUEST | flags, number, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    return pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _nested(kind: int, *attributes: bytes) -> bytes:
    return _attribute(kind | _NESTED, b"".join(attributes))


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, pack(">I", value))


def _expression(name: bytes, *attributes: bytes) -> bytes:
    return _nested(1, _attribute(1, name + b"\0"), _nested(2, *attributes))


def _compare(value: bytes) -> bytes:
    return _expression(b"cmp", _number(1, _REGISTER), _number(2, 0), _nested(3, _attribute(1, value)))


def _load_meta(key: int) -> bytes:
    return _expression(b"meta", _number(2, key), _number(1, _REGISTER))


def _load_header(base: int, offset: int, length: int) -> bytes:
    return _expression(b"payload", _number(1, _REGISTER), _number(2, base), _number(3, offset), _number(4, length))


_IS_TCP = _load_meta(16) + _compare(b"\x06")
# Questions for names may come that way, too, to the box's own address.
_IS_QUESTION = _IS_TCP + _load_header(_TRANSPORT, 2, 2) + _compare(pack(">H", _RESOLVER_PORT))
_TAKE = _expression(b"immediate", _number(1, _VERDICT_REGISTER), _nested(2, _nested(2, _number(1, _ACCEPT))))
_TO_LOOPBACK = _load_meta(15) + _compare(bytes([_INET])) + _load_header(_NETWORK, 16, 1) + _compare(b"\x7f")
_IS_LOOPBACK6 = _load_header(_NETWORK, 24, 16) + _compare(bytes(15) + b"\x01")
_TO_LOOPBACK6 = _load_meta(15) + _compare(bytes([_INET6])) + _IS_LOOPBACK6
_TO_LISTENER = _expression(
    b"immediate", _number(1, _REGISTER), _nested(2, _attribute(1, pack(">H", LISTENER_PORT)))
) + _expression(b"tproxy", _number(1, 0), _number(3, _REGISTER))
# "Administratively prohibited", in the words of either family.
_REFUSE = _expression(b"reject", _number(1, 2), _attribute(2, b"\x03"))

# Of each chain: where it stands, in which order among others, and its rules.
_CHAINS = (
    (
        b"in\0",
        _PREROUTING,
        -150,
        (
            _IS_QUESTION + _TO_LISTENER + _TAKE,
            _TO_LOOPBACK + _TAKE,
            _TO_LOOPBACK6 + _TAKE,
            _IS_TCP + _TO_LISTENER + _TAKE,
        ),
    ),
    (b"out\0", _OUTPUT, 0, (_IS_TCP + _TAKE, _TO_LOOPBACK + _TAKE, _TO_LOOPBACK6 + _TAKE, _REFUSE)),
)


def _rules() -> bytes:
    """The rules as one transaction, which the kernel answers at its last part."""
    header = pack(">BBH", _NF_INET, 0, 0)
    parts = [(_NEW_TABLE, _CREATE, _attribute(1, _TABLE) + _number(2, 0))]
    for name, hook, priority, rules in _CHAINS:
        place = _nested(4, _number(1, hook), _attribute(2, pack(">i", priority)))
        chain = _attribute(1, _TABLE) + _attribute(3, name) + place + _number(5, _ACCEPT) + _attribute(7, b"filter\0")
        parts.append((_NEW_CHAIN, _CREATE, chain))
        place = _attribute(1, _TABLE) + _attribute(2, name)
        parts += [(_NEW_RULE, _CREATE | _APPEND, place + _nested(4, rule)) for rule in rules]
    batch = _message(_BATCH_BEGIN, 0, 0, pack(">BBH", 0, 0, _NF_TABLES))
    for number, (kind, flags, body) in enumerate(parts, 1):
        flags |= _ACK if number == len(parts) else 0
        batch += _message(_NF_TABLES << 8 | kind, flags, number, header + body)
    return batch + _message(_BATCH_END, 0, len(parts) + 1, pack(">BBH", 0, 0, _NF_TABLES))


def _route(family: int) -> bytes:
    to_all = pack("=8BI", family, 0, 0, 0, _LOCAL_TABLE, _BOOT, _SCOPE_HOST, _LOCAL, 0)
    body = to_all + _attribute(_OUT_INTERFACE, pack("=I", _LOOPBACK))
    return _message(_NEW_ROUTE, _ACK | _CREATE | _EXCLUSIVE, 1, body)


# The same for every box: made once.
_ROUTES = (_route(_INET), _route(_INET6))
_RULES = _rules()


def _tell_kernel(protocol: int, messages: tuple[bytes, ...]) -> None:
    """Send each message and wait for its answer; OSError if that is a refusal."""
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, protocol)
    try:
        for message in messages:
            sock.send(message)
            length, kind = unpack_from("=IH", answer := sock.recv(65536))
            number = unpack_from("=i", answer, 16)[0] if kind == _ERROR and length >= 20 else -errno.EPROTO
            if number:
                raise OSError(-number, os.strerror(-number))
    finally:
        sock.close()


def set_up() -> list[int]:
    """Make this of the network that this process stands in, whose loopback is up; its ``DESCRIPTORS``."""
    steps.run(_SET_UP)
    return connect_all()


def connect_all() -> list[int]:
    """Lead all addresses to a listener; StepFailed names what this kernel lacks."""
    made: list[_socket.socket] = []
    step = "egress routes"
    try:
        _tell_kernel(_NETLINK_ROUTE, _ROUTES)
        step = "egress rules"
        _tell_kernel(_NETLINK_NETFILTER, (_RULES,))
        step = "egress sockets"
        made.append(_listener())
        made.append(_resolver(_socket.AF_INET, "127.0.0.1"))
        made.append(_resolver(_socket.AF_INET6, "::1"))
    except OSError as error:
        for sock in made:
            sock.close()
        raise steps.StepFailed(step, error) from error
    return [sock.detach() for sock in made]


def _listener() -> _socket.socket:
    """Make the listener for connections of both families, to any address."""
    sock = _socket.socket(_socket.AF_INET6, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
        sock.setsockopt(_socket.IPPROTO_IP, _IP_TRANSPARENT, 1)
        sock.setsockopt(_socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, 1)
        # As every connection that it accepts inherits it: one that is cut short is reset, and no byte waits for others.
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, pack("ii", 1, 0))
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        sock.bind(("::", LISTENER_PORT))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolver(family: int, address: str) -> _socket.socket:
    sock = _socket.socket(family, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
    try:
        sock.bind((address, _RESOLVER_PORT))
    except BaseException:
        sock.close()
        raise
    return sock


def try_out() -> None:
    """Find out whether such a network can be made here, in a process that has one of its own; StepFailed if not."""
    told, telling = os.pipe()
    try:
        pid, pidfd = sys_.clone(sys_.CLONE_NEWUSER | sys_.CLONE_NEWNET)
        if pid == 0:
            _report_trial(telling)
        os.close(pidfd)
    except OSError as error:
        raise steps.StepFailed("egress network", error) from error
    finally:
        os.close(telling)
        report = _read_and_close(told)
    os.waitpid(pid, 0)
    step, _, number = report.partition("\n")
    if step or not number:
        raise steps.StepFailed(step or "egress network", OSError(int(number or 0), "it died over it"))


def _read_and_close(descriptor: int) -> str:
    with open(descriptor, "rb") as file:
        return file.read().decode()


def _report_trial(telling: int) -> NoReturn:
    """The step that failed, which is none at all, and the reason."""
    report = "\n0"
    try:
        _reach_listener()
    except steps.StepFailed as error:
        report = f"{error.step}\n{error.errno}"
    finally:
        os.write(telling, report.encode())
        os._exit(0)


def _reach_listener() -> None:
    """A connection to an address far away comes to the listener, which is told that address."""
    steps.execute([["loopback"]])
    listener = _socket.socket(fileno=connect_all()[0])
    client = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    client.settimeout(_TRIAL_SECONDS)
    meant = ("192.0.2.1", 80)
    try:
        client.connect(meant)
        accepted, _ = listener._accept()  # type: ignore[attr-defined]
        found = _socket.socket(fileno=accepted).getsockname()[:2]
    except OSError as error:
        raise steps.StepFailed("egress connection", error) from error
    if found != (f"::ffff:{meant[0]}", meant[1]):
        raise steps.StepFailed("egress connection", OSError(errno.EADDRNOTAVAIL, "led elsewhere"))
