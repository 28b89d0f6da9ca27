"""What the tests of the docker runtime share."""

from __future__ import annotations

from tests.api.conftest import start_server
from tests.docker.boxes import docker_runner

__all__ = ["docker_runner", "start_server"]
