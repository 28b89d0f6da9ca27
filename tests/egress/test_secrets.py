"""Secrets are used by programs that never have them."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import ssl
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.egress.vault import AWS, HEADER, PORT, VALUE, Vault
from tests.egress.world import ECHO, NAMES, ONE
from tests.patience import patient
from tidebox.model.egress import allowlist_of
from tidebox.model.injection import SecretInfo, Secrets
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.requested_egress import EgressRules, read_requested_egress


def requests_library() -> dict[str, bytes]:
    """The files of ``requests``, for a program's own directory."""
    found = {}
    place = Path(sysconfig.get_path("purelib"))
    for package in ("requests", "urllib3", "certifi", "idna", "charset_normalizer"):
        for file in (place / package).rglob("*.py"):
            found[str(file.relative_to(place))] = file.read_bytes()
    found["certifi/cacert.pem"] = b""
    return found


CLIENTS = """
import os, subprocess, time, requests
url = "https://one.example.com:8443"
print(subprocess.run(["curl", "-sS", "-H", "X-Key: " + os.environ["TIDEBOX_SECRET_ONE_KEY"], url + "/curl"],
                     capture_output=True, text=True, check=True).stdout)
answer = requests.get(url + "/requests", headers={"X-Key": os.environ["TIDEBOX_SECRET_ONE_KEY"]})
print(answer.text, dict(answer.headers))
node = subprocess.Popen(["node", "-e", '''
fetch(process.argv[1] + "/node", {headers: {"X-Key": process.env.TIDEBOX_SECRET_ONE_KEY}})
  .then(answer => answer.text()).then(text => console.log(text)); process.stdin.resume()
''', url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for line in node.stdout:
    print(line)
    if line == "\\n" or line.startswith("x-key"):
        break
with open("/workspace/answer", "w") as file:
    file.write(answer.text)
print("READY", flush=True)
time.sleep(600)
"""


def memory_of(pid: int) -> Iterator[bytes]:
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            first, last = (int(text, 16) for text in line.split()[0].split("-"))
            if line.split()[1].startswith("r"):
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(first)
                    yield memory.read(last - first)


def holds(pid: int, text: bytes) -> bool:
    return any(text in piece for piece in memory_of(pid))


def processes_with(text: bytes) -> list[int]:
    """Those that have a text in their environment."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and text in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found


def processes_beside(pid: int) -> list[int]:
    """All of the box that a process is in, which a parked interpreter is, too: it is told its variables later."""
    box = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == box:
                found.append(int(name))
    return found


def files_of(pid: int) -> Iterator[Path]:
    for place in ("workspace", "tmp", "run", "dev/shm", "etc"):
        for directory, _, names in os.walk(f"/proc/{pid}/root/{place}"):
            yield from (Path(directory, name) for name in names)


@pytest.mark.skipif(os.geteuid() != 0, reason="without root nobody reads the memory of a box")
def test_a_secret_arrives_and_is_nowhere_in_the_box(vault: Vault) -> None:
    egress = vault.egress(headers=[HEADER], secrets=["ONE_KEY"])
    placeholder = egress.injection.placeholders[0][0].encode()
    before = len(vault.requests)
    ready: queue.Queue[bytes] = queue.Queue()
    cancel = OneShotFlag()
    running = vault.machine.submit(
        vault.machine.arun(
            ["python3", "main.py"],
            egress,
            files={"main.py": CLIENTS.encode(), **requests_library()},
            cancel=cancel,
            on_output=ready.put,
            timeout=patient(60.0),
        )
    )
    out = b""
    while b"READY" not in out:
        out += ready.get(timeout=patient(60))
    found = processes_with(placeholder)
    try:
        # What a search finds where it must: the variable in the box, and the value in the process that puts it in.
        assert found, out
        box = processes_beside(found[0])
        assert len([pid for pid in box if holds(pid, placeholder)]) == 2
        process = vault.machine.process
        assert process is not None
        assert holds(process, VALUE.encode())
        assert not any(holds(pid, VALUE.encode()) for pid in box)
        searched = 0
        for path in files_of(found[0]):
            with contextlib.suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    searched += 1
                    assert VALUE.encode() not in path.read_bytes(), path
        assert searched > 50
        for name in ("environ", "cmdline"):
            assert VALUE.encode() not in Path(f"/proc/{process}/{name}").read_bytes()
    finally:
        vault.machine.loop.call_soon_threadsafe(cancel.set)
    ran = running.result(patient(60))
    arrived = [request for request in vault.requests[before:] if VALUE.encode() in request]
    assert [request.split()[1] for request in arrived] == [b"/curl", b"/requests", b"/node"]
    for request in arrived:
        assert f"x-key: {VALUE}\r\n".encode() in request
        assert f"authorization: Bearer {VALUE}\r\n".encode() in request
    # The server sends all of it back.
    assert ran.out.count("x-key: " + "*" * len(VALUE)) == 3, ran.out
    assert VALUE not in ran.out + ran.err + repr(ran.seen)


def curl(*words: str) -> list[str]:
    return ["sh", "-c", "curl -sS -w '\\n%{http_code}' " + " ".join(words)]


def test_a_placeholder_for_another_host_is_denied_and_told_of(vault: Vault) -> None:
    egress = vault.egress(secrets=["ONE_KEY", "TWO_KEY"])
    ran = vault.machine.run(curl(f"-H X-Key:$TIDEBOX_SECRET_TWO_KEY https://one.example.com:{PORT}/"), egress)
    assert ran.out.endswith("\n403"), ran.err
    assert ran.denied() == [("one.example.com", ONE, "secret_misplaced")]
    ran = vault.machine.run(curl(f"-d x=$TIDEBOX_SECRET_TWO_KEY https://one.example.com:{PORT}/"), egress)
    assert ran.denied() == [("one.example.com", ONE, "secret_misplaced")]
    # In the clear nothing is put in, so nothing is sent.
    ran = vault.machine.run(curl("-H X-Key:$TIDEBOX_SECRET_ONE_KEY http://one.example.com/"), egress)
    assert ran.denied() == [("one.example.com", ONE, "secret_misplaced")]
    heard = [*vault.requests, *(head for _, head in vault.machine.world.requests)]
    assert not any(placeholder.encode() in head for head in heard for placeholder, _ in egress.injection.placeholders)


def test_only_connections_to_hosts_of_secrets_are_opened(vault: Vault) -> None:
    egress = vault.egress(headers=[HEADER])
    program = """
