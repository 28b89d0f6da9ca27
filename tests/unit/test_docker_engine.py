"""The client of the Engine API against engines that answer, refuse, hang, lie and vanish."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.unit.engines import answer_of, answering, engine_that
from tidebox.errors import BoxGone, ProvisionFailed, RuntimeUnavailable, StartupTimeout
from tidebox.runtime.base import DockerSettings, RuntimeSettings
from tidebox.runtime.docker.endpoint import find_endpoint, parse_endpoint
from tidebox.runtime.docker.engine import DockerEngine, EngineRefused
from tidebox.runtime.docker.images import DockerImages
from tidebox.runtime.docker.runtime import DockerRuntime


async def test_answers_of_both_forms_are_read(tmp_path: Path) -> None:
    lengthy = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 1}\n'
    async with engine_that(tmp_path, answering(lengthy)) as engine:
        assert await engine.call("GET", "/info") == {"a": 1}
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n4\r\n: 2}\r\n0\r\n\r\n'
    async with engine_that(tmp_path, answering(chunked)) as engine:
        assert await engine.call("GET", "/info") == {"a": 2}


async def test_a_refusal_has_its_status_and_the_words_of_the_engine(tmp_path: Path) -> None:
    refusal = b'HTTP/1.1 409 Conflict\r\nContent-Length: 21\r\n\r\n{"message": "in use"}'
    async with engine_that(tmp_path, answering(refusal)) as engine:
        with pytest.raises(EngineRefused, match="in use") as caught:
            await engine.call("DELETE", "/containers/x")
    assert caught.value.status == 409


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{{{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc",
        answer_of(b"[" * 100_000),
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
        b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b" " * 17_000_000,
    ],
    ids=[
        "no-http",
        "no-length",
        "no-json",
        "no-chunk",
        "chunk<0",
        "length<0",
        "deep",
        "headers",
        "no-line",
        "too-long",
    ],
)
async def test_what_is_no_answer_is_named_and_not_kept(tmp_path: Path, data: bytes) -> None:
    async with engine_that(tmp_path, answering(data)) as engine:
        with pytest.raises(ProvisionFailed, match="no sensible answer"):
            await engine.call("GET", "/info")


async def test_an_engine_that_vanishes_hangs_or_is_not_there_has_three_names(tmp_path: Path) -> None:
    async with engine_that(tmp_path, answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")) as engine:
        with pytest.raises(BoxGone, match="ended while it was asked"):
            await engine.call("GET", "/info")
    async with engine_that(tmp_path, answering(b"", hang=True)) as engine:
        with pytest.raises(StartupTimeout, match=r"within 0\.05 s"):
            await engine.call("GET", "/info", seconds=0.05)
    with pytest.raises(RuntimeUnavailable, match="no Docker engine answers"):
        await engine.call("GET", "/info")


@pytest.mark.parametrize("content", [b"null", b"[]", b"7", b"{}", b'{"Id": "x", "Config": [1]}'])
async def test_an_image_that_is_told_in_another_form_is_no_sensible_answer(tmp_path: Path, content: bytes) -> None:
    async with engine_that(tmp_path, answering(answer_of(content))) as engine:
        with pytest.raises(ProvisionFailed, match="no sensible answer"):
            await DockerImages().inspect(engine, "busybox")


@pytest.mark.parametrize("content", [b"null", b"[7]", b'"text"', b'{"NCPU": "many"}', b'{"NCPU": []}'])
async def test_a_runtime_whose_engine_tells_itself_in_another_form_is_unavailable(
    tmp_path: Path, content: bytes
) -> None:
    async with engine_that(tmp_path, answering(answer_of(content))) as engine:
        docker = DockerSettings(host=engine.endpoint.name)
        runtime = DockerRuntime(RuntimeSettings(data_dir=tmp_path, agent_sockets=tmp_path, docker=docker))
        report = await runtime.probe()
        assert not report.available
        assert "no sensible answer" in str(report.reason)
        await runtime.close()


class Kept:
    """The owner of a stream, with a buffer so small that pieces are cut."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = asyncio.Event()
        self._buffer = bytearray(3)

    def get_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, count: int) -> None:
        self.data += self._buffer[:count]

    def disconnected(self) -> None:
        self.ended.set()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


async def test_the_streams_of_a_container_are_told_apart_however_they_are_cut(tmp_path: Path) -> None:
    frames = b"".join(
        bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data
        for kind, data in ((1, b"out"), (2, b"broken"), (1, b""), (1, b"put, whole"), (0, b"in"))
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n" + frames[:5])
        for start in range(5, len(frames), 7):
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(frames[start : start + 7])
        assert await reader.readexactly(5) == b"hello"

    async with engine_that(tmp_path, serve) as engine:
        kept = Kept()
        stream = (await engine.attach("x"))(kept)
        stream.write(b"hello")
        await kept.ended.wait()
    assert kept.data == b"output, whole"
    assert getattr(stream, "last_words", None) == b"broken"


async def test_another_machine_is_spoken_to_over_tls_with_our_certificate_only(tmp_path: Path) -> None:
    _make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    serve = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", hang=True)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    address = f"tcp://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        with_ours = parse_endpoint(address, {"DOCKER_CERT_PATH": str(tmp_path)})
        assert await DockerEngine(with_ours).call("GET", "/info") == {}
        with pytest.raises(RuntimeUnavailable):
            await DockerEngine(parse_endpoint(address, {"DOCKER_TLS_VERIFY": "1"})).call("GET", "/info")
    finally:
        server.close()


def _make_certificates(directory: Path) -> None:
    """One certificate that is its own authority."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*command.split(), *files], cwd=directory, check=True, capture_output=True)
    (directory / "ca.pem").write_bytes((directory / "cert.pem").read_bytes())


def test_an_engine_is_looked_for_where_it_was_named_then_at_its_places(tmp_path: Path) -> None:
    environment = {"DOCKER_HOST": "unix:///named.sock", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert find_endpoint("unix:///given.sock", environment).path == "/given.sock"
    assert find_endpoint(None, environment).path == "/named.sock"


@pytest.mark.parametrize("name", ["tcp://docker.example:2375", "ssh://host", "unix://relative", "tcp://:1", "x"])
def test_an_address_that_is_none_or_not_safe_is_refused(name: str) -> None:
    with pytest.raises(RuntimeUnavailable):
        parse_endpoint(name, {})
