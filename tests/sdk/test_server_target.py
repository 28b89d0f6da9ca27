"""Which socket, with which key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidebox.errors import InvalidRequest
from tidebox.sdk.server_target import find_target


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("SANDBOX_API_KEY", raising=False)
    monkeypatch.setenv("SANDBOX_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("http://127.0.0.1:8787", "ws://127.0.0.1:8787/ws"),
        ("http://127.0.0.1:8787/", "ws://127.0.0.1:8787/ws"),
        ("https://boxes.example", "wss://boxes.example/ws"),
        ("https://boxes.example/tide/", "wss://boxes.example/tide/ws"),
        ("ws://[::1]:80/ws", "ws://[::1]:80/ws"),
        ("wss://boxes.example/ws/", "wss://boxes.example/ws"),
    ],
)
def test_the_socket_of_an_address(url: str, uri: str) -> None:
    assert find_target(url).uri == uri


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8787",
        "ftp://a",
        "http://",
        "http://a:b",
        "http://a:0",
        "http://u:p@a",
        "http://a?b",
        "http://a#b",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidRequest):
        find_target(url)


def test_a_local_servers_key_is_found(no_key: Path) -> None:
    assert find_target("http://127.0.0.1:1").key is None
    (no_key / "api-key").write_text("kept\n")
    for url in ("http://127.0.0.1:1", "http://localhost", "http://[::1]"):
        assert find_target(url).key == "kept"


def test_a_key_that_nobody_named_is_not_sent_elsewhere(no_key: Path) -> None:
    (no_key / "api-key").write_text("kept")
    for url in ("https://boxes.example", "http://10.0.0.1", "http://localhost.example", "http://127.0.0.1.example"):
        assert find_target(url).key is None


def test_what_is_named_wins(no_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (no_key / "api-key").write_text("kept")
    monkeypatch.setenv("SANDBOX_API_KEY", "from-environment")
    assert find_target("http://127.0.0.1").key == "from-environment"
    assert find_target("https://boxes.example").key == "from-environment"
    assert find_target("https://boxes.example", "given").key == "given"


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX-Other: b", "é", "\x7f"])
def test_a_key_cannot_add_headers(key: str) -> None:
    with pytest.raises(InvalidRequest):
        find_target("http://127.0.0.1", key)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(find_target("http://127.0.0.1", "secret"))
