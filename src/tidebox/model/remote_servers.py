"""Other servers whose sandboxes are given out here, as an operator names them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

AUTO = "auto"
LOCAL = "local"
RELAY, DIRECT = "relay", "direct"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_FIELDS = frozenset({"name", "url", "api_key", "api_key_file", "mode", "ca"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteServer:
    """Another server, the key by which it knows this one, and how its sandboxes are reached."""

    name: str
    url: str
    api_key: str | None = field(default=None, repr=False)
    api_key_file: Path | None = None
    mode: str = RELAY
    """``relay``: through this server, with its tokens; ``direct``: at the other one, with the tokens of that."""
    ca: Path | None = None
    """Certificates to trust, where those of the system do not do."""


def read_servers(text: str) -> tuple[RemoteServer, ...]:
    """The servers in a JSON list; raises ``ValueError``, whose text has nothing of the keys."""
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ValueError("give a JSON list of objects")
    servers = tuple(map(_server, found))
    if len({server.name for server in servers}) < len(servers):
        raise ValueError("two have the same name")
    return servers


def _server(item: Mapping[str, Any]) -> RemoteServer:
    if not item.keys() <= _FIELDS or not all(isinstance(value, str) and value for value in item.values()):
        raise ValueError(f"each has texts called {', '.join(sorted(_FIELDS))}, and nothing else")
    name = item.get("name", "")
    if not _NAME.fullmatch(name) or name in (AUTO, LOCAL):
        raise ValueError(f"name: give lower-case letters, digits, '-', '_' and '.', and not {AUTO} or {LOCAL}")
    if ("api_key" in item) == ("api_key_file" in item):
        raise ValueError(f"{name}: give either api_key or api_key_file")
    if item.get("mode", RELAY) not in (RELAY, DIRECT):
        raise ValueError(f"{name}: mode is {RELAY} or {DIRECT}")
    paths = {key: Path(item[key]) for key in ("api_key_file", "ca") if key in item}
    return RemoteServer(**{**item, **paths, "url": _url(name, item.get("url", ""))})


def _url(name: str, text: str) -> str:
    # Loaded only where there is one: a program that is run without a server waits for every import.
    from urllib.parse import urlsplit

    wrong = ValueError(f"{name}: url begins with http:// or https://, names a server, and has no user and no query")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise wrong from None
    if not usable or parts.username is not None or parts.query or parts.fragment:
        raise wrong
    if not text.isprintable() or " " in text:
        raise wrong
    return text.rstrip("/")
