"""A client of the access protocols for the tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx2 as httpx

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import JWT_SECRET, error_of, token

__all__ = ["JWT_SECRET", "Client", "error_of", "use", "wait_for"]

SESSIONS = "/v1/sandbox/sessions"


class Client:
    """The control plane as one user sees it."""

    def __init__(self, server: RunningServer, user: str | None = None, *roles: str) -> None:
        headers = server.headers if user is None else {"Authorization": f"Bearer {token(user, *roles)}"}
        self.server = server
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=60)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def negotiate(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        """POST a request for a session."""
        return self.http.post(SESSIONS, json=body, headers=headers or {})

    def ensure(self, thread: str, **body: Any) -> dict[str, Any]:
        """The session of a thread."""
        return found(self.negotiate(thread_id=thread, mode="ensure", **body))

    def acquire(self, thread: str, assistant: str | None = None) -> dict[str, Any]:
        """The grant for a thread."""
        body = {"thread_id": thread} | ({"assistant_id": assistant} if assistant is not None else {})
        return found(self.http.post("/sandbox/acquire", json=body))

    def of_session(self, method: str, session_id: str, what: str = "", **options: Any) -> httpx.Response:
        """A request about one session."""
        return self.http.request(method, f"{SESSIONS}/{session_id}{what}", **options)

    def state(self, session_id: str) -> str:
        """The state of a binding."""
        state: str = found(self.of_session("GET", session_id))["binding"]["state"]
        return state


def found(response: httpx.Response) -> dict[str, Any]:
    """What an answer says that is none of an error."""
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


def use(server: RunningServer, token: str, path: str = "/v1/exec", command: str = "echo used") -> httpx.Response:
    """Run something in the sandbox of a token."""
    return httpx.post(
        server.url + path, json={"command": command}, headers={"Authorization": f"Bearer {token}"}, timeout=60
    )


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