import socket, ssl
for name in ("one.example.com", "two.example.com"):
    with socket.create_connection((name, 443)) as sock:
        context = ssl.create_default_context(cafile="ca.pem")
        context.load_verify_locations("/run/tidebox/ca.pem")
        with context.wrap_socket(sock, server_hostname=name) as tls:
            print(dict(item[0] for item in tls.getpeercert()["issuer"])["commonName"])
"""
    ran = vault.machine.run(program, egress, files={"ca.pem": vault.machine.world.ca.read_bytes()})
    assert ran.out.split("\n")[:2] == ["Tidebox sandbox", "world"], ran.err


def test_boxes_trust_authorities_of_their_own(vault: Vault) -> None:
    programs = [vault.machine.run(["tail", "-12", "/run/tidebox/ca.pem"], vault.egress(headers=[HEADER])) for _ in "12"]
    assert "BEGIN CERTIFICATE" in programs[0].out
    assert programs[0].out != programs[1].out
    ran = vault.machine.run(["sh", "-c", "echo >> /run/tidebox/ca.pem; ls -A /run; env"], vault.egress())
    assert "TIDEBOX" not in ran.out
    assert "tidebox" not in ran.out.split("\n")[0]


def test_a_parked_cell_serves_a_run_with_secrets(vault: Vault) -> None:
    """Of Python and of programs; each cell has an authority of its own before it is known what it is for."""
    machine = vault.machine
    program = f"""
import hashlib, os, urllib.request
print(hashlib.sha256(open("/run/tidebox/ca.pem", "rb").read()).hexdigest())
headers = {{"X-Key": os.environ["TIDEBOX_SECRET_ONE_KEY"]}}
request = urllib.request.Request("https://one.example.com:{PORT}/parked", headers=headers)
print(urllib.request.urlopen(request, timeout=20).status)
"""
    trusted = set()
    for _ in range(3):
        ran = machine.run(program, vault.egress(secrets=["ONE_KEY"]))
        assert ran.out.splitlines()[1:] == ["200"], ran.err
        assert f"x-key: {VALUE}\r\n".encode() in vault.heard()
        trusted.add(ran.out.splitlines()[0])
        machine.do(machine.pool.filled())
        assert any(machine.pool.parked(key) for key in machine.pool._ready if key.trusts)
    assert len(trusted) == 3
    curl = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"https://one.example.com:{PORT}/"]
    assert machine.run(curl, vault.egress(headers=[HEADER])).out == "200"
    # A cell for secrets is for no other run: without them its certificate is in nobody's bundle.
    plain = "import os; print(os.path.exists('/run/tidebox/ca.pem'))"
    assert machine.run(plain, vault.egress()).out == "False\n"


IN_NODE = f"""
fetch("https://one.example.com:{PORT}/node", {{headers: {{"X-Key": process.env.TIDEBOX_SECRET_ONE_KEY}}}})
  .then(answer => console.log(answer.status, process.env.NODE_EXTRA_CA_CERTS), error => console.log(error.cause))
