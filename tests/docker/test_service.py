"""Runs of the interpreter service on docker: what is recorded of them, and the reasons of those that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import Service, error_of
from tests.docker.images import BUSYBOX_IMAGE


@pytest.fixture
def service(docker_host: str, start_server: Callable[..., RunningServer], tmp_path: Path) -> Service:
    server = start_server(data_dir=tmp_path / "data", default_runtime="docker", docker_host=docker_host)
    return Service.of(server)


def test_a_run_records_what_it_ran_in_also_where_that_was_not_known_before(service: Service) -> None:
    with service:
        run = service.run(["sh", "-c", "echo done"], base_image=BUSYBOX_IMAGE)
        assert run["phase"] == "completed"
        assert run["image_digest"].startswith("sha256:")
        (found,) = [row for row in service.get("/runtimes").json()["runtimes"] if row["name"] == "docker"]
        assert found["available"]
        assert all("@sha256:" in image for image in found["default_images"])


def test_reasons_of_runs_that_cannot_be_started(service: Service) -> None:
    with service:
        packages = service.submit(["true"], spec_version="1.1", packages={"python": ["requests"]})
        refused = error_of(packages, 422, "policy_unsupported")
        assert "docker" in refused["message"]
        assert refused["details"]["field"] == "packages"
        network = service.submit(["true"], network_policy="allowlist")
        assert error_of(network, 422, "policy_unsupported")["details"]["field"] == "network_policy"
        missing = service.run(["true"], base_image="127.0.0.1:9/no/image:1")
        assert (missing["phase"], missing["reason_code"]) == ("failed", "image_pull_failed")
        assert "no/image" in missing["message"]
        no_command = service.run(["/no/such/program"], base_image=BUSYBOX_IMAGE)
        assert (no_command["phase"], no_command["reason_code"]) == ("failed", "exec_failed")
        killed = service.run(["sh", "-c", "kill -9 $$"], base_image=BUSYBOX_IMAGE)
        assert (killed["phase"], killed["reason_code"], killed["exit_code"]) == ("failed", "killed_by_signal", 137)
        exited = service.run(["sh", "-c", "exit 137"], base_image=BUSYBOX_IMAGE)
        assert (exited["phase"], exited["reason_code"], exited["exit_code"]) == ("failed", "exit_code_nonzero", 137)


def test_an_engine_that_is_down_at_the_start_is_named_by_every_answer(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    host = f"unix://{tmp_path}/no.sock"
    server = start_server(data_dir=tmp_path / "data", default_runtime="docker", docker_host=host)
    with Service.of(server) as service:
        error_of(service.submit(["true"]), 503, "runtime_unavailable")
        (found,) = [row for row in service.get("/runtimes").json()["runtimes"] if row["name"] == "docker"]
        assert not found["available"]
        assert "no.sock" in found["reason"]
