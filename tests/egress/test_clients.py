"""Programs as they come, which know nothing of a proxy: each does what it does on any machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.egress.programs import ONLY_ONE
from tests.egress.world import ALL, ONE, Machine, rules

GREETING = f"hello from {ONE} over"
needs_all = pytest.mark.skipif("TIDEBOX_TEST_EGRESS" not in os.environ, reason="`make test-egress` runs these")


@pytest.fixture
def certificates(machine: Machine) -> dict[str, bytes]:
    """What a program needs to trust the servers of this internet."""
    return {"ca.pem": machine.world.ca.read_bytes()}


def test_curl(machine: Machine, certificates: dict[str, bytes]) -> None:
    command = "curl -sS http://one.example.com/; curl -sS --cacert ca.pem https://one.example.com/; curl -sS -6 $URL"
    env = {"URL": "http://one.example.com/"}
    ran = machine.run(["sh", "-c", command], ONLY_ONE, files=certificates, env=env)
    assert ran.out.splitlines()[:2] == [f"{GREETING} http", f"{GREETING} https"], ran.err
    assert ran.out.splitlines()[2].startswith("hello from 2606:")


def test_curl_is_told_why(machine: Machine) -> None:
    ran = machine.run(["curl", "-sS", "http://45.33.32.2/"], ONLY_ONE)
    assert ran.out == "egress denied: no_match: 45.33.32.2 is not what the rules of this sandbox allow\n"
    ran = machine.run(["curl", "-sS", "https://two.example.com/"], ONLY_ONE)
    assert ran.ending.exit_code == 6


def test_requests(machine: Machine, certificates: dict[str, bytes]) -> None:
    """The library as pip brings it along."""
    program = """
from pip._vendor import requests
with requests.Session() as session:
    print(session.get("http://one.example.com/", timeout=20).text, end="")
    print(session.get("https://one.example.com/", verify="ca.pem", timeout=20).text, end="")
    try:
        session.get("http://two.example.com/", timeout=20)
    except requests.ConnectionError as error:
        print("unknown")
"""
    ran = machine.run(["/usr/bin/python3", "-c", program], ONLY_ONE, files=certificates)
    assert ran.out.splitlines() == [f"{GREETING} http", f"{GREETING} https", "unknown"], ran.err


def test_urllib_in_a_parked_interpreter(machine: Machine, certificates: dict[str, bytes]) -> None:
    program = """
import ssl, urllib.request
context = ssl.create_default_context(cafile="ca.pem")
for url in ("http://one.example.com/", "https://one.example.com/"):
    print(urllib.request.urlopen(url, context=context if url[4] == "s" else None, timeout=20).read().decode(), end="")
"""
    ran = machine.run(program, ONLY_ONE, files=certificates)
    assert ran.out.splitlines() == [f"{GREETING} http", f"{GREETING} https"], ran.err


def test_node_fetch(machine: Machine, certificates: dict[str, bytes]) -> None:
    program = """
const get = async (url) => process.stdout.write(await (await fetch(url)).text());
await get("http://one.example.com/");
await get("https://one.example.com/");
try { await get("http://two.example.com/") } catch (error) { console.log(error.cause.syscall) }
"""
    env = {"NODE_EXTRA_CA_CERTS": "/workspace/ca.pem"}
    files = {**certificates, "main.mjs": program.encode()}
    ran = machine.run(["node", "main.mjs"], ONLY_ONE, files=files, env=env, memory=1 << 30)
    assert ran.out.splitlines() == [f"{GREETING} http", f"{GREETING} https", "getaddrinfo"], ran.err


def test_git(machine: Machine, tmp_path: Path) -> None:
    work, bare = tmp_path / "work", tmp_path / "work.git"
    work.mkdir()
    (work / "README").write_text("cloned\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for step in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", *step], cwd=work, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", work, bare], check=True)
    subprocess.run(["git", "update-server-info"], cwd=bare, check=True)
    for path in bare.rglob("*"):
        if path.is_file():
            machine.world.pages[f"/work.git/{path.relative_to(bare)}"] = path.read_bytes()
    machine.world.pages["/work.git/info/refs?service=git-upload-pack"] = (bare / "info/refs").read_bytes()
    command = "git clone -q http://one.example.com/work.git got && cat got/README"
    ran = machine.run(["sh", "-c", command], ONLY_ONE, env={"HOME": "/tmp"})
    assert ran.out == "cloned\n", ran.err


def wheel(name: str) -> bytes:
    """A package that prints."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{name}.py", "print('installed')\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        about = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", about)
        archive.writestr(f"{info}/RECORD", "")
    return made.getvalue()