"""
IN_ELIXIR = f"""
{{:ok, _}} = Application.ensure_all_started(:ssl)
:inets.start()
trust = [ssl: [verify: :verify_peer, cacertfile: System.get_env("SSL_CERT_FILE")]]
headers = [{{~c"x-key", String.to_charlist(System.get_env("TIDEBOX_SECRET_ONE_KEY"))}}]
request = {{~c"https://one.example.com:{PORT}/elixir", headers}}
{{:ok, {{{{_, status, _}}, _, _}}}} = :httpc.request(:get, request, trust, [])
IO.puts("#{{status}} #{{System.get_env("SSL_CERT_FILE")}}")
"""


@pytest.mark.parametrize(("language", "program"), [("node", IN_NODE), ("elixir", IN_ELIXIR)])
def test_a_parked_interpreter_of_another_language_trusts_its_box(vault: Vault, language: str, program: str) -> None:
    """Those read when they are started whom to trust: they are told by then."""
    machine = vault.machine
    if not machine.runtime.has_command(language):
        pytest.skip(f"{language} is not there")
    for _ in range(2):
        ran = machine.run(program, vault.egress(secrets=["ONE_KEY"]), language=language)
        assert ran.out == "200 /run/tidebox/ca.pem\n", ran.err
        assert f"x-key: {VALUE}\r\n".encode() in vault.heard()
        machine.do(machine.pool.filled())
        assert any(machine.pool.parked(key) for key in machine.pool._ready if key.trusts and key.kind == language)


def test_a_server_that_cannot_be_verified_hears_nothing(vault: Vault) -> None:
    vault.machine.world.resolver.names["false.example.com"] = [ONE]
    known = Secrets({"ONE_KEY": SecretInfo(name="ONE_KEY", hosts=("false.example.com",))})
    rules = EgressRules(server=allowlist_of({"hosts": ["*.example.com"]}), secrets=known)
    assert "false.example.com" not in NAMES
    ask = read_requested_egress({"headers": [{**HEADER, "host": "false.example.com"}]})
    count = len(vault.requests)
    ran = vault.machine.run(
        curl(f"https://false.example.com:{PORT}/"), rules.agree([ask], user="", owner=True, box="false")
    )
    assert ran.out.endswith("\n502"), ran.err
    assert ran.denied() == [("false.example.com", ONE, "tls_unverified")]
    assert len(vault.requests) == count


def test_requests_to_aws_are_signed_anew(vault: Vault) -> None:
    rule = {"host": "one.example.com", "kind": "aws_sigv4", "secret": "CLOUD", "region": "eu-west-1", "service": "svc"}
    ran = vault.machine.run(
        curl(f"-d '{{}}' -H 'X-Amz-Target: A.B' https://one.example.com:{PORT}/path"), vault.egress(headers=[rule])
    )
    assert ran.out.endswith("\n200"), ran.err
    heard = vault.heard().decode()
    assert re.search(
        r"authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d{8}/eu-west-1/svc/aws4_request, ", heard
    )
    assert "SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature=" in heard
    assert heard.endswith("\r\n{}")
    assert AWS not in heard + ran.out


def test_bodies_that_wait_to_be_signed_are_bounded(vault: Vault) -> None:
    """Each is kept whole until its end: a program that never comes to it has the process keep only so much."""
    rule = {"host": "one.example.com", "kind": "aws_sigv4", "secret": "CLOUD", "region": "eu-west-1", "service": "svc"}
    program = f"""
import itertools, socket, ssl
name = "one.example.com"
context = ssl.create_default_context()
def begin(size):
    tls = context.wrap_socket(socket.create_connection((name, {PORT})), server_hostname=name)
    tls.settimeout(20)
    head = b"POST / HTTP/1.1\\r\\nHost: one.example.com\\r\\nContent-Length: %d\\r\\n\\r\\n"
    tls.sendall(head % size)
    return tls
def end(tls):
    return tls.recv(4096).split(b" ")[1]
held = []
for size in (*[(4 << 20) - 1] * 4, 1000):
    tls = begin(4 << 20)
    tls.sendall(bytes(size))
    held.append(tls)
