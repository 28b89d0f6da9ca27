"""The same request, sent twice, is done once: also at the same time, also across a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import HELLO, Service, error_of
from tidebox.model.ids import new_id

SESSION = {"spec_version": "1.0", "runtime": "native", "base_image": "python:3.11-slim"}


@pytest.fixture
def key() -> str:
    return new_id("key")


def test_a_repeated_run_is_the_first(ada: Service, key: str) -> None:
    first = ada.submit(key=key)
    assert first.json()["details"] == {"idempotency_key_echo": key, "idempotency_status": "created"}
    ada.wait(first.json()["id"])
    second = ada.submit(key=key)
    assert second.status_code == first.status_code
    assert second.json()["details"] == {"idempotency_key_echo": key, "idempotency_status": "replayed"}
    # The answer is the original one, also about the phase.
    changing = {"details": {}, "log_stream_url": ""}
    assert second.json() | changing == first.json() | changing


def test_a_repeated_session_is_the_first(ada: Service, key: str) -> None:
    answers = [ada.post("/sessions", json=SESSION, headers={"Idempotency-Key": key}).json() for _ in range(2)]
    assert answers[0]["session_id"] == answers[1]["session_id"]
    assert answers[0]["policy_hash"] == answers[1]["policy_hash"]
    assert [answer["details"]["idempotency_status"] for answer in answers] == ["created", "replayed"]


def test_another_body_is_a_conflict(ada: Service, key: str) -> None:
    first = ada.submit(HELLO, key=key).json()
    error = error_of(ada.submit(["ls"], key=key), 409, "idempotency_conflict")
    assert error["message"] == "Idempotency-Key replay with different body"
    assert error["details"] == {
        "prior_id": first["id"],
        "key": key,
        "prior_created_at": first["created_at"],
        "idempotency_key_echo": key,
        "idempotency_status": "conflict",
    }
    session = ada.post("/sessions", json=SESSION, headers={"Idempotency-Key": key}).json()
    other = ada.post("/sessions", json=SESSION | {"labels": {"a": "b"}}, headers={"Idempotency-Key": key})
    assert error_of(other, 409, "idempotency_conflict")["details"]["prior_id"] == session["id"]


def test_how_a_body_is_written_does_not_matter(ada: Service, key: str) -> None:
    texts = [
        '{"spec_version":"1.0","base_image":"host","command":["true"],"timeout_sec":5}',
        '{ "timeout_sec": 5.0, "command": ["tr\\u0075e"],\n "base_image": "host", "spec_version": "1.0" }',
    ]
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    ids = {ada.post("/runs", content=text, headers=headers).json()["id"] for text in texts}
    assert len(ids) == 1


def test_keys_are_of_one_user_and_one_route(ada: Service, bob: Service, key: str) -> None:
    runs = {client.submit(key=key).json()["id"] for client in (ada, bob)}
    sessions = {
        client.post("/sessions", json=SESSION, headers={"Idempotency-Key": key}).json()["id"] for client in (ada, bob)
    }
    assert len(runs) == len(sessions) == 2


def test_many_at_once_make_one(interpreter_server: RunningServer, key: str) -> None:
    def ask(number: int) -> tuple[str, str]:
        with Service.of(interpreter_server, "ada") as client:
            if number % 2:
                answer = client.submit(key=key)
            else:
                answer = client.post("/sessions", json=SESSION, headers={"Idempotency-Key": key})
            assert answer.status_code in (200, 202), answer.text
            return answer.json()["id"], answer.json()["details"]["idempotency_status"]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(32)))
    for prefix in ("run-", "ses-"):
        of_kind = [entry for entry in found if entry[0].startswith(prefix)]
        assert len({id for id, _ in of_kind}) == 1
        assert [status for _, status in of_kind].count("created") == 1


@pytest.mark.parametrize("bad", ["x" * 129, "tab\there"])
def test_keys_that_are_none(ada: Service, bad: str) -> None:
    error_of(ada.submit(key=bad), 400, "invalid_request")


def test_the_longest_key(ada: Service) -> None:
    longest = (new_id("key") + "k" * 128)[:128]
    assert ada.submit(key=longest).json()["id"] == ada.submit(key=longest).json()["id"]


def test_a_replay_does_not_ask_whether_the_session_is_still_there(ada: Service, key: str) -> None:
    session = ada.session()
    first = ada.submit(session_id=session, key=key).json()
    ada.http.delete(f"/sessions/{session}")
    assert ada.submit(session_id=session, key=key).json()["id"] == first["id"]


def test_a_refused_request_leaves_no_key(ada: Service, key: str) -> None:
    error_of(ada.submit(key=key, network_policy="allowlist"), 422, "policy_unsupported")
    assert ada.submit(key=key).status_code == 200


def test_keys_survive_a_restart_and_end_with_their_time(start_server: Callable[..., RunningServer], key: str) -> None:
    server = start_server(idempotency_ttl_sec="600")
    with Service.of(server) as client:
        run = client.submit(key=key).json()
        session = client.post("/sessions", json=SESSION, headers={"Idempotency-Key": key}).json()
        client.wait(run["id"])
    server.stop()
    again = start_server(data_dir=server.data_dir, idempotency_ttl_sec="600")
    with Service.of(again) as client:
        assert client.submit(key=key).json()["id"] == run["id"]
        assert client.post("/sessions", json=SESSION, headers={"Idempotency-Key": key}).json()["id"] == session["id"]
        error_of(client.submit(["ls"], key=key), 409, "idempotency_conflict")
    again.stop()
    time.sleep(1)
    later = start_server(data_dir=server.data_dir, idempotency_ttl_sec="1")
    with Service.of(later) as client:
        assert client.submit(["ls"], key=key).json()["id"] != run["id"]
