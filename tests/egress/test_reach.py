"""What a list allows is reached, by programs that know nothing of it."""

from __future__ import annotations

import ipaddress

from tests.egress.programs import ONLY_ONE, python
from tests.egress.world import ALL, BULK, ECHO, GREETING, ONE, ONE6, SHARED, SINK, TWO, Machine, rules
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import EgressSeen, OutputEvent
from tidebox.model.result import Outcome


def test_an_allowed_name_is_reached_and_told_of(machine: Machine) -> None:
    ran = machine.run(python('attempt(lambda: get("http://one.example.com/"))'), ONLY_ONE)
    assert ran.out == f"hello from {ONE} over http\n"
    assert ran.allowed() == [("one.example.com", ONE, "one.example.com")]
    usage = ran.ending.usage.egress
    assert usage is not None
    assert (usage.connections, usage.denied) == (1, 0)
    assert usage.sent > 50 < usage.received


def test_both_families_are_reached(machine: Machine) -> None:
    ran = machine.run(
        python(f"""
        found = {{item[4][0] for item in socket.getaddrinfo("one.example.com", 80)}}
        print(sorted(found))
        request = b"GET / HTTP/1.1\\r\\nHost: one.example.com\\r\\n\\r\\n"
        for address in ("{ONE}", "{ONE6}"):
            attempt(lambda: talk((address, 80), request).splitlines()[-1])
        """),
        ONLY_ONE,
    )
    assert ran.out.splitlines()[0] == str(sorted([ONE, ONE6]))
    assert ran.out.splitlines()[1:] == [f"hello from {address} over http" for address in (ONE, ONE6)]


def test_tls_goes_through_untouched(machine: Machine) -> None:
    program = """
import urllib.request, ssl
context = ssl.create_default_context(cafile="ca.pem")
print(urllib.request.urlopen("https://one.example.com/", context=context, timeout=20).read().decode(), end="")
"""
    ran = machine.run(program, ONLY_ONE, files={"ca.pem": machine.world.ca.read_bytes()})
    assert ran.out == f"hello from {ONE} over https\n", ran.err


def test_a_server_that_speaks_first_is_heard(machine: Machine) -> None:
    ran = machine.run(
        python(f"""
        with socket.create_connection(("one.example.com", {GREETING}), 20) as sock:
            print(sock.recv(100))
            sock.sendall(b"EHLO there\\r\\n")
            print(sock.recv(100))
        """),
        ONLY_ONE,
    )
    assert ran.out == "b'220 welcome\\r\\n'\nb'250 EHLO there\\r\\n'\n", ran.err


def test_rules_by_address_need_no_name(machine: Machine) -> None:
    program = python(f"""
    attempt(lambda: talk(("{TWO}", {ECHO}), b"hello"))
    attempt(lambda: talk(("{ONE6}", 80), b"GET / HTTP/1.1\\r\\nHost: whatever\\r\\n\\r\\n").splitlines()[0])
    attempt(lambda: talk(("{ONE}", {ECHO}), b"hello"))
    """)
    ran = machine.run(program, rules(ALL, {"ips": [ONE6], "cidrs": [f"{TWO}/32"]}))
    assert ran.out.splitlines() == ["hello", "HTTP/1.1 200 OK", "denied ECONNRESET"]
    assert ran.allowed() == [(None, TWO, f"{TWO}/32"), (None, ONE6, ONE6)]


def test_a_wildcard_is_resolved_at_the_first_question(machine: Machine) -> None:
    asked = machine.world.resolver.asked
    asked.clear()
    wild = rules(ALL, {"hosts": ["*.wild.example.org"]})
    ran = machine.run(python('attempt(lambda: get("http://a.wild.example.org/"))'), wild)
    assert ran.out == f"hello from {SHARED} over http\n"
    assert ran.allowed() == [("a.wild.example.org", SHARED, "*.wild.example.org")]
    assert {name for name, _ in asked} == {"a.wild.example.org"}


