"""A box talks to itself and to nobody else."""

from __future__ import annotations

import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.escape.probes import Probe, Run, assert_refused, on_gvisor, outside, python, said

UNREACHABLE = ("ENETUNREACH", "ECONNREFUSED", "EADDRNOTAVAIL", "EHOSTUNREACH")


def connect(address: tuple[str, int], kind: str = "SOCK_STREAM", family: str = "AF_INET") -> str:
    return python(
        f"""
        import socket
        def reach():
            sock = socket.socket(socket.{family}, socket.{kind})
            sock.settimeout(3)
            sock.connect({address!r})
            sock.send(b"x")
            return "connected"
        attempt(reach)
        """
    )


def test_loopback_is_the_only_interface(box_run: Run) -> None:
    program = "print(*[line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])"
    assert said(box_run(program)) == "lo"


def test_loopback_works(box_run: Run) -> None:
    program = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.sendall(b"within")
print(server.accept()[0].recv(6).decode())
"""
    assert said(box_run(program)) == "within"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server


def test_a_server_of_the_machine_on_loopback_is_out_of_reach(box_run: Run, listener: socket.socket) -> None:
    program = connect(("127.0.0.1", listener.getsockname()[1]))
    assert said(box_run(program)) == "denied ECONNREFUSED"
    assert outside(program, shield=False) in {None, "BREACH connected"}


def test_other_addresses_of_the_machine_are_out_of_reach(box_run: Run, listener: socket.socket) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        address = probe.getsockname()[0]
    program = connect((address, listener.getsockname()[1]))
    assert said(box_run(program)) in {"denied ENETUNREACH", *on_gvisor("denied EHOSTUNREACH")}
    assert outside(program, shield=False) in {None, "BREACH connected"}


@pytest.mark.parametrize(
    ("address", "kind", "family"),
    [
        (("169.254.169.254", 80), "SOCK_STREAM", "AF_INET"),
        (("192.0.2.1", 443), "SOCK_STREAM", "AF_INET"),
        (("10.0.0.1", 22), "SOCK_STREAM", "AF_INET"),
        (("8.8.8.8", 53), "SOCK_DGRAM", "AF_INET"),
        (("255.255.255.255", 67), "SOCK_DGRAM", "AF_INET"),
        (("224.0.0.251", 5353), "SOCK_DGRAM", "AF_INET"),
        (("2001:db8::1", 443), "SOCK_STREAM", "AF_INET6"),
        (("fe80::1%1", 80), "SOCK_STREAM", "AF_INET6"),
    ],
    ids=["metadata", "internet", "private", "dns", "broadcast", "multicast", "ipv6", "link-local"],
)
def test_nothing_outside_is_reached(box_run: Run, address: tuple[str, int], kind: str, family: str) -> None:
    assert said(box_run(connect(address, kind, family))) in {
        f"denied {name}" for name in (*UNREACHABLE, "EACCES", "EINVAL")
    }


def test_names_are_not_resolved(box_run: Run) -> None:
    program = """
import socket
try:
    print("BREACH", socket.getaddrinfo("example.com", 80))
except socket.gaierror:
    print("unknown")
