"""Which mirrors pip, npm and apt of this machine are configured for: each is asked itself.

A box has none of the machine's configuration, so pip and npm are told of the mirrors by variables. Passwords in the
addresses of mirrors stay here.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import subprocess
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, urlsplit

from tidebox.model.egress import is_public, make_allowlist, normal_name, unwrapped
from tidebox.model.package_mirrors import Mirrors

_SECONDS = 20.0
_PIP_DEFAULTS = (
    "from pip._internal.models.index import PyPI; print(PyPI.simple_url); print('https://' + PyPI.file_storage_domain)"
)


def find_mirrors(environment: Mapping[str, str]) -> Mirrors:
    """Ask each tool that is there; one that is not, or does not answer, has none."""
    pip, pip_others = _pip(environment)
    npm = _first(_urls(_ask(["npm", "config", "get", "registry"], environment)))
    apt = _urls(_ask(["apt-get", "--print-uris", "update"], environment).replace("'", " "))
    found = [url for url in (*pip, *pip_others, npm, *apt) if url is not None]
    hosts = {name: None for url in found if (name := normal_name(url.hostname or "")) is not None}
    addresses = {str(address): None for url in found for address in _special_addresses(url)}
    variables = {}
    if pip:
        variables["PIP_INDEX_URL"] = _shown(pip[0])
        if len(pip) > 1:
            variables["PIP_EXTRA_INDEX_URL"] = " ".join(map(_shown, pip[1:]))
        trusted = " ".join(dict.fromkeys(url.netloc.rpartition("@")[2] for url in pip if url.scheme == "http"))
        variables |= {"PIP_TRUSTED_HOST": trusted} if trusted else {}
    if npm is not None:
        variables["NPM_CONFIG_REGISTRY"] = _shown(npm)
    return Mirrors(make_allowlist(hosts, (), addresses), variables)


def _pip(environment: Mapping[str, str]) -> tuple[list[SplitResult], list[SplitResult]]:
    """Its indexes, and where else it gets files from."""
    listed = _ask(["python3", "-m", "pip", "config", "list"], environment)
    settings = dict(re.findall(r"^(?:global|install|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    indexes = _urls(settings.get("index-url", "").replace("\\n", " "))
    others: list[SplitResult] = []
    if not indexes:
        indexes, others = _split(_urls(_ask(["python3", "-c", _PIP_DEFAULTS], environment)))
    return indexes + _urls(settings.get("extra-index-url", "").replace("\\n", " ")), others


def _split(urls: list[SplitResult]) -> tuple[list[SplitResult], list[SplitResult]]:
    return urls[:1], urls[1:]


def _ask(command: list[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _urls(text: str) -> list[SplitResult]:
    found = []
    for word in dict.fromkeys(text.split()):
        try:
            url = urlsplit(word)
            usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:
            continue
        if usable:
            found.append(url)
    return found


def _first(urls: list[SplitResult]) -> SplitResult | None:
    return urls[0] if urls else None


def _special_addresses(url: SplitResult) -> Iterable[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses of a mirror that only a rule by address allows: one within the machine's own network."""
    try:
        found = socket.getaddrinfo(url.hostname, None, type=socket.SOCK_STREAM)
        addresses = {unwrapped(ipaddress.ip_address(str(item[4][0]).partition("%")[0])) for item in found}
    except (OSError, ValueError):
        return []
    return [address for address in addresses if not is_public(address)]


def _shown(url: SplitResult) -> str:
    """Without a user and a password."""
    return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