def answered(tls):
    tls.settimeout(0.1)
    try:
        return end(tls)
    except TimeoutError:
        tls.settimeout(20)
refused, status = next((tls, found) for tls in itertools.cycle(held) if (found := answered(tls)))
print(status)
# The others are there, and are sent on when they are whole.
whole = next(tls for tls in held[:4] if tls is not refused)
whole.sendall(b"x")
print(end(whole))
for tls in held:
    tls.close()
for _ in range(9):
    tls = begin(1 << 20)
    tls.sendall(bytes(1 << 20))
    print(end(tls))
"""
    ran = vault.machine.run(program, vault.egress(headers=[rule]), timeout=patient(60.0))
    assert ran.out.split() == ["b'503'", "b'200'", *["b'200'"] * 9], ran.out + ran.err
    assert ran.denied() == [("one.example.com", ONE, "limit")]


def test_several_requests_of_a_connection_and_another_protocol_after_them(vault: Vault) -> None:
    program = f"""
import os, socket, ssl
name = "one.example.com"
context = ssl.create_default_context()
with context.wrap_socket(socket.create_connection((name, {PORT})), server_hostname=name) as tls:
    stream = tls.makefile("rwb")
    for number in range(3):
        stream.write(b"POST /%d HTTP/1.1\\r\\nHost: one.example.com\\r\\n" % number)
        stream.write(b"Transfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n")
        stream.flush()
        line = stream.readline()
        print(line)
        while stream.readline() != b"0\\r\\n":
            pass
        stream.readline()
    stream.write(b"GET /up HTTP/1.1\\r\\nHost: one.example.com\\r\\nUpgrade: echo\\r\\nConnection: upgrade\\r\\n\\r\\n")
    stream.flush()
    while (line := stream.readline()) != b"\\r\\n":
        pass
    stream.write(b"hello\\n")
    stream.flush()
    print(stream.readline())
    print(os.environ["TIDEBOX_SECRET_TWO_KEY"])
    stream.write(os.environ["TIDEBOX_SECRET_TWO_KEY"].encode() + b"\\n")
    stream.flush()
    print(stream.readline())
"""
    ran = vault.machine.run(program, vault.egress(headers=[HEADER], secrets=["TWO_KEY"]))
    lines = ran.out.splitlines()
    assert lines[:4] == ["b'HTTP/1.1 200 OK\\r\\n'"] * 3 + ["b'hello\\n'"], ran.err
    assert ran.denied() == [("one.example.com", ONE, "secret_misplaced")]


def test_a_secret_that_a_server_kept_does_not_come_back_by_another_connection(vault: Vault) -> None:
    """Nothing is put into the second request."""
    egress = vault.egress(secrets=["ONE_KEY"])
    url = f"https://one.example.com:{PORT}"
    twice = f"curl -sS -H X-K:$TIDEBOX_SECRET_ONE_KEY {url}/; curl -sS {url}/kept"
    ran = vault.machine.run(["sh", "-c", twice], egress)
    assert f"x-k: {VALUE}".encode() in vault.requests[-2]
    assert ran.out.count("x-k: " + "*" * len(VALUE)) == 2, ran.err
    assert VALUE not in ran.out


def test_a_server_that_repeats_guesses_does_not_tell_how_a_secret_begins(vault: Vault) -> None:
    """What a secret begins with comes back like anything else."""
    guesses = [VALUE[:1], VALUE[:10], VALUE[:-1], "x", "x" * 10, VALUE[:9] + "x"]
    program = f"""
import socket, ssl, time
name = "one.example.com"
context = ssl.create_default_context()
with context.wrap_socket(socket.create_connection((name, {PORT})), server_hostname=name) as tls:
    tls.settimeout(5)
    tls.sendall(b"GET / HTTP/1.1\\r\\nHost: one.example.com\\r\\nUpgrade: bytes\\r\\nConnection: upgrade\\r\\n\\r\\n")
    while not tls.recv(4096).endswith(b"\\r\\n\\r\\n"):
        pass
    for guess in {guesses!r}:
        data = guess.encode() + b" "
        for piece in (data[:-1], data[-1:]):
            tls.sendall(piece)
            found = b""
            try:
                while len(found) < len(piece):
                    found += tls.recv(4096)
            except TimeoutError:
                pass
            print(found == piece, end=" ")
"""
    ran = vault.machine.run(program, vault.egress(headers=[HEADER]), timeout=patient(60.0))
    assert ran.out.split() == ["True"] * 2 * len(guesses), ran.err


def test_a_placeholder_behind_a_body_is_found(vault: Vault) -> None:
    count = len(vault.requests)
    program = f"""
