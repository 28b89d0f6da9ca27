"""The daemon of the tests itself: what it is made of works, and nothing of it stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.docker.daemon import Daemon, answers, ask
from tests.docker.images import BUSYBOX_IMAGE, NODE_IMAGE, PYTHON_IMAGE

PROGRAMS = {
    PYTHON_IMAGE: ["python", "-c", "import asyncio, ctypes, sqlite3, ssl; print('ran')"],
    NODE_IMAGE: ["node", "-e", "console.log('ran')"],
    BUSYBOX_IMAGE: ["sh", "-c", "! command -v python3 && echo ran"],
}


@pytest.mark.parametrize("image", PROGRAMS)
def test_its_images_run(docker_host: str, image: str) -> None:
    socket = Path(docker_host.removeprefix("unix://"))
    options = {"Image": image, "Cmd": PROGRAMS[image], "User": "4711:4711", "HostConfig": {"NetworkMode": "none"}}
    container = json.loads(ask(socket, "POST", "/containers/create", options))["Id"]
    try:
        ask(socket, "POST", f"/containers/{container}/start")
        ask(socket, "POST", f"/containers/{container}/wait")
        assert ask(socket, "GET", f"/containers/{container}/logs?stdout=1&stderr=1")[8:] == b"ran\n"
    finally:
        ask(socket, "DELETE", f"/containers/{container}?force=1")


def test_one_that_was_killed_is_started_again_and_nothing_of_it_stays(docker_daemon: Daemon) -> None:
    directory = docker_daemon.socket.parent
    docker_daemon.kill()
    assert not answers(docker_daemon.socket)
    docker_daemon.start()
    assert answers(docker_daemon.socket)
    docker_daemon.stop()
    assert not directory.exists()
    assert str(directory) not in Path("/proc/self/mounts").read_text()
    assert not os.path.exists(f"/proc/{docker_daemon.pid}")
