"""A server that lets programs out: what may be asked for, what is told of it, and what is told to nobody."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import NO_CELLS, RunningServer, finish, start_command
from tests.api.interpreter.service import JWT_SECRET, Service, error_of
from tests.cli.command import TIDEBOX
from tests.egress.test_secrets import holds
from tests.egress.world import ONE, RESOLVER, TWO, Machine
from tests.patience import patient
from tidebox.sdk import AsyncInterpreter, Interpreter, Sandbox

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WEAK = os.environ.get("SANDBOX_ALLOW_WEAK_ISOLATION", "0")
VALUE = "s3cr3t-of-the-server-0cc175b9c0f1"
ALLOWLIST = {"hosts": ["one.example.com", "two.example.com"]}
LET_OUT = {"spec_version": "1.1", "network_policy": "allowlist"}
Body = Callable[[Service], None]


class Place:
    """A server in a network of its own, and a thread that stands in it, too."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.directory = directory
        self.machine = machine
        self.world = machine.world
        self._thread = ThreadPoolExecutor(1)
        self.server = self.call(self._start)

    def _start(self) -> RunningServer:
        self.machine.stand_here()
        secrets = self.directory / "secrets.json"
        secrets.write_text(json.dumps({"KEY": {"value": VALUE, "hosts": ["one.example.com"]}}))
        secrets.chmod(0o600)
        return start_command(
            self.directory / "data",
            rate_limit="off",
            auth_jwt_secret=JWT_SECRET,
            egress_allowlist=json.dumps(ALLOWLIST),
            egress_resolver="{}:{}".format(*RESOLVER),
            egress_secrets=str(secrets),
            egress_ca_file=str(self.world.ca),
            allow_weak_isolation=WEAK,
        )

    def call(self, work: Callable[[], Any]) -> Any:
        """Do something in that network."""
        return self._thread.submit(work).result(patient(90))

    def do(self, body: Body, user: str | None = None) -> None:
        """The same with a client of the server."""

        def work() -> None:
            with Service.of(self.server, user) as service:
                body(service)

        self.call(work)

    def audited(self, event: str, least: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """Events of one kind, once there are enough: they are written one after the other."""
        deadline = time.monotonic() + patient(30)
        while True:
            lines = "".join(path.read_text() for path in (self.server.data_dir / "audit").iterdir()).splitlines()
            found = [json.loads(line) for line in lines if line.endswith("}")]
            found = [item for item in found if item["event"] == event and fields.items() <= item.items()]
            if len(found) >= least:
                return found
            assert time.monotonic() < deadline, event
            time.sleep(0.05)

    def stop(self) -> None:
        """End everything."""
        finish(self.server)
        self._thread.shutdown()


@pytest.fixture(scope="module")
def place(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(machine, tmp_path_factory.mktemp("place"))
    yield made
    made.stop()


def curl(*urls: str, options: str = "") -> list[str]:
    lines = [f"curl -sS {options} {url} || echo denied" for url in urls]
    return ["sh", "-c", "\n".join(lines)]


def entries(service: Service, run_id: str) -> list[dict[str, Any]]:
    """The log with everything in it."""
    response = service.get(f"/runs/{run_id}/logs", headers={"Accept": "application/x-ndjson"})
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_run_reaches_what_its_list_has_and_everybody_can_see_it(place: Place) -> None:
    def body(service: Service) -> None:
        command = curl("http://one.example.com/", "http://two.example.com/", f"http://{TWO}/")
        egress = {"hosts": ["one.example.com"], "events": True}
        run = service.run(command, **LET_OUT, egress=egress)
        assert service.log(run["run_id"]).startswith(f"hello from {ONE} over http\n")
        assert run["network_policy"] == "allowlist"
        used = run["resource_usage"]["egress"]
        # A name that is refused is asked for more than once, as often as the program's own resolver likes.
        assert used["connections"] == 2
        assert used["denied"] >= 2
        assert used["bytes_sent"] > 0 < used["bytes_received"]
        told = [(item["event"], item["data"]) for item in entries(service, run["run_id"]) if item["type"] == "event"]
        seen = [(name, data) for name, data in told if name.startswith("egress")]
        assert seen[0] == (
            "egress_allowed",
            {"host": "one.example.com", "ip": ONE, "port": 80, "matched_rule": "one.example.com"},
        )
        assert ("two.example.com", "no_match") in [(data["host"], data.get("reason")) for _, data in seen]
        assert (TWO, "no_match") in [(data["ip"], data.get("reason")) for _, data in seen]
        (allowed,) = place.audited("sandbox.run.egress_allowed", run_id=run["run_id"])
        assert (allowed["host"], allowed["ip"], allowed["matched_rule"]) == ("one.example.com", ONE, "one.example.com")
        assert allowed["runtime"] == "native"
        denied = place.audited("sandbox.run.egress_denied", 2, run_id=run["run_id"], reason="no_match")
        assert {(item["host"], item["ip"]) for item in denied} >= {("two.example.com", None), (None, TWO)}
        counted = service.http.get(f"{place.server.url}/metrics").text
        assert 'sandbox_egress_connections_total{outcome="allowed",runtime="native"}' in counted
        assert 'sandbox_egress_bytes_total{direction="received",runtime="native"}' in counted
        # Without being asked for they are not in the log.
        quiet = service.run(command, **LET_OUT, egress={"hosts": ["one.example.com"]})
        assert not [item for item in entries(service, quiet["run_id"]) if item.get("event", "").startswith("egress")]

    place.do(body)


def test_without_a_list_of_its_own_a_run_is_under_the_server_s_and_without_a_network_it_has_none(place: Place) -> None:
    def body(service: Service) -> None:
        command = curl("http://one.example.com/", "http://two.example.com/")
        run = service.run(command, **LET_OUT)
        assert service.log(run["run_id"]) == f"hello from {ONE} over http\nhello from {TWO} over http\n"
        run = service.run(command)
        assert run["resource_usage"]["egress"] is None
        assert "hello" not in service.log(run["run_id"])

    place.do(body)


def test_a_session_s_list_counts_for_its_runs(place: Place) -> None:
    def body(service: Service) -> None:
        session = service.session(**LET_OUT, egress={"hosts": ["two.example.com"]})
        command = curl("http://one.example.com/", "http://two.example.com/")
        run = service.run(command, session_id=session)
        assert f"hello from {TWO}" in service.log(run["run_id"])
        assert f"hello from {ONE}" not in service.log(run["run_id"])
        run = service.run(command, session_id=session, spec_version="1.1", egress={"hosts": ["one.example.com"]})
        assert "hello" not in service.log(run["run_id"])
        run = service.run(command, session_id=session, network_policy="deny_all")
        assert "hello" not in service.log(run["run_id"])
        assert service.get(f"/sessions/{session}").json()["egress"]["hosts"] == ["two.example.com"]
        plain = service.session()
        error_of(service.submit(command, session_id=plain, network_policy="allowlist"), 400, "invalid_request")

    place.do(body)


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"network_policy": "deny_all", "egress": {"hosts": ["one.example.com"]}}, 400, "invalid_request"),
        ({"network_policy": None, "egress": {"hosts": ["one.example.com"]}}, 400, "invalid_request"),
        ({"spec_version": "1.0", "egress": {"hosts": ["one.example.com"]}}, 400, "invalid_request"),
        ({"egress": {"hosts": ["*"]}}, 400, "invalid_request"),
        ({"egress": {"hosts": ["http://one.example.com"]}}, 400, "invalid_request"),
        ({"egress": {"ports": [443]}}, 400, "invalid_request"),
        ({"egress": {"hosts": [f"h{number}.example" for number in range(1001)]}}, 400, "invalid_request"),
        ({"egress": {"ips": [f"9.9.9.{n}" for n in range(200)], "hosts": [f"h{n}.test" for n in range(900)]}}, 400, ""),
        ({"egress": {"packages": True}}, 422, "policy_unsupported"),
        ({"egress": {"secrets": ["NONE"]}}, 403, "forbidden"),
        ({"egress": {"headers": [{"host": "two.example.com", "name": "X", "secret": "KEY"}]}}, 403, "forbidden"),
    ],
    ids=["deny_all", "default", "version", "star", "scheme", "key", "many", "together", "packages", "secret", "host"],
)
def test_what_cannot_be_is_refused(place: Place, asked: dict[str, Any], status: int, code: str) -> None:
    def body(service: Service) -> None:
        for path, more in (("/runs", {"base_image": "host", "command": ["true"]}), ("/sessions", {})):
            response = service.post(path, json={**LET_OUT, **asked, **more})
            error_of(response, status, code or "invalid_request")

    place.do(body)


