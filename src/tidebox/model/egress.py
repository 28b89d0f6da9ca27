"""Where programs may connect to: allow-lists of names and addresses, and the decision about one connection.

A run is under several lists at once: the server's, its session's and its own. A connection is allowed when each of
them allows it, by name or by address; the lists themselves are never intersected. What nothing allows is denied.

Only the address of a connection is certain. A name counts for it as long as the name was resolved to that address for
this box, and a name that the program shows on the connection must be one of these.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tidebox.errors import InvalidRequest

MAX_RULES = 1000
"""Of one list."""
_MAX_NAME = 253
_WILDCARD = "*."

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Reason = Literal["no_match", "dns_mismatch", "policy_changed"]

NO_MATCH: Reason = "no_match"
DNS_MISMATCH: Reason = "dns_mismatch"
POLICY_CHANGED: Reason = "policy_changed"
REASONS = frozenset(
    {
        NO_MATCH,
        DNS_MISMATCH,
        POLICY_CHANGED,
        "limit",
        "malformed",
        "secret_misplaced",
        "secret_unknown",
        "tls_unverified",
        "unreachable",
        "unsigned",
    }
)
"""All that may be told of: others are a decision of nobody here."""

# What is not the public internet (IANA's special-purpose registries, multicast besides). Python's own tables differ
# between its versions, and know no multicast.
_SPECIAL_4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_SPECIAL_6 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "::/3", "4000::/2", "8000::/1")
)
# Addresses of IPv6 that lead to one of IPv4, which is what counts then.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
# A last part like these makes a name an IPv4 address to most programs: 127.1, 0x7f.1.
_NUMERIC = r"(?:[0-9]+|0x[0-9a-f]*)\Z"


def parse_address(text: str) -> Address:
    """The address a text spells, with the IPv4 address in place of an IPv6 one that only wraps it; or ValueError."""
    if "%" in text:
        raise ValueError("an address with a zone")
    return unwrapped(ipaddress.ip_address(text))


def unwrapped(address: Address) -> Address:
    """The IPv4 address in ``::ffff:a.b.c.d``, and any other address as it is."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@functools.lru_cache(maxsize=4096)
def is_public(address: Address) -> bool:
    """Whether an address is of the public internet: not private, loopback, link-local, metadata, multicast and such."""
    address = unwrapped(address)
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address in _SIX_TO_FOUR:
        return is_public(ipaddress.IPv4Address(int(address) >> 80 & 0xFFFFFFFF))
    return not any(address in network for network in _SPECIAL_6)


def normal_name(text: str) -> str | None:
    """A host name as lists have it (lower case, IDNA, no final dot), or None for what is none."""
    name = text.removesuffix(".")
    if len(name) > _MAX_NAME:
        return None
    if not name.isascii():
        import idna

        try:
            name = idna.encode(name, uts46=True).decode("ascii")
        except idna.IDNAError:
            return None
    name = name.lower()
    labels = name.split(".")
    if len(name) > _MAX_NAME or not all(re.fullmatch(_LABEL, label) for label in labels):
        return None
    return None if re.match(_NUMERIC, labels[-1]) else name


@dataclass(frozen=True, slots=True)
class Allowlist:
    """One list, as its rules in their normal form. Made by ``make_allowlist``."""

    hosts: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
    _networks: Mapping[tuple[int, int], Mapping[int, tuple[str, bool]]] = field(init=False, repr=False, compare=False)
    """By version and prefix length: first address -> rule, and whether the rule is of special addresses alone."""

    def __post_init__(self) -> None:
        table: dict[tuple[int, int], dict[int, tuple[str, bool]]] = {}
        for text in (*self.cidrs, *self.ips):
            network = ipaddress.ip_network(text)
            first = int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
            table.setdefault((network.version, network.prefixlen), {})[first] = (text, _is_special(network))
        # The narrowest rule that fits is the one that is named.
        object.__setattr__(self, "_networks", dict(sorted(table.items(), key=lambda item: -item[0][1])))

    def __len__(self) -> int:
        return len(self.hosts) + len(self.cidrs) + len(self.ips)

    def by_name(self, name: str) -> str | None:
        """The rule that allows a name in its normal form."""
        return _name_rule(self.hosts, name)

    def by_address(self, address: Address) -> str | None:
        """The rule that allows an address.

        A special address needs a rule that is for special addresses: who writes 0.0.0.0/0 means the internet, and not
        the machine's own services.
        """
        address = unwrapped(address)
        bits, value, public = address.max_prefixlen, int(address), is_public(address)
        for (version, prefix), rules in self._networks.items():
            if version == address.version:
                found = rules.get(value >> (bits - prefix))
                if found is not None and (public or found[1]):
                    return found[0]
        return None

    @property
    def has_addresses(self) -> bool:
        """Whether it allows anything by address."""
        return bool(self._networks)

    def covers(self, pattern: str) -> bool:
        """Whether it allows every name that a host rule does."""
        if not pattern.startswith(_WILDCARD):
            return self.by_name(pattern) is not None
        return pattern in self.hosts or _name_rule(self.hosts, pattern.removeprefix(_WILDCARD), exact=False) is not None

    def shown(self) -> dict[str, list[str]]:
        """As requests and settings have it."""
        return {"hosts": list(self.hosts), "cidrs": list(self.cidrs), "ips": list(self.ips)}

    def __or__(self, other: Allowlist) -> Allowlist:
        return make_allowlist((*self.hosts, *other.hosts), (*self.cidrs, *other.cidrs), (*self.ips, *other.ips))


