"""What an admin sees: filters, sorting, paging, sums, keys, metrics, the audit log; and how the server is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx2 as httpx
import pytest

from tests.api.conftest import RunningServer, finish, start
from tests.api.interpreter.service import JWT_SECRET, PREFIX, Service, error_of
from tests.runtimes import RUNTIME, native_only


@pytest.fixture(scope="module")
def populated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server on which ada and bob have run something, and nobody else anything."""
    server = start(tmp_path_factory.mktemp("admin"), auth_jwt_secret=JWT_SECRET, rate_limit="off")
    with Service.of(server, "ada") as ada, Service.of(server, "bob") as bob:
        for number in range(3):
            ada.wait(ada.start(["sh", "-c", f"printf 12345; exit {number}"], key=f"ada-{number}"))
        bob.run(["true"], base_image="node:20-alpine")
        bob.run(["sleep", "9"], timeout_sec=0.1)
        bob.run(base_image="nosuch:1")
        bob.session()
    yield server
    finish(server)


@pytest.fixture(scope="module")
def admin(populated: RunningServer) -> Iterator[Service]:
    with Service.of(populated, "root", "sandbox_admin") as client:
        yield client


def listed(admin: Service, **query: Any) -> dict[str, Any]:
    response = admin.get("/admin/runs", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_the_keys_of_the_document(admin: Service) -> None:
    page = listed(admin)
    assert page.keys() == {"items", "total", "limit", "offset", "has_more"}
    assert (page["total"], page["limit"], page["offset"], page["has_more"]) == (6, 50, 0, False)
    wanted = {
        "id",
        "user_id",
        "spec_version",
        "runtime",
        "runtime_version",
        "base_image",
        "phase",
        "exit_code",
        "started_at",
        "finished_at",
        "image_digest",
        "policy_hash",
    }
    assert all(wanted <= item.keys() for item in page["items"])


def test_the_node_is_the_servers_own_name(admin: Service, populated: RunningServer) -> None:
    name = (populated.data_dir / "node-id").read_text().strip()
    assert {item["node_id"] for item in listed(admin)["items"]} == {name}
    assert listed(admin, node_id=name)["total"] == 6


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"user_id": "ada"}, 3),
        ({"user_id": "nobody"}, 0),
        ({"phase": "failed"}, 3),
        ({"phase": "failed", "user_id": "ada"}, 2),
        ({"phase": "timed_out"}, 1),
        ({"runtime": RUNTIME}, 6),
        ({"runtime": "qemu"}, 0),
        ({"base_image": "node:20-alpine"}, 1),
        ({"q": "ALPINE"}, 1),
        pytest.param({"q": "no image named"}, 1, marks=native_only("an engine has other words for it")),
        ({"q": "100%"}, 0),
        ({"image_digest": "sha256:0"}, 0),
        ({"started_at_from": "2000-01-01T00:00:00Z"}, 6),
        ({"started_at_to": "2000-01-01T00:00:00Z"}, 0),
        ({"finished_at_from": "2000-01-01", "finished_at_to": "2999-01-01T00:00:00+02:00"}, 6),
        ({"node_id": "elsewhere"}, 0),
    ],
)
def test_runs_are_filtered(admin: Service, query: dict[str, str], count: int) -> None:
    page = listed(admin, **query)
    assert page["total"] == len(page["items"]) == count


def test_the_ends_of_a_time_are_part_of_it(admin: Service) -> None:
    finished = listed(admin, user_id="ada", sort="finished_at:asc")["items"][1]
    # To the millisecond that is shown, which is earlier than the time that is kept.
    moment = datetime.fromisoformat(finished["finished_at"]).timestamp() + 0.001
    text = datetime.fromtimestamp(moment).astimezone().isoformat()
    page = listed(admin, user_id="ada", finished_at_to=text)
    assert finished["id"] in [item["id"] for item in page["items"]]


@native_only("python and node are two images there")
def test_the_digest_is_one_of_the_filters(admin: Service) -> None:
    digest = listed(admin, user_id="ada")["items"][0]["image_digest"]
    assert listed(admin, image_digest=digest)["total"] == 5


@pytest.mark.parametrize(
    ("sort", "field", "descending"),
    [
        ("started_at:desc", "started_at", True),
        ("started_at:asc", "started_at", False),
        ("finished_at:desc", "finished_at", True),
        ("finished_at", "finished_at", True),
        ("created_at:asc", "created_at", False),
        ("desc", "started_at", True),
        ("asc", "started_at", False),
    ],
)
def test_runs_are_sorted(admin: Service, sort: str, field: str, descending: bool) -> None:
    moments = [item[field] for item in listed(admin, sort=sort)["items"]]
    assert moments == sorted(moments, reverse=descending)


