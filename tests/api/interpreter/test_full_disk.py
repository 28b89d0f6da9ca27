"""A disk that is full: what does not fit is refused and told, and what was there stays."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.conftest import NO_CELLS, RunningServer, finish, start
from tests.api.interpreter.service import Service, error_of
from tests.boxes import is_root

pytestmark = pytest.mark.skipif(not is_root(), reason="only root can mount a small disk")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[RunningServer]:
    """A server on a disk of 12 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], check=True)
    try:
        server = start(disk / "data", rate_limit="off", store_backend="memory", **NO_CELLS)
        yield server
        finish(server)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_an_upload_that_does_not_fit(small_disk: RunningServer) -> None:
    with Service.of(small_disk) as client:
        session = client.session()
        client.post(f"/sessions/{session}/files", files=[("files", ("old", b"1"))])
        response = client.post(f"/sessions/{session}/files", files=[("files", ("new", bytes(20 << 20)))])
        error = error_of(response, 503, "store_unavailable")
        assert error["retryable"]
        assert os.listdir(small_disk.data_dir / "uploads") == []
        assert [item["path"] for item in client.get(f"/sessions/{session}/files").json()["items"]] == ["old"]
        assert client.post(f"/sessions/{session}/files", files=[("files", ("new", b"2"))]).status_code == 200


def test_a_workspace_that_cannot_be_kept(small_disk: RunningServer) -> None:
    with Service.of(small_disk) as client:
        session = client.session()
        client.post(f"/sessions/{session}/files", files=[("files", ("old", b"1"))])
        run = client.run(["python", "-c", "open('large', 'wb').write(bytes(20 << 20))"], session_id=session)
        assert run["phase"] == "failed"
        assert "could not be kept" in run["message"]
        assert [item["path"] for item in client.get(f"/sessions/{session}/files").json()["items"]] == ["old"]
        assert os.listdir(small_disk.data_dir / "sessions" / session) == ["workspace"]
        again = client.run(["python", "-c", "open('small', 'wb').write(b'1')"], session_id=session)
        assert again["phase"] == "completed"


def test_artifacts_that_cannot_be_kept(small_disk: RunningServer) -> None:
    with Service.of(small_disk) as client:
        run = client.run(["python", "-c", "open('large', 'wb').write(bytes(20 << 20))"], capture_patterns=["*"])
        assert run["phase"] == "failed"
        assert "could not be kept" in run["message"]
        assert client.get(f"/runs/{run['id']}/artifacts").json()["items"] == []
        again = client.run(["python", "-c", "open('small', 'wb').write(b'1')"], capture_patterns=["*"])
        assert again["phase"] == "completed"
        assert len(client.get(f"/runs/{again['id']}/artifacts").json()["items"]) == 1