def matches(pattern: str, name: str) -> bool:
    """Whether a host rule, exact or a wildcard, is for a name in its normal form."""
    return _name_rule((pattern,), name) is not None


def _name_rule(hosts: Collection[str], name: str, *, exact: bool = True) -> str | None:
    if exact and name in hosts:
        return name
    parent = name
    while "." in parent:
        parent = parent.partition(".")[2]
        if _WILDCARD + parent in hosts:
            return _WILDCARD + parent
    return None


def make_allowlist(
    hosts: Iterable[object] = (), cidrs: Iterable[object] = (), ips: Iterable[object] = (), *, field: str = "egress"
) -> Allowlist:
    """A list of these rules; raises ``InvalidRequest`` naming the first that is none."""
    names = tuple({host_rule(item, f"{field}.hosts"): None for item in hosts})
    networks = tuple({str(_cidr_rule(item, f"{field}.cidrs")): None for item in cidrs})
    addresses = tuple({str(_ip_rule(item, f"{field}.ips")): None for item in ips})
    if len(names) + len(networks) + len(addresses) > MAX_RULES:
        raise InvalidRequest(f"{field}: more than {MAX_RULES} rules", field=field, limit=MAX_RULES)
    return Allowlist(names, networks, addresses)


def _is_special(network: Network) -> bool:
    if isinstance(network, ipaddress.IPv4Network):
        return any(network.subnet_of(special) for special in _SPECIAL_4)
    return any(network.subnet_of(special) for special in _SPECIAL_6)


def host_rule(item: object, where: str) -> str:
    """A rule for names in its normal form; raises ``InvalidRequest``."""
    text = _text(item, where)
    wildcard = text.startswith(_WILDCARD)
    name = normal_name(text.removeprefix(_WILDCARD))
    if name is None or (wildcard and "." not in name):
        raise InvalidRequest(
            f"{where}: not a host: {text[:80]!r} (one is like example.com or *.example.com, without a scheme, port or "
            "path; addresses go into ips and cidrs)",
            field=where,
        )
    return _WILDCARD + name if wildcard else name


def _cidr_rule(item: object, where: str) -> Network:
    text = _text(item, where)
    try:
        if "/" not in text or "%" in text:
            raise ValueError
        network = ipaddress.ip_network(text)
    except ValueError:
        raise InvalidRequest(
            f"{where}: not a network: {text[:80]!r} (one is like 203.0.113.0/24; the bits after the prefix are 0)",
            field=where,
        ) from None
    wrapped = unwrapped(network.network_address)
    if wrapped.version != network.version and network.prefixlen >= 96:
        return ipaddress.ip_network((wrapped, network.prefixlen - 96))
    return network


def _ip_rule(item: object, where: str) -> Address:
    text = _text(item, where)
    try:
        return parse_address(text)
    except ValueError:
        raise InvalidRequest(f"{where}: not an address: {text[:80]!r}", field=where) from None


