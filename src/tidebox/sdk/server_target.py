"""Lookup of the server address and API key: the one order in which clients and the command line look for both.

The server is

1. the address that is given (``url=``, ``--server URL``),
2. that of the profile that is given (``--profile``),
3. ``TIDEBOX_URL``,
4. that of the profile ``TIDEBOX_PROFILE``, or of the last login,
5. ``http://127.0.0.1:8787``.

The key is

1. the one that is given (``api_key=``), or that of the profile that is given,
2. ``TIDEBOX_API_KEY``,
3. the one that is stored for a profile with that address,
4. ``SANDBOX_API_KEY``,
5. for a server on this machine only, the one in its data directory: a key that nobody named is not sent elsewhere.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from tidebox.config import ClientSettings, load_client_settings, load_settings
from tidebox.errors import InvalidRequest
from tidebox.model.principal import SOURCE_HEADER, SOURCES, find_source
from tidebox.sdk.profiles import Profile, Profiles

DEFAULT_URL = "http://127.0.0.1:8787"
KEY_FILE = "api-key"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server's socket and the key for it."""

    uri: str
    key: str | None = field(repr=False)
    local: bool

    @property
    def http_url(self) -> str:
        """The base URL of requests."""
        return "http" + self.uri.removeprefix("ws").removesuffix("/ws")

    @property
    def ws_url(self) -> str:
        """The base URL of other sockets."""
        return self.uri.removesuffix("/ws")


def find_target(url: str | None = None, api_key: str | None = None, *, profile: str | None = None) -> ServerTarget:
    """The socket of the server that is meant, with the key for it; see the module for what is looked at in turn."""
    settings = load_client_settings()
    named = None
    if url is None:
        named = _named_profile(settings, profile)
        url = named.url if named is not None else settings.url or DEFAULT_URL
    elif profile is not None:
        raise InvalidRequest("give a server or a profile, not both", field="profile")
    uri, host = _socket_of(url)
    local = is_local(host)
    key = api_key
    if key is None and profile is not None and named is not None:
        key = named.api_key
    if key is None:
        key = settings.api_key or _stored_key(settings, uri) or _servers_own_key(local)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InvalidRequest("a key is printable ASCII text", field="api_key")
    return ServerTarget(uri, key, local)


def _named_profile(settings: ClientSettings, profile: str | None) -> Profile | None:
    """The profile that says which server is meant, if one does."""
    if profile is None and settings.url is not None:
        return None
    stored = Profiles.load(settings.config_dir)
    name = profile or settings.profile or stored.current
    return None if name is None else stored.get(name)


def _stored_key(settings: ClientSettings, uri: str) -> str | None:
    """The key of a profile of the same server."""
    for stored in Profiles.load(settings.config_dir).profiles.values():
        if stored.api_key is not None and _socket_of(stored.url)[0] == uri:
            return stored.api_key
    return None


def _socket_of(url: str) -> tuple[str, str]:
    """The address of a server's socket, and its host."""
    try:
        parts = urlsplit(url)
        scheme = _SCHEMES[parts.scheme]
        if not parts.hostname or parts.port == 0:
            raise ValueError(url)
    except (ValueError, KeyError):
        raise InvalidRequest(f"not the address of a server: {url!r} (for example {DEFAULT_URL})", field="url") from None
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidRequest("a server's address has no user, query or fragment", field="url")
    path = parts.path.rstrip("/")
    uri = urlunsplit((scheme, parts.netloc, path if path.endswith("/ws") else path + "/ws", "", ""))
    return uri, parts.hostname or ""


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


def _servers_own_key(local: bool) -> str | None:
    settings = load_settings()
    if settings.api_key is not None or not local:
        return settings.api_key
    try:
        return (settings.data_dir / KEY_FILE).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