def test_a_secret_is_for_its_users_and_is_in_no_file_of_the_server(place: Place) -> None:
    def body(service: Service) -> None:
        header = {"host": "one.example.com", "name": "Authorization", "secret": "KEY"}
        egress = {"headers": [header], "secrets": ["KEY"], "events": True}
        command = curl("https://one.example.com/", options="-H X-Key:$TIDEBOX_SECRET_KEY")
        run = service.run(command, **LET_OUT, egress=egress)
        assert service.log(run["run_id"]) == f"hello from {ONE} over https\n"
        assert any(b"x-key: " + VALUE.encode() in head for _, head in place.world.requests)
        misplaced = curl("https://two.example.com/", "http://two.example.com/", options="-H X-Key:$TIDEBOX_SECRET_KEY")
        run = service.run(misplaced, **LET_OUT, egress=egress)
        (denied,) = place.audited("sandbox.run.egress_denied", run_id=run["run_id"])
        assert (denied["host"], denied["reason"]) == ("two.example.com", "secret_misplaced")
        # A session's counts for its runs.
        session = service.session(**LET_OUT, egress=egress)
        run = service.run(command, session_id=session)
        assert service.log(run["run_id"]) == f"hello from {ONE} over https\n"

    place.do(body)

    def others(service: Service) -> None:
        error_of(service.submit(["true"], **LET_OUT, egress={"secrets": ["KEY"]}), 403, "forbidden")

    place.do(others, "ada")
    assert place.audited("sandbox.egress.refused", user_id="ada")[0]["secret"] == "KEY"
    searched = [path for path in place.server.data_dir.rglob("*") if path.is_file()]
    assert len(searched) > 5
    assert not [path for path in searched if VALUE.encode() in path.read_bytes()]
    assert VALUE not in place.server.log
    assert VALUE.encode() not in Path(f"/proc/{place.server.pid}/environ").read_bytes()
    if os.geteuid() == 0:
        assert holds(place.server.pid, place.server.key.encode())
        assert not holds(place.server.pid, VALUE.encode())


