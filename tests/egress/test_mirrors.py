"""Mirrors of packages: those that pip, npm and apt are configured for are found, and are all that is reached."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import zipfile
from pathlib import Path

from tests.egress.world import ONE, Machine
from tidebox.egress.mirrors import find_mirrors
from tidebox.model.egress import allowlist_of
from tidebox.model.requested_egress import EgressRules, read_requested_egress

PORT = 8088


def configured(directory: Path) -> dict[str, str]:
    """An environment in which the tools have mirrors of the test."""
    (directory / "pip.conf").write_text(
        "[global]\nindex-url = http://user:pass-word@mirror.example.com:8088/simple\n"
        "extra-index-url = https://two.example.com/simple\n"
    )
    (directory / "npmrc").write_text("registry=http://npm.example.com:8088/\n")
    lists = directory / "sources.list"
    lists.write_text("deb [trusted=yes] http://apt.example.com/debian stable main\n")
    (directory / "apt.conf").write_text(f'Dir::Etc::sourcelist "{lists}";\nDir::Etc::sourceparts "{directory}/none";\n')
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PIP_CONFIG_FILE": str(directory / "pip.conf"),
        "NPM_CONFIG_USERCONFIG": str(directory / "npmrc"),
        "APT_CONFIG": str(directory / "apt.conf"),
    }


def test_each_tool_is_asked_where_its_mirrors_are(tmp_path: Path) -> None:
    found = find_mirrors(configured(tmp_path))
    assert set(found.allowlist.hosts) == {
        "mirror.example.com",
        "two.example.com",
        "npm.example.com",
        "apt.example.com",
    }
    assert found.environment == {
        "PIP_INDEX_URL": "http://mirror.example.com:8088/simple",
        "PIP_EXTRA_INDEX_URL": "https://two.example.com/simple",
        "PIP_TRUSTED_HOST": "mirror.example.com:8088",
        "NPM_CONFIG_REGISTRY": "http://npm.example.com:8088/",
    }
    assert "pass-word" not in repr(found)


def test_a_tool_that_is_not_there_has_no_mirror(tmp_path: Path) -> None:
    found = find_mirrors({"PATH": str(tmp_path)})
    assert len(found.allowlist) == 0
    assert found.environment == {}


def wheel() -> bytes:
    """A small package."""
    files = {
        "tides.py": b"HIGH = 2\n",
        "tides-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tides\nVersion: 1.0\n",
        "tides-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["tides-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def test_pip_gets_packages_from_its_mirror_and_nothing_from_elsewhere(machine: Machine, tmp_path: Path) -> None:
    package = wheel()
    digest = hashlib.sha256(package).hexdigest()
    index = f'<a href="/files/tides-1.0-py3-none-any.whl#sha256={digest}">tides-1.0-py3-none-any.whl</a>'.encode()

    def serve(sock: socket.socket) -> None:
        stream = sock.makefile("rwb")
        while line := stream.readline():
            while stream.readline() not in (b"\r\n", b""):
                pass
            body = package if b"/files/" in line else index
            kind = b"application/octet-stream" if body is package else b"text/html"
            stream.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body
            )
            stream.flush()

    async def begin() -> None:
        machine.world.serve((ONE, PORT), serve)
        machine.world.resolver.names["mirror.example.com"] = [ONE]

    machine.do(begin())
    mirrors = find_mirrors(configured(tmp_path))
    rules = EgressRules(server=allowlist_of({"hosts": ["*.example.com"]}), find_mirrors=lambda: mirrors)
    egress = rules.agree([read_requested_egress({"packages": True})], user="", owner=True)
    install = "unset PIP_EXTRA_INDEX_URL; python3 -m pip install --no-cache-dir --target lib tides >&2 && "
    ran = machine.run(
        ["sh", "-c", install + "python3 -c 'import sys; sys.path.insert(0, \"lib\"); import tides; print(tides.HIGH)'"],
        egress,
    )
    assert ran.out == "2\n", ran.err
    ran = machine.run(["sh", "-c", "curl -sS http://one.example.com/ || echo denied"], egress)
    assert ran.out == "denied\n"
    assert ("one.example.com", None, "no_match") in ran.denied()
