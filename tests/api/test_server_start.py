"""How a server starts, and what keeps it from starting."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.api.conftest import NO_CELLS, RunningServer, finish, start_command
from tests.boxes import as_user, is_root
from tests.cli.command import error_line, tidebox


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers as a user does it; ends them after the test."""
    servers: list[RunningServer] = []

    def make(*arguments: str, data_dir: Path | None = None, **settings: str) -> RunningServer:
        servers.append(start_command(data_dir or tmp_path / f"server{len(servers)}", *arguments, **settings))
        return servers[-1]

    yield make
    for server in servers:
        finish(server)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def refused(*arguments: str | Path, env: dict[str, str] | None = None) -> str:
    """The one line with which a server that cannot start says why."""
    done = tidebox("serve", "--port", "0", *arguments, env=env)
    assert done.stdout == b""
    return error_line(done)


def test_the_banner_says_where_and_how(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(**NO_CELLS)
    assert server.banner[0].startswith("Tidebox ")
    rows = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in server.banner[1:] if "API key" not in line}
    assert rows["url"] == server.url
    assert rows["runtime"] == "native"
    assert f"  API key    {server.data_dir / 'api-key'}" in server.banner
    assert "guarantees enforced" in rows["isolation"]
    assert server.key not in "\n".join(server.banner)


def test_the_key_is_made_once_and_for_its_owner_alone(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    first = start_server(data_dir=tmp_path / "data", **NO_CELLS)
    assert stat.S_IMODE((first.data_dir / "api-key").stat().st_mode) == 0o600
    assert stat.S_IMODE(first.data_dir.stat().st_mode) == 0o700
    assert len(first.key) >= 40
    assert first.stop() == 0
    second = start_server(data_dir=tmp_path / "data", **NO_CELLS)
    assert second.key == first.key
    assert httpx2.get(f"{second.url}/metrics", headers=second.headers, timeout=60).status_code == 200


def test_sockets_of_a_server_that_was_killed_go_with_the_next_start(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    first = start_server(data_dir=tmp_path / "data", **(NO_CELLS | {"pool_sandboxes": "1"}))
    sockets = first.data_dir / "run" / "agents"
    deadline = time.monotonic() + 30
    while not (left := set(sockets.glob("*.sock"))):
        assert time.monotonic() < deadline, "no sandbox was made beforehand"
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    start_server(data_dir=tmp_path / "data", **(NO_CELLS | {"pool_sandboxes": "0"}))
    assert left.isdisjoint(sockets.glob("*.sock"))


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text("tb_open\n")
    (tmp_path / "api-key").chmod(0o644)
    line = refused("--data-dir", tmp_path)
    assert "mode 600" in line
    assert "tb_open" not in line


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "api-key").touch(mode=0o600)
    assert "is empty" in refused("--data-dir", tmp_path)


def test_a_key_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("tb_other\n")
    (tmp_path / "api-key").symlink_to(tmp_path / "elsewhere")
    assert "cannot be used" in refused("--data-dir", tmp_path)


def test_a_taken_port_is_refused(taken_port: int, tmp_path: Path) -> None:
    line = refused("--port", str(taken_port), "--data-dir", tmp_path)
    assert line == f"port {taken_port} of 127.0.0.1 is taken by another program"


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    assert "cannot listen on port 0 of 192.0.2.1" in refused("--host", "192.0.2.1", "--data-dir", tmp_path)


def test_a_host_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "cannot listen on no.such.host.invalid" in refused("--host", "no.such.host.invalid", "--data-dir", tmp_path)


def test_a_data_directory_in_use_is_refused(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(**NO_CELLS)
    line = refused("--data-dir", server.data_dir)
    assert line == f"another server (process {server.pid}) uses the data directory {server.data_dir}"
    assert httpx2.get(f"{server.url}/healthz", timeout=60).status_code == 200


def test_a_data_directory_of_a_killed_server_is_free(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(**NO_CELLS)
    server.process.kill()
    server.wait()
    assert start_server(data_dir=server.data_dir, **NO_CELLS).key == server.key


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written" in refused("--data-dir", tmp_path / "file")


def test_an_audit_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit").touch()
    assert "the audit log" in refused("--data-dir", tmp_path)


def test_a_data_directory_that_cannot_be_written_is_refused() -> None:
    assert "cannot be written" in refused("--data-dir", "/proc/tidebox")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RATE_LIMIT", "often", "such as 600/minute"),
        ("LOG_LEVEL", "loud", "SANDBOX_LOG_LEVEL"),
        ("WS_HEARTBEAT_SEC", "0", "at least 0.1"),
        ("MAX_CONCURRENT_RUNS", "0", "at least 1"),
        ("AUTH_JWT_SECRET", "too-short-a-secret", "at least 32 bytes"),
        ("AUTH_JWKS_FILE", "/nonexistent/jwks.json", "No such file"),
        ("ALLOWED_ORIGINS", "a.example", "SANDBOX_ALLOWED_ORIGINS"),
        ("PUBLIC_URL", "boxes", "SANDBOX_PUBLIC_URL"),
        ("TRUSTED_PROXIES", "somebody", "SANDBOX_TRUSTED_PROXIES"),
        ("DEFAULT_RUNTIME", "qemu", "no qemu runtime"),
        ("UNTRUSTED_BOUNDARY", "fence", "SANDBOX_UNTRUSTED_BOUNDARY"),
        ("LANGUAGE_IMAGES", "cobol=gnu", "SANDBOX_LANGUAGE_IMAGES"),
        ("DOCKER_SECCOMP", "/nonexistent/profile", "SANDBOX_DOCKER_SECCOMP"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, value: str, says: str, tmp_path: Path) -> None:
    line = refused("--data-dir", tmp_path, env={f"SANDBOX_{name}": value})
    assert says in line
    assert "too-short" not in line


@pytest.mark.skipif(not is_root(), reason="needs root to become a user without a login session")
def test_a_machine_that_misses_a_guarantee_is_refused() -> None:
    script = "import sys; from tidebox.cli.main import main; sys.exit(main())"
    done = as_user([sys.executable, "-c", script, "serve", "--port", "0"], allow_weak_isolation=False, timeout=50)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    for word in ("memory, pids, cpu", "What helps", "SANDBOX_ALLOW_WEAK_ISOLATION=1"):
        assert word in done.stderr


def test_execution_can_be_turned_off(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(enable_execution="no")
    assert "  isolation  execution is turned off" in server.banner
    assert httpx2.get(f"{server.url}/healthz", timeout=60).status_code == 200
    with pytest.raises(InvalidStatus) as refusal:
        connect(server.ws_url, additional_headers=server.headers, open_timeout=60)
    assert refusal.value.response.status_code == 403


def test_other_commands_do_not_load_the_server() -> None:
    loaded = "{'uvicorn', 'fastapi', 'structlog', 'limits', 'jwt', 'prometheus_client', 'msgspec'} & sys.modules.keys()"
    script = f"import sys; import tidebox.cli.main, tidebox.cli.run, tidebox.cli.running; print(*{loaded})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