def test_what_a_session_could_reach_before_is_denied_because_the_policy_changed(place: Place) -> None:
    def start(*hosts: str) -> RunningServer:
        return start_command(
            place.directory / "changing",
            egress_allowlist=json.dumps({"hosts": hosts}),
            egress_resolver="{}:{}".format(*RESOLVER),
            allow_weak_isolation=WEAK,
            **NO_CELLS,
        )

    def body(_: Service) -> None:
        server = start("one.example.com", "two.example.com")
        with Service.of(server) as service:
            session = service.session(**LET_OUT)
        finish(server)
        server = start("two.example.com")
        with Service.of(server) as service:
            run = service.run(
                curl("http://one.example.com/", "http://two.example.com/"),
                session_id=session,
                spec_version="1.1",
                egress={"events": True},
            )
            assert service.log(run["run_id"]).endswith(f"hello from {TWO} over http\n")
            told = [item["data"] for item in entries(service, run["run_id"]) if item.get("event") == "egress_denied"]
            assert {(item["host"], item["reason"]) for item in told} == {("one.example.com", "policy_changed")}
        finish(server)

    place.do(body)


def test_a_sandbox_reaches_what_it_was_made_for(place: Place) -> None:
    def body(service: Service) -> None:
        url = place.server.url
        asked = {
            "thread_id": "t-1",
            "mode": "ensure",
            "network_policy": "allowlist",
            "egress": {"hosts": ["one.example.com"], "secrets": ["KEY"]},
        }
        answer = service.http.post(f"{url}/v1/sandbox/sessions", json=asked)
        assert answer.status_code == 200, answer.text
        token = answer.json()["token"]

        def execute(line: str) -> str:
            done = service.http.post(
                f"{url}/v1/exec", json={"command": line}, headers={"Authorization": f"Bearer {token}", "X-API-KEY": ""}
            )
            assert done.status_code == 200, done.text
            text: str = done.json()["stdout"]
            return text

        assert execute("curl -sS http://one.example.com/") == f"hello from {ONE} over http\n"
        assert execute("curl -sS http://two.example.com/ || echo denied") == "denied\n"
        assert execute("curl -sS -H X-Key:$TIDEBOX_SECRET_KEY https://one.example.com/").startswith("hello")
        (denied,) = place.audited("sandbox.access.egress_denied")
        assert (denied["host"], denied["reason"], denied["thread_id"]) == ("two.example.com", "no_match", "t-1")
        refused = service.http.post(f"{url}/v1/sandbox/sessions", json={**asked, "network_policy": "deny_all"})
        assert refused.status_code == 400, refused.text

    place.do(body)


def test_the_server_says_that_it_can(place: Place) -> None:
    def body(service: Service) -> None:
        (native,) = [item for item in service.get("/runtimes").json()["runtimes"] if item["name"] == "native"]
        assert native["egress_allowlist_supported"] is True
        assert native["isolation"]["network_policies"] == ["deny_all", "allowlist"]

    place.do(body)


def test_the_process_that_decides_is_there_before_the_first_run(place: Place) -> None:
    def body(_: Service) -> None:
        server = start_command(
            place.directory / "waiting", egress_allowlist=json.dumps(ALLOWLIST), allow_weak_isolation=WEAK, **NO_CELLS
        )
        try:
            assert any("tidebox.egress" in command for command in commands_below(server.pid))
        finally:
            finish(server)

    place.do(body)


