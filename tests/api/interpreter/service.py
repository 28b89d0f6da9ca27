"""A client of the interpreter service for the tests: as much as they need, and no retries."""

from __future__ import annotations

import time
from typing import Any, Self

import httpx2 as httpx
import jwt

from tests.api.conftest import RunningServer

PREFIX = "/api/v1/sandbox"
JWT_SECRET = "a secret of the tests, long enough for HS256"
TERMINAL = frozenset({"completed", "failed", "timed_out", "killed"})
HELLO = ["python", "-c", "print('hello')"]


def token(user: str, *roles: str) -> str:
    """A bearer token of a user."""
    claims = {"sub": user, "roles": list(roles), "exp": int(time.time()) + 3600}
    return jwt.encode(claims, JWT_SECRET, algorithm="HS256")


class Service:
    """The service as one user sees it."""

    def __init__(self, server: RunningServer, headers: dict[str, str]) -> None:
        self.server = server
        self.http = httpx.Client(base_url=server.url + PREFIX, headers=headers, timeout=30)

    @classmethod
    def of(cls, server: RunningServer, user: str | None = None, *roles: str) -> Self:
        """As the holder of the key, or as the user of a token."""
        headers = server.headers if user is None else {"Authorization": f"Bearer {token(user, *roles)}"}
        return cls(server, headers)

    def close(self) -> None:
        """Let go of its connections."""
        self.http.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET below the service's prefix."""
        return self.http.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """POST below the service's prefix."""
        return self.http.post(path, **options)

    def submit(self, command: list[str] | None = None, *, key: str | None = None, **body: Any) -> httpx.Response:
        """Ask for a run: in a session where one is named, else on its own."""
        body = {"spec_version": "1.0", "command": command or HELLO} | body
        if "session_id" not in body:
            body.setdefault("base_image", "python:3.11-slim")
        headers = {"Idempotency-Key": key} if key is not None else {}
        return self.http.post("/runs", json=body, headers=headers)

    def start(self, command: list[str] | None = None, **body: Any) -> str:
        """Start a run that is accepted, and give its id."""
        response = self.submit(command, **body)
        assert response.status_code in (200, 202), response.text
        run_id: str = response.json()["run_id"]
        return run_id

    def shown(self, run_id: str) -> dict[str, Any]:
        """A run as it is now."""
        response = self.http.get(f"/runs/{run_id}")
        assert response.status_code == 200, response.text
        run: dict[str, Any] = response.json()
        return run

    def wait(self, run_id: str, *phases: str, seconds: float = 30.0) -> dict[str, Any]:
        """Wait until a run is in one of these phases, or over."""
        wanted = frozenset(phases) or TERMINAL
        deadline = time.monotonic() + seconds
        while (run := self.shown(run_id))["phase"] not in wanted:
            assert run["phase"] not in TERMINAL, run
            assert time.monotonic() < deadline, run
            time.sleep(0.01)
        return run

    def run(self, command: list[str] | None = None, **body: Any) -> dict[str, Any]:
        """Start a run and wait for its end."""
        return self.wait(self.start(command, **body))

    def log(self, run_id: str) -> str:
        """What a run wrote."""
        response = self.http.get(f"/runs/{run_id}/logs")
        assert response.status_code == 200, response.text
        return response.text

    def session(self, **body: Any) -> str:
        """Make a session, and give its id."""
        response = self.http.post("/sessions", json={"spec_version": "1.0"} | body)
        assert response.status_code == 200, response.text
        session_id: str = response.json()["session_id"]
        return session_id


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error of an answer that has this status and code."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == code, error
    assert error["message"]
    assert response.headers["x-request-id"] == error["request_id"]
    return error