def _text(item: object, where: str) -> str:
    if not isinstance(item, str):
        raise InvalidRequest(f"{where}: give texts", field=where)
    return item


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressDecision:
    """The egress decision about one connection: allowed or denied, and by which rule."""

    rule: str | None = None
    """The rule that allows it, of the innermost list; None where it is denied."""
    reason: Reason | None = None
    """Why it is denied."""
    names: frozenset[str] | None = None
    """The names that may be seen on the connection; None for any, where every list allows the address itself."""

    @property
    def allowed(self) -> bool:
        """Whether it may be made."""
        return self.reason is None

    def seen(self, name: str | None) -> EgressDecision:
        """The decision once the program has shown a name on the connection, or that it shows none."""
        if self.reason is not None or self.names is None or name is None or normal_name(name) in self.names:
            return self
        return EgressDecision(reason=DNS_MISMATCH)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The lists that a box is under, outermost (the server's) first."""

    lists: tuple[Allowlist, ...]
    former: Allowlist | None = None
    """The outermost list when the session was made, where it is another now."""

    def pinned_names(self) -> tuple[str, ...]:
        """The names to resolve before the first program: those that a list has exactly and that all may allow.

        A list that does not have the name may still allow the address it has.
        """
        named = dict.fromkeys(host for item in self.lists for host in item.hosts if not host.startswith(_WILDCARD))
        return tuple(
            name for name in named if all(item.has_addresses or item.by_name(name) is not None for item in self.lists)
        )

    def may_ask(self, name: str) -> bool:
        """Whether the box may have a name resolved that was not at its start: every list has it by name.

        Else a program could send out what it likes as questions for names.
        """
        return bool(self.lists) and all(item.by_name(name) is not None for item in self.lists)

    def decide(self, address: Address, names: Iterable[str] = ()) -> EgressDecision:
        """Whether a connection to ``address`` may be made, to which ``names`` were resolved for this box."""
        address = unwrapped(address)
        verdict = _decide(self.lists, address, names := tuple(names))
        if verdict.allowed or self.former is None:
            return verdict
        before = _decide((self.former, *self.lists[1:]), address, names)
        return EgressDecision(reason=POLICY_CHANGED) if before.allowed else verdict

    def denied_name(self, name: str) -> Reason:
        """Why a name that the box asked for is not resolved."""
        if self.former is not None and all(item.by_name(name) for item in (self.former, *self.lists[1:])):
            return POLICY_CHANGED
        return NO_MATCH

    def shown(self) -> list[dict[str, list[str]]]:
        """As data."""
        return [item.shown() for item in self.lists]


def _decide(lists: tuple[Allowlist, ...], address: Address, names: Iterable[str]) -> EgressDecision:
    by_address = [item.by_address(address) for item in lists]
    if lists and all(rule is not None for rule in by_address):
        return EgressDecision(rule=by_address[-1])
    if not lists or not is_public(address):
        return EgressDecision(reason=NO_MATCH)
    rules = {}
    for name in names:
        found = [here or item.by_name(name) for here, item in zip(by_address, lists, strict=True)]
        if all(rule is not None for rule in found):
            rules[name] = found[-1]
    if not rules:
        return EgressDecision(reason=NO_MATCH)
    return EgressDecision(rule=next(iter(rules.values())), names=frozenset(rules))


def allowlist_of(given: object, *, field: str = "egress") -> Allowlist:
    """A list from ``{"hosts": […], "cidrs": […], "ips": […]}``, and nothing else in it."""
    parts = known_keys(given, ("hosts", "cidrs", "ips"), field)
    return make_allowlist(*(texts(parts, key, field) for key in ("hosts", "cidrs", "ips")), field=field)


def known_keys(given: object, known: Collection[str], where: str) -> Mapping[str, Any]:
    """An object that has no other keys than these; raises ``InvalidRequest``."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{where}: give an object", field=where)
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        raise InvalidRequest(
            f"{where}: no such key: {unknown[0][:80]!r} (known: {', '.join(known)})", field=f"{where}.{unknown[0][:80]}"
        )
    return given


def texts(parts: Mapping[str, Any], key: str, where: str) -> list[object]:
    """A list under a key; an absent one is empty."""
    found = parts.get(key, [])
    if not isinstance(found, (list, tuple)):
        raise InvalidRequest(f"{where}.{key}: give a list", field=f"{where}.{key}")
    if len(found) > MAX_RULES:
        raise InvalidRequest(f"{where}: more than {MAX_RULES} rules", field=where, limit=MAX_RULES)
    return list(found)