def test_names_are_asked_for_by_connections_too(machine: Machine) -> None:
    """Where the resolver of a program is told to; several go over one, and none of them is another way out."""
    program = python("""
    attempt(lambda: get("http://one.example.com/"))
    attempt(lambda: get("http://two.example.com/"))
    def ask(sock, name):
        labels = b"".join(bytes([len(part)]) + part for part in name.split(b"."))
        question = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + bytes(1) + struct.pack(">2H", 1, 1)
        sock.sendall(struct.pack(">H", len(question)) + question)
        said = sock.recv(struct.unpack(">H", sock.recv(2, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
        return struct.unpack(">6H", said[:12])[1] & 15, said[-4:] if said[7] else None
    for address in ("127.0.0.1", "::1"):
        with socket.create_connection((address, 53), 20) as sock:
            for name in (b"one.example.com", b"two.example.com"):
                attempt(lambda: ask(sock, name))
            sock.sendall(b"\\xff\\xff" + bytes(600))
            attempt(lambda: sock.recv(1))
    """)
    ran = machine.run(program, ONLY_ONE, env={"RES_OPTIONS": "use-vc"})
    told = [f"(0, {ipaddress.ip_address(ONE).packed!r})", "(5, None)"]
    assert ran.out.splitlines()[:2] == [f"hello from {ONE} over http", "denied unresolved"], ran.err
    assert ran.out.splitlines()[2:] == [*told, "denied ECONNRESET"] * 2
    assert ("two.example.com", None, "no_match") in ran.denied()


def test_an_answer_that_does_not_fit_a_datagram_is_fetched_whole(machine: Machine) -> None:
    machine.world.resolver.large["large.example.com"] = [ONE, TWO]
    program = python("""
    print(sorted(item[4][0] for item in socket.getaddrinfo("large.example.com", 80, type=socket.SOCK_STREAM)))
    """)
    ran = machine.run(program, rules(ALL, {"hosts": ["large.example.com"]}))
    assert ran.out == f"['{ONE}', '{TWO}']\n", ran.err


def test_each_list_counts(machine: Machine) -> None:
    """Allowed by the server by address, by the session by a wildcard, by the run by name."""
    three = rules({"cidrs": ["45.33.32.0/24"]}, {"hosts": ["*.example.com"]}, {"hosts": ["one.example.com", "x.net"]})
    program = python("""
    attempt(lambda: get("http://one.example.com/"))
    attempt(lambda: get("http://two.example.com/"))
    attempt(lambda: get("http://x.net/"))
    """)
    ran = machine.run(program, three)
    assert ran.out.splitlines() == [f"hello from {ONE} over http", "denied unresolved", "denied unresolved"]


def test_a_silent_name_does_not_hold_up_a_run(machine: Machine) -> None:
    """Nor the names beside it: what is asked for at the same time is there first."""
    ran = machine.run(
        python("""
        waiting = threading.Thread(target=lambda: attempt(lambda: get("http://silent.example.com/")))
        waiting.start()
        attempt(lambda: get("http://one.example.com/"))
        sys.stdout.flush()
        waiting.join()
        """),
        rules(ALL, {"hosts": ["silent.example.com", "one.example.com"]}),
    )
    assert ran.out.splitlines() == [f"hello from {ONE} over http", "denied unresolved"], ran.err


def test_much_goes_through_in_both_directions_byte_for_byte(machine: Machine) -> None:
    ran = machine.run(
        python(f"""
        size = 200 << 20
        with socket.create_connection(("one.example.com", {BULK}), 20) as sock:
            sock.sendall(b"%d\\n" % size)
            got = 0
            while data := sock.recv(1 << 20):
                got += len(data)
        print(got == size)
        with socket.create_connection(("one.example.com", {SINK}), 20) as sock:
            for _ in range(100):
                sock.sendall(bytes(1 << 20))
            sock.shutdown(socket.SHUT_WR)
            print(sock.recv(100).decode())
        with socket.create_connection(("one.example.com", {ECHO}), 20) as sock:
            data = os.urandom(4 << 20)
            threading.Thread(target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR))).start()
            back = b"".join(iter(lambda: sock.recv(1 << 20), b""))
            print(back == data)
        """),
        ONLY_ONE,
    )
    assert ran.out == f"True\n{100 << 20}\nTrue\n", ran.err
    usage = ran.ending.usage.egress
    assert usage is not None
    assert usage.received == (200 << 20) + len(str(100 << 20)) + (4 << 20)