def test_pip(machine: Machine) -> None:
    file = "tidegift-1.0-py3-none-any.whl"
    pages = machine.world.pages
    pages["/simple/tidegift/"] = f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode()
    pages[f"/files/{file}"] = wheel("tidegift")
    options = "--disable-pip-version-check --no-cache-dir -q --target got --trusted-host one.example.com"
    install = f"/usr/bin/python3 -m pip install {options} -i http://one.example.com/simple/ tidegift"
    command = f"{install} && PYTHONPATH=got /usr/bin/python3 -m tidegift"
    ran = machine.run(["sh", "-c", command], ONLY_ONE, env={"HOME": "/tmp"}, memory=1 << 30)
    assert ran.out == "installed\n", ran.err


def test_npm(machine: Machine) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (
            ("package.json", '{"name":"tidegift","version":"1.0.0"}'),
            ("index.js", "console.log('installed')"),
        ):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    pages = machine.world.pages
    pages["/tidegift/-/tidegift-1.0.0.tgz"] = packed.getvalue()
    dist = {
        "tarball": "http://one.example.com/tidegift/-/tidegift-1.0.0.tgz",
        "shasum": hashlib.sha1(packed.getvalue()).hexdigest(),
    }
    version = {"name": "tidegift", "version": "1.0.0", "dist": dist}
    pages["/tidegift"] = json.dumps(
        {"name": "tidegift", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    ).encode()
    options = "--no-audit --no-fund --silent --registry http://one.example.com/ --cache /tmp/npm"
    command = f"npm install {options} tidegift && node -e 'require(\"tidegift\")'"
    ran = machine.run(["sh", "-c", command], ONLY_ONE, env={"HOME": "/tmp"}, memory=2 << 30, timeout=60, pids=512)
    assert ran.out == "installed\n", ran.err + str(ran.seen)


JAVA = """
import java.net.*; import java.net.http.*;
public class Main {
  public static void main(String[] arguments) throws Exception {
    HttpClient client = HttpClient.newHttpClient();
    HttpRequest request = HttpRequest.newBuilder(URI.create("http://one.example.com/")).build();
    System.out.print(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
    try { InetAddress.getByName("two.example.com"); }
    catch (UnknownHostException error) { System.out.println("unknown"); }
  }
}
"""


@needs_all
def test_java(machine: Machine) -> None:
    ran = machine.run(
        ["sh", "-c", "exec $(readlink -f /usr/bin/java) Main.java"],
        ONLY_ONE,
        files={"Main.java": JAVA.encode()},
        memory=4 << 30,
        pids=512,
        timeout=60,
    )
    assert ran.out.splitlines() == [f"{GREETING} http", "unknown"], ran.err


@needs_all
def test_a_head_that_never_ends_is_given_up(machine: Machine) -> None:
    """A slow client holds its own connection, and not for ever."""
    program = """
import socket, time
began = time.monotonic()
sock = socket.create_connection(("tenant.example.com", 80), 60)
sock.sendall(b"GET / HTTP/1.1\\r\\nX: ")
try:
    while time.monotonic() - began < 60:
        sock.sendall(b"y")
        time.sleep(0.2)
except OSError:
    pass
print(10 < time.monotonic() - began < 40)
"""
    ran = machine.run(program, rules(ALL, {"hosts": ["tenant.example.com"]}), timeout=90)
    assert ran.out == "True\n", ran.err
    assert ran.denied() == [(None, "45.33.32.3", "dns_mismatch")]
