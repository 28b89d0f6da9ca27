"""Egress of a box: the allow-list a request asks for, combined with those of its session and of the server.

``RequestedEgress`` is the field of requests and sessions. ``EgressRules.agree`` combines it with the other lists into a
``BoxEgress``, which a runtime is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidebox.errors import InvalidRequest, PolicyUnsupported
from tidebox.model.box import TRUST_FILE
from tidebox.model.egress import Allowlist, EgressPolicy, known_keys, make_allowlist, texts
from tidebox.model.injection import (
    NO_INJECTION,
    NO_SECRETS,
    PLACEHOLDER_PREFIX,
    SIGV4,
    HeaderRule,
    Injection,
    Secrets,
    SigningRule,
    header_rules,
    secret_names,
)
from tidebox.model.package_mirrors import Mirrors

_RULES = ("hosts", "cidrs", "ips")
_KEYS = (*_RULES, "packages", "events", "headers", "secrets")
_FIELD = "egress"

TRUST_VARIABLES = dict.fromkeys(
    (
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "PIP_CERT",
        "AWS_CA_BUNDLE",
        "NPM_CONFIG_CAFILE",
    ),
    TRUST_FILE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedEgress:
    """The ``egress`` field of a request."""

    rules: Allowlist | None = None
    """None where it has none: then those around it are enough."""
    packages: bool = False
    """Whether the mirrors of packages are among its rules."""
    events: bool = False
    """Whether what is allowed and denied is told in the log."""
    headers: tuple[HeaderRule, ...] = ()
    signing: tuple[SigningRule, ...] = ()
    secrets: tuple[str, ...] = ()

    def shown(self) -> dict[str, Any]:
        """As requests have it."""
        shown: dict[str, Any] = {} if self.rules is None else dict(self.rules.shown())
        if self.packages:
            shown["packages"] = True
        if self.events:
            shown["events"] = True
        if self.headers or self.signing:
            shown["headers"] = [*(rule.shown() for rule in self.headers), *(rule.shown() for rule in self.signing)]
        if self.secrets:
            shown["secrets"] = list(self.secrets)
        return shown


def read_requested_egress(given: object, *, field: str = _FIELD) -> RequestedEgress:
    """Parse the ``egress`` field of a request; raises ``InvalidRequest`` naming the invalid part."""
    parts = known_keys(given, _KEYS, field)
    rules = None
    if any(key in parts for key in _RULES):
        rules = make_allowlist(*(texts(parts, key, field) for key in _RULES), field=field)
    headers, signing = header_rules(texts(parts, "headers", field), f"{field}.headers")
    return RequestedEgress(
        rules=rules,
        packages=_flag(parts, "packages", field),
        events=_flag(parts, "events", field),
        headers=headers,
        signing=signing,
        secrets=secret_names(texts(parts, "secrets", field), f"{field}.secrets"),
    )


def requested_egress_of(given: Sequence[str] | Mapping[str, Any]) -> RequestedEgress:
    """Parse the ``egress`` argument of the library; a list is of hosts."""
    if isinstance(given, str):
        raise InvalidRequest("give a list of hosts, not a text", field=_FIELD)
    return read_requested_egress(given if isinstance(given, Mapping) else {"hosts": list(given)})


def _flag(parts: Mapping[str, Any], key: str, field: str) -> bool:
    found = parts.get(key, False)
    if not isinstance(found, bool):
        raise InvalidRequest(f"{field}.{key}: give true or false", field=f"{field}.{key}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxEgress:
    """The egress policy of one box, and the injection into its requests."""

    policy: EgressPolicy
    injection: Injection = NO_INJECTION
    events: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its programs: placeholders of secrets, trusted certificates, package mirrors."""

    def under(self, server: Allowlist | None) -> BoxEgress:
        """The same under another list of the server; what the former one allowed is remembered.

        Where there is none any more nothing is allowed.
        """
        server = server or Allowlist()
        was = self.policy.lists[0]
        if server == was:
            return self
        former = self.policy.former or was
        return replace(
            self, policy=EgressPolicy((server, *self.policy.lists[1:]), None if former == server else former)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRules:
    """The operator's egress rules: the server's own allow-list, the mirrors of packages, and secrets."""

    server: Allowlist | None = None
    """None where there is none: then nobody has a way out, or on a machine of one's own anybody where they like."""
    find_mirrors: Callable[[], Mirrors] | None = None
    """Where packages are got from; it may take long when it is first called."""
    secrets: Secrets = NO_SECRETS
    embedded: bool = False
    """Whether the caller is the operator, in a process of their own."""

    @property
    def offered(self) -> bool:
        """Whether anybody may have a way out."""
        return self.embedded or self.server is not None

    def agree(
        self, asks: Sequence[RequestedEgress], *, user: str, owner: bool, former: Allowlist | None = None, box: str = ""
    ) -> BoxEgress:
        """Combine the requested egress of a box, its session's and then its own, with the server's list.

        ``former`` is the server's list when the session was made. ``box`` makes the placeholders its own.
        """
        if not self.offered:
            raise PolicyUnsupported(
                "network_policy 'allowlist' needs SANDBOX_EGRESS_ALLOWLIST, which this server does not have",
                field="network_policy",
                supported=["deny_all"],
            )
        lists = [found for found in (self.server, *map(self.list_of, asks)) if found is not None]
        if not lists:
            raise InvalidRequest("network_policy 'allowlist' needs egress: there is no list besides", field=_FIELD)
        policy = EgressPolicy(tuple(lists), former if former != self.server else None)
        injection = self._injection(asks, lists, user=user, owner=owner, box=box)
        mirrors = self._mirrors().environment if any(ask.packages for ask in asks) else {}
        return BoxEgress(
            policy=policy,
            injection=injection,
            events=any(ask.events for ask in asks),
            environment={**mirrors, **injection.variables(), **(TRUST_VARIABLES if injection else {})},
        )

    def list_of(self, ask: RequestedEgress) -> Allowlist | None:
        """The rules of what is asked for, mirrors included; None where there are none."""
        if not ask.packages:
            return ask.rules
        mirrors = self._mirrors().allowlist
        return mirrors if ask.rules is None else ask.rules | mirrors

    def _mirrors(self) -> Mirrors:
        if self.find_mirrors is None:
            raise PolicyUnsupported(
                "the allow-list of this server has no mirrors of packages", field=f"{_FIELD}.packages"
            )
        return self.find_mirrors()

    def _injection(
        self, asks: Sequence[RequestedEgress], lists: Sequence[Allowlist], *, user: str, owner: bool, box: str
    ) -> Injection:
        headers = tuple(dict.fromkeys(rule for ask in asks for rule in ask.headers))
        signing = tuple(dict.fromkeys(rule for ask in asks for rule in ask.signing))
        names = tuple(dict.fromkeys(name for ask in asks for name in ask.secrets))
        used = [(rule.host, rule.secret, "value") for rule in headers]
        used += [(rule.host, rule.secret, SIGV4) for rule in signing]
        for host, secret, kind in used:
            self.secrets.usable(secret, (host,), kind, user=user, owner=owner)
            if not all(item.covers(host) for item in lists):
                raise InvalidRequest(
                    f"{_FIELD}.headers: {host} is not allowed by name", field=f"{_FIELD}.headers", host=host
                )
        hosts = {}
        for name in names:
            found = self.secrets.usable(name, None, "value", user=user, owner=owner)
            hosts[name] = tuple(host for host in found.hosts if all(item.covers(host) for item in lists))
            if not hosts[name]:
                raise InvalidRequest(
                    f"{_FIELD}.secrets: none of the hosts of {name} is allowed by name", field=f"{_FIELD}.secrets"
                )
        placeholders = tuple((_placeholder(box, name), name) for name in names)
        return Injection(headers=headers, signing=signing, placeholders=placeholders, hosts=tuple(hosts.items()))


def _placeholder(box: str, name: str) -> str:
    """The placeholder of a secret in one box: letters that no encoding changes."""
    import hashlib

    return PLACEHOLDER_PREFIX + hashlib.sha256(f"{box} {name}".encode()).hexdigest()[:32]
