"""Which server, and with what key."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from tidebox.config import load_settings
from tidebox.errors import InvalidRequest
from tidebox.model.principal import SOURCE_HEADER, SOURCES, find_source

DEFAULT_URL = "http://127.0.0.1:8787"
KEY_FILE = "api-key"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class Target:
    """A server's socket and the key for it."""

    uri: str
    key: str | None = field(repr=False)
    local: bool

    @property
    def http_url(self) -> str:
        """What the paths of requests are below."""
        return "http" + self.uri.removeprefix("ws").removesuffix("/ws")

    @property
    def ws_url(self) -> str:
        """What the paths of other sockets are below."""
        return self.uri.removesuffix("/ws")


def find_target(url: str, api_key: str | None = None) -> Target:
    """The socket of the server at ``url``, with the key that is given or else found.

    Found is a key in the environment (``SANDBOX_API_KEY``) or, for a server on this machine only, the one that server
    keeps in its data directory: a key that nobody named is not sent elsewhere.
    """
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    try:
        usable = scheme is not None and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidRequest(f"not the address of a server: {url!r} (for example {DEFAULT_URL})", field="url")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidRequest("a server's address has no user, query or fragment", field="url")
    path = parts.path.rstrip("/")
    uri = urlunsplit((scheme, parts.netloc, path if path.endswith("/ws") else path + "/ws", "", ""))
    local = is_local(parts.hostname or "")
    key = api_key if api_key is not None else _find_key(local)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InvalidRequest("a key is printable ASCII text", field="api_key")
    return Target(uri, key, local)


def source_headers(source: str) -> dict[str, str]:
    """The header in which a client says what kind of program it is."""
    if find_source(source) is None:
        raise InvalidRequest(f"source: give one of {', '.join(SOURCES)}", field="source")
    return {SOURCE_HEADER: source}


def is_local(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _find_key(local: bool) -> str | None:
    settings = load_settings()
    if settings.api_key is not None or not local:
        return settings.api_key
    try:
        return (settings.data_dir / KEY_FILE).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
