"""The endpoint of the engine: a socket of this machine, or another machine over TLS."""

from __future__ import annotations

import ipaddress
import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidebox.errors import RuntimeUnavailable

_PORT, _TLS_PORT = 2375, 2376
_WINDOWS_PIPE = "npipe:////./pipe/docker_engine"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine's address."""

    name: str
    """As people write it."""
    path: str | None = None
    """Of a socket; of a named pipe on Windows."""
    host: str = ""
    port: int = 0
    tls: ssl.SSLContext | None = None

    @property
    def local(self) -> bool:
        """Whether the engine is on this machine."""
        return self.path is not None


def find_endpoint(given: str | None, environment: Mapping[str, str]) -> Endpoint:
    """The engine that was named, by the settings or as Docker's own clients are told; else one at the usual places.

    Raises ``RuntimeUnavailable``.
    """
    named = given or environment.get("DOCKER_HOST")
    if named:
        return parse_endpoint(named, environment)
    places = usual_places(environment)
    for path in places:
        if _is_socket(path):
            return Endpoint(f"unix://{path}", path)
    if os.name == "nt":
        return parse_endpoint(_WINDOWS_PIPE, environment)
    raise RuntimeUnavailable(
        f"no Docker engine was found: SANDBOX_DOCKER_HOST is not set, and there is no socket at {', '.join(places)}"
    )


def usual_places(environment: Mapping[str, str]) -> list[str]:
    """Return the paths at which engines usually have their sockets: Docker's, then Podman's."""
    session, home = environment.get("XDG_RUNTIME_DIR"), environment.get("HOME")
    places = ["/var/run/docker.sock"]
    places += [f"{session}/docker.sock"] if session else []
    places += [f"{home}/.docker/run/docker.sock", f"{home}/.colima/default/docker.sock"] if home else []
    places += ["/run/podman/podman.sock"]
    places += [f"{session}/podman/podman.sock"] if session else []
    return places


def parse_endpoint(name: str, environment: Mapping[str, str]) -> Endpoint:
    """The address that is written like ``unix:///var/run/docker.sock`` or ``tcp://docker.example:2376``."""
    scheme, _, rest = name.partition("://")
    if scheme in ("unix", "npipe") and rest.startswith("/"):
        return Endpoint(name, rest.replace("/", "\\") if scheme == "npipe" else rest)
    if scheme in ("tcp", "https"):
        try:
            parts = urlsplit(name)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if host:
            certificates = environment.get("DOCKER_CERT_PATH")
            if scheme == "https" or environment.get("DOCKER_TLS_VERIFY") or certificates:
                return Endpoint(name, None, host, port or _TLS_PORT, _context(certificates))
            if _is_loopback(host):
                return Endpoint(name, None, host, port or _PORT)
            raise RuntimeUnavailable(
                f"the Docker engine at {name} is on another machine: that needs TLS (DOCKER_TLS_VERIFY=1, and "
                "DOCKER_CERT_PATH for the directory with ca.pem, cert.pem and key.pem)"
            )
    raise RuntimeUnavailable(f"not the address of a Docker engine: {name[:200]!r} (one is unix:///path or tcp://host)")


def _context(certificates: str | None) -> ssl.SSLContext:
    try:
        if certificates is None:
            return ssl.create_default_context()
        directory = Path(certificates)
        context = ssl.create_default_context(cafile=directory / "ca.pem")
        context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    except (OSError, ssl.SSLError) as error:
        raise RuntimeUnavailable(f"the certificates for the Docker engine cannot be used: {error}") from None
    return context


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
