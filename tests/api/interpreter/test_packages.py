"""Packages on runs and sessions of the service: who may ask, what is told while they come, and what is written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import NO_CELLS, RunningServer, finish, start_command
from tests.api.interpreter.service import JWT_SECRET, Service, error_of
from tests.api.interpreter.test_audit import events
from tests.cli.command import error_line
from tests.cli.remote import Remote
from tests.packages.index import Index, running_index
from tests.runtimes import native_only
from tidebox.sdk import Interpreter, Progress

pytestmark = native_only("packages need the files of a box on this machine")

IMPORT = ["python3", "-c", "import tide; print(tide.HIGH)"]
TIDE: dict[str, Any] = {"spec_version": "1.1", "packages": {"python": ["tide"]}}


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with running_index() as found:
        found.add("tide", {"tide.py": "HIGH = 7\n"})
        found.add("moon", {"moon.py": "X = 1\n"})
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, index: Index) -> Iterator[RunningServer]:
    settings = [f"{name}={value}" for name, value in index.environment.items()]
    running = start_command(
        tmp_path_factory.mktemp("packages"),
        under=["env", *settings],
        auth_jwt_secret=JWT_SECRET,
        rate_limit="off",
        **NO_CELLS,
    )
    yield running
    finish(running)


@pytest.fixture(scope="module")
def owner(server: RunningServer) -> Iterator[Service]:
    with Service.of(server) as client:
        yield client


def test_a_run_has_its_packages(owner: Service, server: RunningServer) -> None:
    run = owner.run(IMPORT, **TIDE)
    assert (run["phase"], run["exit_code"]) == ("completed", 0), run
    assert owner.log(run["run_id"]) == "7\n"
    (built,) = events(server, 1, event="sandbox.packages.built", run_id=run["run_id"])
    assert built["user_id"] == "local"
    assert built["packages"] == {"python": ["tide"], "node": []}
    assert len(built["layer"]) == 64


def test_all_runs_of_a_session_have_its_packages_and_their_own(owner: Service) -> None:
    session = owner.session(**TIDE)
    assert owner.get(f"/sessions/{session}").json()["packages"] == {"python": ["tide"], "node": []}
    run = owner.run(IMPORT, session_id=session)
    assert owner.log(run["run_id"]) == "7\n"
    both = ["python3", "-c", "import tide, moon; print(tide.HIGH + moon.X)"]
    run = owner.run(both, session_id=session, spec_version="1.1", packages={"python": ["moon"]})
    assert owner.log(run["run_id"]) == "8\n"


def test_what_is_done_for_them_is_told_in_the_starting_phase(server: RunningServer, index: Index) -> None:
    index.add("told", {"told.py": ""})
    with Interpreter(server.url, api_key=server.key) as client:
        run = client.start_run(["python3", "-c", "import told"], packages=["told"])
        with client.stream_log(run.id) as log:
            found = list(log)
    kinds = [type(entry).__name__ for entry in found]
    messages = [entry.message for entry in found if isinstance(entry, Progress)]
    assert messages[0] == "resolving told"
    assert messages[-1] == "1 packages are ready"
    assert kinds.index("Progress") < kinds.index("ProgramStart")


def test_a_package_that_is_not_there_fails_the_run_and_is_named(owner: Service, server: RunningServer) -> None:
    run = owner.run(IMPORT, spec_version="1.1", packages={"python": ["not-there"]})
    assert (run["phase"], run["reason_code"]) == ("failed", "provision_failed")
    assert "not-there" in run["message"]
    (failed,) = events(server, 1, event="sandbox.packages.failed", run_id=run["run_id"])
    assert failed["outcome"] == "package_unresolvable"


def test_users_with_tokens_may_ask_for_none(server: RunningServer) -> None:
    with Service.of(server, "ada") as ada:
        error = error_of(ada.submit(IMPORT, **TIDE), 403, "package_forbidden")
        assert error["details"]["package"] == "tide"
        error_of(ada.post("/sessions", json={"spec_version": "1.1", **TIDE}), 403, "package_forbidden")
    assert events(server, 2, event="sandbox.packages.refused", user_id="ada")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"spec_version": "1.0", "packages": {"python": ["tide"]}}, "invalid_request"),
        ({"spec_version": "1.1", "packages": {"python": ["git+https://x/y"]}}, "invalid_request"),
        ({"spec_version": "1.1", "packages": {"python": ["-r x"]}}, "invalid_request"),
        ({"spec_version": "1.1", "packages": {"ruby": ["x"]}}, "invalid_request"),
        ({"spec_version": "1.1", "packages": {"node": ["../x"]}}, "invalid_request"),
        ({"spec_version": "1.1", "packages": {"python": ["x"] * 1000}}, "invalid_request"),
        ({"spec_version": "1.1", "base_image": "host+" + "0" * 64}, "invalid_request"),
    ],
)
def test_what_cannot_be_asked_for(owner: Service, body: dict[str, Any], code: str) -> None:
    error_of(owner.submit(IMPORT, **body), 400, code)


def test_the_time_for_the_start_holds_and_the_packages_are_there_for_the_next(owner: Service, index: Index) -> None:
    index.add("late", {"late.py": ""})
    index.gate.clear()
    try:
        command = ["python3", "-c", "import late"]
        asked: dict[str, Any] = {"spec_version": "1.1", "packages": {"python": ["late"]}}
        run = owner.run(command, startup_timeout_sec=3, **asked)
        assert (run["phase"], run["reason_code"]) == ("timed_out", "startup_timeout"), run
    finally:
        index.gate.set()
    assert owner.run(command, **asked)["phase"] == "completed"
    assert index.asked["/files/late-1.0-py3-none-any.whl"] == 1


def test_the_command_line_asks_a_server_for_them(server: RunningServer, tmp_path: Path) -> None:
    remote = Remote.of(server, tmp_path)
    code = "import tide; print(tide.HIGH)"
    assert remote.text("run", "--server", server.url, "--with", "tide", "-c", code) == "7"
    done = remote("run", "--server", server.url, "--with", "not-there", "-c", code)
    assert "not-there" in error_line(done)