def commands_below(pid: int) -> list[str]:
    """The command lines of the children of a process, whichever of its threads started them."""
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [Path(f"/proc/{child}/cmdline").read_text() for children in found for child in children]


def test_sandboxes_and_sessions_of_the_library_and_the_command_line_have_it(place: Place) -> None:
    def body(_: Service) -> None:
        line = "curl -sS http://one.example.com/; curl -sS http://two.example.com/ || echo denied"
        said = f"hello from {ONE} over http\ndenied\n"
        only_one = ["one.example.com"]
        with Sandbox.create(server=place.server.url, api_key=place.server.key, egress=only_one) as sandbox:
            assert sandbox.exec(line).stdout.decode() == said
        with Interpreter(place.server.url, api_key=place.server.key) as client:
            session = client.create_session(egress=only_one)
            assert client.run(["sh", "-c", line], session_id=session.id).text == said

        def tidebox(*words: str) -> str:
            environment = {**os.environ, "TIDEBOX_URL": place.server.url, "TIDEBOX_API_KEY": place.server.key}
            done = subprocess.run([TIDEBOX, *words], env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        tidebox("sandbox", "create", "let-out", "--allow-host", "one.example.com", "--secret", "KEY")
        assert tidebox("sandbox", "exec", "let-out", "--", "sh", "-c", line) == said
        assert "tidebox" in tidebox("sandbox", "exec", "let-out", "--", "sh", "-c", "echo $TIDEBOX_SECRET_KEY")
        session_id = tidebox("sessions", "create", "--allow-host", "one.example.com").strip()
        assert tidebox("run", "--server", place.server.url, "--session", session_id, "--", "sh", "-c", line) == said

    place.do(body)


def test_the_library_and_the_command_line_ask_for_it(place: Place) -> None:
    def body(_: Service) -> None:
        async def run() -> str:
            async with AsyncInterpreter(place.server.url, api_key=place.server.key) as client:
                done = await client.run(curl("http://one.example.com/"), egress={"hosts": ["one.example.com"]})
                return done.text

        assert asyncio.run(run()) == f"hello from {ONE} over http\n"
        done = subprocess.run(
            [
                TIDEBOX,
                "run",
                "--server",
                place.server.url,
                "--allow-host",
                "one.example.com",
                "--",
                *curl("http://one.example.com/", "http://two.example.com/"),
            ],
            env={**os.environ, "TIDEBOX_API_KEY": place.server.key},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"hello from {ONE} over http\ndenied\n"
        assert "denied: two.example.com (no_match)" in done.stderr

    place.do(body)


def test_the_example(place: Place) -> None:
    def body(_: Service) -> None:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "egress.py", "one.example.com", "two.example.com"],
            env={**own_environment(place), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = done.stdout.splitlines()
        assert lines[:2] == ["one.example.com 200", "two.example.com is out of reach"]
        assert lines[2:] == ["allowed by one.example.com one.example.com", "denied: no_match two.example.com"]

    place.do(body)


def own_environment(place: Place) -> dict[str, str]:
    """Of programs that run boxes themselves."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_", "TIDEBOX_"))}
    environment |= {"SANDBOX_EGRESS_RESOLVER": "{}:{}".format(*RESOLVER), "SANDBOX_ALLOW_WEAK_ISOLATION": WEAK}
    return environment | {"SANDBOX_DATA_DIR": str(place.directory / "own")}


def test_on_a_machine_of_one_s_own_a_program_reaches_what_its_user_names(place: Place) -> None:
    def body(_: Service) -> None:
        environment = own_environment(place)

        def run(*options: str, **settings: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [TIDEBOX, "run", *options, "--", *curl("http://one.example.com/", "http://two.example.com/")],
                env={**environment, **settings},
                capture_output=True,
                text=True,
                check=False,
            )

        assert run("--allow-host", "one.example.com").stdout == f"hello from {ONE} over http\ndenied\n"
        assert run("--allow-ip", f"{TWO}/32").stdout == "denied\ndenied\n"
        assert run().stdout == "denied\ndenied\n"
        narrow = run("--allow-host", "*.example.com", SANDBOX_EGRESS_ALLOWLIST='{"hosts": ["two.example.com"]}')
        assert narrow.stdout == f"denied\nhello from {TWO} over http\n"
        wrong = run("--allow-host", "one.example.com", SANDBOX_EGRESS_ALLOWLIST="{")
        assert wrong.returncode != 0
        assert "SANDBOX_EGRESS_ALLOWLIST" in wrong.stderr

    place.do(body)
