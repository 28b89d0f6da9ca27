"""Secrets that programs use and never hold: what is put into their requests on the way out.

A program sees no value. A header rule puts a secret into every request to a host; a placeholder, which the program has
in a variable, is replaced by the secret in requests to the hosts of that secret; a signing rule signs requests anew.
All of it happens in the egress process, which alone knows the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidebox.errors import Forbidden, InvalidRequest
from tidebox.model.egress import Allowlist, host_rule, known_keys, matches, texts

MAX_INJECTED = 32
"""Header rules of one request, and placeholders."""
VARIABLE_PREFIX = "TIDEBOX_SECRET_"
PLACEHOLDER_PREFIX = "tidebox-secret-"
SIGV4 = "aws_sigv4"
EVERYBODY = "*"
_MAX_FORMAT = 256

_SECRET_NAME = r"[A-Z][A-Z0-9_]{0,63}\Z"
_HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}\Z"
_SCOPE = r"[a-z0-9-]{1,64}\Z"
# What frames a request, or names where it goes, is not for rules to set.
_FRAMING = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRule:
    """A header that every request to a host is given, in place of one that the program wrote."""

    host: str
    name: str
    secret: str
    format: str = "{}"
    """The header's value, with the secret in place of ``{}``."""

    def shown(self) -> dict[str, str]:
        """As requests have it."""
        shown = {"host": self.host, "name": self.name, "secret": self.secret}
        return shown if self.format == "{}" else {**shown, "format": self.format}


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningRule:
    """Requests to a host are signed with AWS Signature Version 4."""

    host: str
    secret: str
    region: str | None = None
    service: str | None = None
    """Where None, as the program's own signature says."""

    def shown(self) -> dict[str, str]:
        """As requests have it."""
        scope = {"region": self.region, "service": self.service}
        given = {key: value for key, value in scope.items() if value is not None}
        return {"host": self.host, "kind": SIGV4, "secret": self.secret, **given}


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """The headers, signatures and secrets that the egress process puts into the requests of one box."""

    headers: tuple[HeaderRule, ...] = ()
    signing: tuple[SigningRule, ...] = ()
    placeholders: tuple[tuple[str, str], ...] = ()
    """The placeholder that programs have in place of each secret, with the secret's name."""
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The hosts that each secret with a placeholder is for."""

    def __bool__(self) -> bool:
        return bool(self.headers or self.signing or self.placeholders)

    def opened(self, name: str) -> bool:
        """Whether connections to a host are looked into."""
        patterns = [rule.host for rule in self.headers] + [rule.host for rule in self.signing]
        patterns += [pattern for _, found in self.hosts for pattern in found]
        return any(matches(pattern, name) for pattern in patterns)

    def variables(self) -> dict[str, str]:
        """The environment variables that hold the placeholders."""
        return {VARIABLE_PREFIX + name: placeholder for placeholder, name in self.placeholders}


NO_INJECTION = Injection()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretInfo:
    """The facts about a secret known outside the egress process: everything but its value."""

    name: str
    hosts: tuple[str, ...]
    users: tuple[str, ...] = ()
    """Who may use it besides the operator; ``*`` for everybody."""
    kind: str = "value"

    def may_use(self, user: str, *, owner: bool) -> bool:
        """Whether somebody may use it; ``owner`` is the holder of the server's key, or of the machine."""
        return owner or user in self.users or EVERYBODY in self.users


def header_rules(given: list[object], where: str) -> tuple[tuple[HeaderRule, ...], tuple[SigningRule, ...]]:
    """The rules under ``headers``, of both kinds."""
    if len(given) > MAX_INJECTED:
        raise InvalidRequest(f"{where}: more than {MAX_INJECTED} rules", field=where, limit=MAX_INJECTED)
    headers, signing = [], []
    for number, item in enumerate(given):
        here = f"{where}[{number}]"
        if isinstance(item, Mapping) and item.get("kind") == SIGV4:
            parts = known_keys(item, ("host", "kind", "secret", "region", "service"), here)
            signing.append(
                SigningRule(
                    host=host_rule(parts.get("host"), f"{here}.host"),
                    secret=secret_name(parts.get("secret"), f"{here}.secret"),
                    region=_scope(parts, "region", here),
                    service=_scope(parts, "service", here),
                )
            )
            continue
        parts = known_keys(item, ("host", "name", "secret", "format"), here)
        headers.append(
            HeaderRule(
                host=host_rule(parts.get("host"), f"{here}.host"),
                name=_header_name(parts.get("name"), f"{here}.name"),
                secret=secret_name(parts.get("secret"), f"{here}.secret"),
                format=_format(parts.get("format", "{}"), f"{here}.format"),
            )
        )
    return tuple(headers), tuple(signing)