def test_runs_are_paged(admin: Service) -> None:
    everything = [item["id"] for item in listed(admin)["items"]]
    pages = [listed(admin, limit=4, offset=offset) for offset in (0, 4, 8)]
    assert [[item["id"] for item in page["items"]] for page in pages] == [everything[:4], everything[4:], []]
    assert [page["has_more"] for page in pages] == [True, False, False]


@pytest.mark.parametrize(
    "query",
    [{"limit": 0}, {"limit": 1001}, {"offset": -1}, {"sort": "size"}, {"phase": "lost"}, {"started_at_from": "noon"}],
)
def test_invalid_queries_are_refused(admin: Service, query: dict[str, Any]) -> None:
    error_of(admin.get("/admin/runs", params=query), 400, "invalid_request")


def test_an_admin_sees_the_details_of_a_run(admin: Service) -> None:
    run_id = listed(admin, user_id="ada", sort="asc")["items"][0]["id"]
    run = admin.get(f"/admin/runs/{run_id}").json()
    assert (run["id"], run["user_id"], run["phase"], run["message"]) == (run_id, "ada", "completed", None)
    assert run["resource_usage"]["log_bytes"] == 5
    assert run["resource_usage"]["limits"]["memory_mb"] == 512
    assert run["artifacts"] == []
    error_of(admin.get("/admin/runs/run-0"), 404, "not_found")


def test_keys(admin: Service) -> None:
    items = admin.get("/admin/idempotency").json()["items"]
    assert [(item["endpoint"], item["user_key"], item["key"]) for item in items] == [
        ("runs", "ada", "ada-2"),
        ("runs", "ada", "ada-1"),
        ("runs", "ada", "ada-0"),
    ]
    assert all(item["object_id"].startswith("run-") for item in items)
    assert admin.get("/admin/idempotency", params={"endpoint": "sessions"}).json()["items"] == []
    assert admin.get("/admin/idempotency", params={"user_id": "bob"}).json()["items"] == []
    assert len(admin.get("/admin/idempotency", params={"limit": 1, "offset": 1}).json()["items"]) == 1


def test_usage(admin: Service) -> None:
    found = admin.get("/admin/usage").json()
    assert found.keys() == {"items", "limit", "offset"}


def test_sums(admin: Service) -> None:
    found = admin.get("/admin/usage/summary").json()
    assert {"runs": 6, "completed": 2, "failed": 3, "timed_out": 1, "killed": 0}.items() <= found["totals"].items()
    assert found["by_runtime"][0]["runtime"] == RUNTIME
    assert found["by_runtime"][0]["runs"] == 6
    assert {(user["user_id"], user["runs"]) for user in found["top_users"]} == {("ada", 3), ("bob", 3)}
    assert found["totals"]["log_bytes"] >= 15
    window = found["window"]
    length = datetime.fromisoformat(window["to"]) - datetime.fromisoformat(window["from"])
    assert length.total_seconds() == pytest.approx(86400, abs=0.01)
    before = admin.get("/admin/usage/summary", params={"to": "2001-01-01T00:00:00Z"}).json()
    assert before["totals"]["runs"] == 0
    backwards = admin.get("/admin/usage/summary", params={"from": "2999-01-01", "to": "2001-01-01"}).json()
    assert backwards["totals"]["runs"] == 0


def test_metrics(admin: Service) -> None:
    series = admin.get("/admin/metrics").json()
    completed = {
        (entry["labels"]["outcome"], entry["labels"]["reason"]): entry["value"]
        for entry in series["sandbox_runs_completed_total"]
    }
    assert completed["completed", "exit_code_0"] == 2
    assert completed["timed_out", "execution_timeout"] == 1
    assert {"sandbox_run_duration_seconds_sum", "sandbox_run_duration_seconds_count"} <= series.keys()


def test_the_audit_log(admin: Service) -> None:
    def found(**query: Any) -> list[dict[str, Any]]:
        response = admin.get("/admin/audit", params=query)
        assert response.status_code == 200, response.text
        items: list[dict[str, Any]] = response.json()["items"]
        return items

    run_id = listed(admin, user_id="ada", sort="asc")["items"][0]["id"]
    events = [event["event"] for event in found(run_id=run_id, sort="asc")]
    assert events[0] == "sandbox.run.created"
    assert events[-1] == "sandbox.run.completed"
    assert {event["user_id"] for event in found(user_id="bob", limit=1000)} == {"bob"}
    assert len(found(event="sandbox.session.created")) == 1
    newest = [event["ts"] for event in found(limit=1000)]
    assert newest == sorted(newest, reverse=True)
    assert found(to="2001-01-01T00:00:00Z") == []
    assert found(event="sandbox.run.timed_out")[0]["reason_code"] == "execution_timeout"
    pages = [admin.get("/admin/audit", params={"limit": 2, "offset": offset}).json() for offset in (0, 2)]
    assert pages[0]["has_more"] is True
    assert [event["ts"] for page in pages for event in page["items"]] == newest[:4]


