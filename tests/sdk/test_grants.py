"""What is read out of answers and configurations, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.errors import BoxGone, FileOperationFailed, InternalError, InvalidRequest, RateLimited, TideboxError
from tidebox.protocols.dataplane.frames import decode_frame as decode
from tidebox.sdk import ServerProtocolError, ServerRefused, ServerUnreachable, VersionRefused
from tidebox.sdk.error_decoding import from_answer
from tidebox.sdk.sandboxes.grants import SandboxGrant, from_config, from_negotiation, from_session, with_token

# As the specifications print them.
SESSION: dict[str, Any] = {
    "session_id": "ssn_local_1",
    "thread_id": "thr_123",
    "sandbox": {
        "id": "sb_123",
        "provider": "langsmith",
        "http_base_url": "https://dp.example.com/v1",
        "ws_base_url": "wss://dp.example.com/v1",
    },
    "token": "provider_token",
    "expires_at": "2026-02-27T20:20:00Z",
}
NEGOTIATED: dict[str, Any] = {
    "sandbox_id": "sb-abc123",
    "token": "sbx_eyJ",
    "ws_url": "wss://sandbox-host/ws/sb-abc123",
    "http_url": "https://sandbox-host/api/sb-abc123",
    "expires_at": "2025-06-01T12:00:00Z",
    "scopes": ["fs:read", "fs:write", "shell:exec"],
    "refresh_url": "/sandbox/refresh",
}
SERVER = "https://server/behind"


def test_the_answer_of_the_access_protocol() -> None:
    grant = from_session(json.dumps(SESSION).encode())
    assert grant == SandboxGrant(
        sandbox_id="sb_123",
        token="provider_token",
        expires_at=1772223600.0,
        http_url="https://dp.example.com/v1",
        exec_url="wss://dp.example.com/v1/exec/ws",
        shell_url="wss://dp.example.com/v1/shell/ws",
        watch_url="wss://dp.example.com/v1/files/watch",
        session_id="ssn_local_1",
        thread_id="thr_123",
    )
    assert "provider_token" not in repr(grant)


def test_the_answer_of_negotiation() -> None:
    grant = from_negotiation(json.dumps(NEGOTIATED).encode(), SERVER)
    assert (grant.exec_url, grant.shell_url) == (NEGOTIATED["ws_url"], NEGOTIATED["ws_url"])
    assert grant.watch_url == "wss://sandbox-host/api/sb-abc123/files/watch"
    assert grant.refresh_url == "https://server/behind/sandbox/refresh"
    assert from_config(NEGOTIATED).refresh_url == "https://sandbox-host/sandbox/refresh"
    assert grant.capabilities == frozenset({"fs_read", "fs_write", "exec", "shell"})


def test_a_server_of_another_version() -> None:
    assert from_negotiation(json.dumps(NEGOTIATED | {"protocol_version": "1.7"}).encode(), SERVER).token == "sbx_eyJ"
    with pytest.raises(VersionRefused):
        from_negotiation(json.dumps(NEGOTIATED | {"protocol_version": "2.0"}).encode(), SERVER)


@pytest.mark.parametrize("shape", [SESSION, NEGOTIATED])
def test_however_deep_a_configuration_is_given(shape: dict[str, Any]) -> None:
    grant = from_config(shape)
    for config in ({"sandbox": shape}, {"configurable": {"sandbox": shape}}):
        assert from_config(config) == from_config({"config": config}) == grant


def test_a_new_token() -> None:
    grant = from_config(SESSION)
    fresh = with_token(grant, b'{"token": "next", "expires_at": "2026-02-27T20:50:00Z"}')
    assert (fresh.token, fresh.expires_at - grant.expires_at) == ("next", 1800.0)
    assert fresh.http_url == grant.http_url


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SESSION, *NEGOTIATED]), inner),
    max_leaves=10,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys([*SESSION, *NEGOTIATED, "configurable"], json_values)))
def test_whatever_comes_is_a_grant_or_an_error_of_ours(content: dict[str, Any]) -> None:
    with pytest.raises((InvalidRequest, VersionRefused)):
        from_config(content)
    with pytest.raises(ServerProtocolError):
        from_session(json.dumps(content).encode())
    with pytest.raises((ServerProtocolError, VersionRefused)):
        from_negotiation(json.dumps(content).encode(), SERVER)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (503, {"code": "BACKEND_UNAVAILABLE", "message": "m", "retryable": True}, BoxGone),
        (507, {"code": "NO_SPACE", "message": "m", "retryable": False}, FileOperationFailed),
        (418, {"code": "TEAPOT", "message": "m", "retryable": True}, InternalError),
        (418, {"code": "TEAPOT", "message": "m"}, ServerRefused),
        (429, None, RateLimited),
        (502, None, ServerUnreachable),
        (302, None, ServerRefused),
    ],
)
def test_what_answers_mean(status: int, error: dict[str, Any] | None, kind: type[TideboxError]) -> None:
    body = b"<html>" if error is None else json.dumps({"error": error | {"request_id": "req-1"}}).encode()
    found = from_answer(status, {"retry-after": "7"}, body)
    assert type(found) is kind
    assert (found.details["status"], found.details["retry_after"]) == (status, 7.0)
    if error is not None:
        assert (found.details["code"], found.details["request_id"]) == (error["code"], "req-1")
        assert found.retryable is error.get("retryable", False)


def test_frames_of_a_later_server() -> None:
    assert decode(b'{"type": "weather", "tide": 3}') is None
    for wrong in (b'{"type": "exit"}', b'{"type": "stdout", "data": 5}', b"{", b"[]", b'{"type": 5}', b"\xff"):
        with pytest.raises(ServerProtocolError):
            decode(wrong)