import os, socket, ssl
name = "one.example.com"
context = ssl.create_default_context()
with context.wrap_socket(socket.create_connection((name, {PORT})), server_hostname=name) as tls:
    tls.sendall(b"POST / HTTP/1.1\\r\\nHost: one.example.com\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
    tls.sendall(b"3\\r\\nabc\\r\\n0\\r\\n")
    tls.sendall(b"X-Behind: " + os.environ["TIDEBOX_SECRET_TWO_KEY"].encode() + b"\\r\\n\\r\\n")
    print(tls.recv(4096).decode().split(" ")[1:2])
"""
    ran = vault.machine.run(program, vault.egress(headers=[HEADER], secrets=["TWO_KEY"]))
    assert ran.out == "['403']\n", ran.err
    assert ran.denied() == [("one.example.com", ONE, "secret_misplaced")]
    assert len(vault.requests) == count


@pytest.mark.parametrize(
    ("bytes_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: two.example.com\r\n\r\n", "421"),
        (b"GET / HTTP/1.1\r\nHost: one.example.com\r\nHost: two.example.com\r\n\r\n", ""),
        (b"GET / HTTP/1.1\r\nHost: one.example.com\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", ""),
        (b"GET / HTTP/1.1\r\nHost: one.example.com\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", ""),
        (b"GET / HTTP/1.1\r\nHost: one.example.com\r\nX: " + b"y" * 100_000, ""),
        (b"GET / HTTP/1.1\r\nHost: one.example.com\r\nX\x00: y\r\n\r\n", ""),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
        (b"CONNECT two.example.com:443 HTTP/1.1\r\nHost: one.example.com\r\n\r\n", "400"),
        (b"\x16\x03\x01\x00\x00", ""),
    ],
    ids=["host", "hosts", "framing", "lengths", "long", "zero", "h2", "connect", "tls"],
)
def test_requests_that_are_read_in_two_ways_go_nowhere(vault: Vault, bytes_: bytes, status: str) -> None:
    program = f"""
import socket, ssl
name = "one.example.com"
context = ssl.create_default_context()
with context.wrap_socket(socket.create_connection((name, {PORT})), server_hostname=name) as tls:
    try:
        tls.sendall({bytes_!r})
        print(tls.recv(4096).decode().split(" ")[1:2])
    except OSError as error:
        print([])
"""
    count = len(vault.requests)
    ran = vault.machine.run(program, vault.egress(headers=[HEADER]))
    found = ran.out.strip()
    assert found == (f"['{status}']" if status else found), ran.err
    assert found in ("[]", "['400']", "['421']", "['505']"), ran.err
    assert len(vault.requests) == count


def test_connections_that_are_opened_are_fewer_in_a_second(vault: Vault) -> None:
    """Each is two handshakes, for which others wait: a tenth of what a box may begin otherwise."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="one.example.com").do_handshake()
    program = f"""
import socket, threading, time
hello = bytes.fromhex("{outgoing.read().hex()}")
address = (socket.gethostbyname("one.example.com"), {PORT})
count, end, began = 0, time.monotonic() + 5, time.monotonic()
while time.monotonic() < end:
    held = [socket.create_connection(address) for _ in range(16)]
    for sock in held:
        sock.sendall(hello)
    for sock in held:
        count += bool(sock.recv(1))
        sock.close()
print(count, time.monotonic() - began)
"""
    ran = vault.machine.run(program, vault.egress(headers=[HEADER]))
    count, seconds = map(float, ran.out.split())
    assert count <= 100 * (seconds + 1) + 16, ran.out
    assert count > 50


def test_a_process_that_died_comes_back_with_the_same_authority(vault: Vault) -> None:
    started = threading.Event()
    program = f"""
import socket, time, urllib.request
held = socket.create_connection(("two.example.com", {ECHO}))
print(urllib.request.urlopen("https://one.example.com:{PORT}/before").status, flush=True)
try:
    held.recv(1)
except ConnectionError:
    pass
while True:
    try:
        print(urllib.request.urlopen("https://one.example.com:{PORT}/after", timeout=5).status)
        break
    except OSError:
        time.sleep(0.1)
"""
    running = vault.machine.submit(
        vault.machine.arun(program, vault.egress(headers=[HEADER]), on_output=lambda _: started.set())
    )
    assert started.wait(patient(30))
    before = vault.machine.process
    assert before is not None
    os.kill(before, 9)
    ran = running.result(patient(60))
    assert ran.out.split() == ["200", "200"], ran.err