def secret_names(given: list[object], where: str) -> tuple[str, ...]:
    """The secrets that programs have placeholders of."""
    if len(given) > MAX_INJECTED:
        raise InvalidRequest(f"{where}: more than {MAX_INJECTED} secrets", field=where, limit=MAX_INJECTED)
    return tuple(dict.fromkeys(secret_name(item, where) for item in given))


def secret_name(item: object, where: str) -> str:
    """The name of a secret; raises ``InvalidRequest``."""
    if not isinstance(item, str) or not re.match(_SECRET_NAME, item):
        raise InvalidRequest(
            f"{where}: give the name of a secret: capitals, digits and _, such as API_KEY", field=where
        )
    return item


def _header_name(item: object, where: str) -> str:
    if not isinstance(item, str) or not re.match(_HEADER_NAME, item) or item.lower() in _FRAMING:
        raise InvalidRequest(f"{where}: give the name of a header that rules may set", field=where)
    return item


def _format(item: object, where: str) -> str:
    # White space around it would be in no header.
    is_text = isinstance(item, str) and len(item) <= _MAX_FORMAT and item.strip() == item
    if not isinstance(item, str) or not is_text or item.count("{}") != 1 or not _is_printable(item):
        raise InvalidRequest(f"{where}: give a text with one {{}} in it, such as 'Bearer {{}}'", field=where)
    return item


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _scope(parts: Mapping[str, Any], key: str, where: str) -> str | None:
    found = parts.get(key)
    if found is not None and (not isinstance(found, str) or not re.match(_SCOPE, found)):
        raise InvalidRequest(f"{where}.{key}: give a text such as eu-central-1", field=f"{where}.{key}")
    return found


def secret_info(name: str, given: object, where: str) -> SecretInfo:
    """Parse the facts about a secret from its entry, without its value."""
    here = f"{where}.{name}"
    parts = known_keys(given, ("value", "hosts", "users", "aws"), here)
    secret_name(name, here)
    patterns = tuple(host_rule(item, f"{here}.hosts") for item in texts(parts, "hosts", here))
    if not patterns:
        raise InvalidRequest(f"{here}.hosts: name the hosts that the secret is for", field=f"{here}.hosts")
    users = texts(parts, "users", here)
    if not all(isinstance(user, str) and user for user in users):
        raise InvalidRequest(f"{here}.users: give names of users, or *", field=f"{here}.users")
    if ("value" in parts) == ("aws" in parts):
        raise InvalidRequest(f"{here}: give either a value or aws", field=here)
    kind = SIGV4 if "aws" in parts else "value"
    return SecretInfo(name=name, hosts=patterns, users=tuple(map(str, users)), kind=kind)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets that an operator has, by what is known of them."""

    known: Mapping[str, SecretInfo]

    def usable(self, name: str, hosts: tuple[str, ...] | None, kind: str, *, user: str, owner: bool) -> SecretInfo:
        """A secret that somebody may use in this way; raises ``InvalidRequest`` or ``Forbidden``, naming it.

        One that they may not use is like one that does not exist.
        """
        found = self.known.get(name)
        if found is None or not found.may_use(user, owner=owner):
            raise Forbidden(f"no such secret, or not yours to use: {name}", field="egress", secret=name)
        if found.kind != kind:
            raise InvalidRequest(f"the secret {name} is of another kind", field="egress", secret=name)
        allowed = Allowlist(found.hosts)
        for host in hosts or ():
            if not allowed.covers(host):
                raise Forbidden(f"the secret {name} is not for {host}", field="egress", secret=name, host=host)
        return found


NO_SECRETS = Secrets({})