"""
    assert said(box_run(program)) == "unknown"


def test_an_abstract_socket_of_the_machine_is_out_of_reach(box_run: Run) -> None:
    name = f"tidebox-escape-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        program = python(
            f"""
            import socket
            attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + {name!r}))
            """
        )
        assert said(box_run(program)) == "denied ECONNREFUSED"
        assert outside(program, shield=False) in {None, "BREACH None"}


def test_a_named_socket_of_the_machine_is_out_of_reach(box_run: Run) -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as server:
        path = str(Path(directory) / "socket")
        server.bind(path)
        server.listen()
        program = python(f"import socket; attempt(lambda: socket.socket(socket.AF_UNIX).connect({path!r}))")
        assert said(box_run(program)) == "denied ENOENT"
        assert outside(program, shield=False) in {None, "BREACH None"}


def test_no_socket_of_init_has_a_name(box_run: Run) -> None:
    assert len(said(box_run("print(open('/proc/net/unix').read())")).split("\n")) == 1


FAMILIES = {
    "netlink": 16,
    "packet": 17,
    "vsock": 40,
    "alg": 38,
    "bluetooth": 31,
    "key": 15,
    "can": 29,
    "tipc": 30,
    "rds": 21,
    "xdp": 44,
    "qipcrtr": 42,
    "nfc": 39,
    "ax25": 3,
    "ib": 27,
    "kcm": 41,
    "smc": 43,
    "mctp": 45,
    "pppox": 24,
}


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("kind", [2, 3, 5], ids=["datagram", "raw", "packets"])
def test_other_socket_families_do_not_exist(box_run: Run, family: str, kind: int) -> None:
    # AF_VSOCK reaches the hypervisor whatever the network namespace; AF_ALG and others are doors into the kernel.
    program = python(f"attempt(lambda: call(NR.socket, {FAMILIES[family]}, {kind}, 0))")
    assert said(box_run(program)) == "denied EAFNOSUPPORT"


def test_the_filter_and_not_the_kernel_refuses_netlink() -> None:
    assert (outside(python("attempt(lambda: call(NR.socket, 16, 3, 0))")) or "BREACH").startswith("BREACH")


SOCKETS = [
    Probe("raw-icmp", "import socket; attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))", ("EPERM",)),
    Probe("raw-ip", "import socket; attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 6))", ("EPERM",)),
    Probe("inet-packet", "attempt(lambda: call(NR.socket, 2, 10, 0x300))", ("ESOCKTNOSUPPORT",)),
    Probe("sctp", "attempt(lambda: call(NR.socket, 2, 1, 132))", ("EPROTONOSUPPORT",), compare=False),
    Probe("dccp", "attempt(lambda: call(NR.socket, 2, 6, 33))", ("ESOCKTNOSUPPORT",), compare=False),
    Probe("mptcp", "attempt(lambda: call(NR.socket, 2, 1, 262))", ("EPROTONOSUPPORT",), compare=False),
    Probe("l2tp", "attempt(lambda: call(NR.socket, 2, 2, 115))", ("EPROTONOSUPPORT",), compare=False),
    Probe(
        "interface-down",
        """
        import fcntl, socket
        request = b"lo".ljust(16, b"\\0") + bytes(24)
        attempt(lambda: fcntl.ioctl(socket.socket(), 0x8914, request))
        """,
        gvisor=("ENOTTY",),
    ),
    Probe(
        "interface-address",
        """
        import fcntl, socket, struct
        request = b"lo".ljust(16, b"\\0") + struct.pack("<HH4B8x", socket.AF_INET, 0, 10, 0, 0, 1)
        attempt(lambda: fcntl.ioctl(socket.socket(), 0x8916, request.ljust(40, b"\\0")))
        """,
        gvisor=("ENOTTY",),
    ),
    Probe(
        "firewall",
        """
        import socket
        attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).getsockopt(0, 64, 84))
        """,
        ("EPERM", "ENOPROTOOPT"),
        compare=False,
    ),
    Probe(
        "bind-to-device-of-the-machine",
        "import socket; attempt(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 25, b'eth0'))",
        ("ENODEV", "EPERM"),
        compare=False,
    ),
    Probe(
        "force-send-buffer",
        "import socket; attempt(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 32, 1 << 30))",
    ),
    Probe("packet-mark", "import socket; attempt(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 36, 7))"),
    Probe("new-network", "attempt(lambda: call(NR.unshare, 0x40000000))"),
]


@pytest.mark.parametrize("probe", SOCKETS, ids=str)
def test_the_network_cannot_be_changed(box_run: Run, probe: Probe) -> None:
    assert_refused(box_run, probe)


def test_node_reaches_nothing(box_run: Run) -> None:
    program = """
const socket = require("net").connect(80, "192.0.2.1");
socket.on("connect", () => console.log("BREACH"));
socket.on("error", (error) => console.log(error.code));
"""
    assert said(box_run(program, "javascript")) in {"ENETUNREACH", *on_gvisor("EHOSTUNREACH")}