def test_many_connections_at_once(machine: Machine) -> None:
    ran = machine.run(
        python(f"""
        socks = [socket.create_connection(("one.example.com", {ECHO}), 20) for _ in range(200)]
        for number, sock in enumerate(socks):
            sock.sendall(b"%03d" % number)
        print(all(sock.recv(3) == b"%03d" % number for number, sock in enumerate(socks)))
        """),
        ONLY_ONE,
    )
    assert ran.out == "True\n", ran.err


def test_a_program_that_does_not_wait_for_connect_works(machine: Machine) -> None:
    ran = machine.run(
        python(f"""
        import asyncio
        async def main():
            async def once(number):
                reader, writer = await asyncio.open_connection("one.example.com", {ECHO})
                writer.write(b"%d" % number)
                writer.write_eof()
                return await reader.read() == b"%d" % number
            print(all(await asyncio.gather(*(once(number) for number in range(50)))))
        asyncio.run(main())
        """),
        ONLY_ONE,
    )
    assert ran.out == "True\n", ran.err


def test_a_parked_cell_serves_a_run_with_rules(machine: Machine) -> None:
    program = python('attempt(lambda: get("http://one.example.com/"))')
    machine.run(program, ONLY_ONE)
    machine.do(machine.pool.filled())
    assert any(machine.pool.parked(key) for key in machine.pool._ready if key.leads_out)
    assert machine.run(program, ONLY_ONE).out == f"hello from {ONE} over http\n"
    # The next has other rules: a cell has none of its own.
    assert machine.run(program, rules(ALL, {"hosts": ["two.example.com"]})).out == "denied unresolved\n"


def test_a_box_without_rules_has_the_network_it_always_had(machine: Machine) -> None:
    program = python(f'attempt(lambda: talk(("{ONE}", 80)))\nprint(os.path.exists("/etc/resolv.conf"))')
    assert machine.run(program, None).out == "denied ENETUNREACH\nFalse\n"


def test_a_sandbox_is_told_other_rules_while_it_lives(machine: Machine) -> None:
    seen: list[EgressSeen] = []

    async def live() -> list[str]:
        box = await machine.runtime.open(BoxSpec(kind="sandbox", egress=ONLY_ONE))
        box.on_egress(seen.append)
        said = []
        try:
            for egress in (None, rules(ALL, {"hosts": ["two.example.com"]})):
                if egress is not None:
                    await box.allow(egress)
                command = "curl -s http://one.example.com/; echo $?; curl -s http://two.example.com/; echo $?"
                exec_ = await box.exec(Command(argv=["sh", "-c", command]))
                output = [event.data async for event in exec_.events() if isinstance(event, OutputEvent)]
                said.append(b"".join(output).decode())
            usage = await box.usage()
            assert usage.egress is not None
            assert usage.egress.connections == 2
        finally:
            await box.close()
        return said

    first, second = machine.do(live())
    assert first == f"hello from {ONE} over http\n0\n6\n"
    assert second == f"6\nhello from {TWO} over http\n0\n"
    assert {(item.host, item.allowed) for item in seen} == {
        ("one.example.com", True),
        ("two.example.com", False),
        ("one.example.com", False),
        ("two.example.com", True),
    }


def test_nothing_of_the_proxy_is_in_the_box(machine: Machine) -> None:
    """No descriptor, no process, no variable: programs hold their streams and no power over their network."""
    ran = machine.run(
        python("""
        print(sorted(os.listdir("/proc/self/fd"))[:4])
        print([name for name in os.environ if "proxy" in name.lower()])
        print(len([name for name in os.listdir("/proc") if name.isdigit()]))
        for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (16, socket.SOCK_RAW), (17, socket.SOCK_RAW)):
            attempt(lambda: socket.socket(family, kind, 0 if family != socket.AF_INET else 1))
        sock = socket.socket()
        attempt(lambda: sock.setsockopt(socket.IPPROTO_IP, 19, 1))
        attempt(lambda: sock.setsockopt(socket.SOL_SOCKET, 36, 1))
        attempt(lambda: open("/proc/sys/net/ipv4/tcp_wmem", "w").write("4096 4096 4096"))
        """),
        ONLY_ONE,
    )
    lines = ran.out.splitlines()
    assert lines[0] in ("['0', '1', '2', '3']", "['0', '1', '2']")
    assert lines[1] == "[]"
    assert all(line.startswith("denied") for line in lines[3:]), ran.out
    assert ran.ending.outcome is Outcome.EXITED