def test_what_happened_a_moment_ago_is_in_the_audit_log(populated: RunningServer, admin: Service) -> None:
    with Service.of(populated, "carol") as carol:
        session = carol.session()
    found = admin.get("/admin/audit", params={"session_id": session}).json()["items"]
    assert [event["event"] for event in found] == ["sandbox.session.created"]


# How the server is.


def test_health(admin: Service) -> None:
    found = admin.get("/health").json()
    assert found["status"] == "ok"
    assert (found["store"]["mode"], found["store"]["ok"]) == ("sqlite", True)
    names = ("native", "docker", "gvisor", "firecracker", "qemu")
    assert found["runtimes"] == {name: name in ("native", RUNTIME) for name in names}
    assert found["load"] == {"active": 0, "queued": 0}


def test_public_health_tells_one_word(populated: RunningServer) -> None:
    response = httpx.get(populated.url + PREFIX + "/health/public", timeout=60)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_runs_of_everybody_are_still_there_after_a_restart(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    with Service.of(server) as client:
        run = client.run()
    server.stop()
    with Service.of(start_server(data_dir=server.data_dir)) as client:
        again = client.shown(run["id"])
        assert again | {"log_stream_url": ""} == run | {"log_stream_url": ""}
        assert listed(client)["total"] == 1
        assert time.time() - datetime.fromisoformat(again["created_at"]).timestamp() < 60


def test_what_happened_is_told_as_figures(admin: Service) -> None:
    response = admin.get("/admin/series", params={"points": 4})
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["complete"] is True
    for name in ("times", "active", "queued", "ended", "unsuccessful"):
        assert len(found[name]) == 4
    assert found["times"] == sorted(found["times"])
    assert found["active"][-1] == found["queued"][-1] == 0
    assert sum(found["ended"]) == 6
    assert sum(found["unsuccessful"]) == 4
    assert found["failures"] == {"exit_code_nonzero": 2, "execution_timeout": 1, "image_pull_failed": 1}
    slowest = max(value for value in found["duration_sec"]["p99"] if value is not None)
    assert slowest >= 0.1
    assert {(each["user_id"], each["runs"]) for each in found["usage"]} == {("ada", 3), ("bob", 3)}


def test_figures_of_a_time_without_runs_are_empty(admin: Service) -> None:
    found = admin.get("/admin/series", params={"from": "2020-01-01", "to": "2020-01-02", "points": 2}).json()
    assert (found["ended"], found["failures"], found["usage"]) == ([0, 0], {}, [])
    assert found["duration_sec"]["p50"] == [None, None]


def test_figures_are_for_admins_and_none_of_an_empty_time(admin: Service, populated: RunningServer) -> None:
    with Service.of(populated, "ada") as ada:
        error_of(ada.get("/admin/series"), 403, "forbidden")
    figures = admin.get("/admin/series", params={"from": "2020-01-02", "to": "2020-01-01"}).raise_for_status().json()
    assert not any(figures["ended"])


def test_users_filter_their_own_runs(populated: RunningServer) -> None:
    with Service.of(populated, "bob") as bob:
        for query, total in (
            ({"runtime": RUNTIME}, 3),
            ({"base_image": "node:20-alpine"}, 1),
            ({"q": "nosuch"}, 1),
            ({"label": "team=sea"}, 0),
            ({"started_at_to": "2020-01-01"}, 0),
            ({"phase": "timed_out"}, 1),
        ):
            assert bob.get("/runs", params=query).json()["total"] == total, query
        error_of(bob.get("/runs", params={"label": "no value"}), 400, "invalid_request")


def test_everybody_is_told_who_they_are(populated: RunningServer) -> None:
    with Service.of(populated, "ada", "sandbox_admin", "other") as ada, Service.of(populated, "bob") as bob:
        assert ada.get("/me").json() == {"user_id": "ada", "roles": ["other", "sandbox_admin"], "admin": True}
        assert bob.get("/me").json() == {"user_id": "bob", "roles": [], "admin": False}
