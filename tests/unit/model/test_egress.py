"""Allow-lists of names and addresses: what a rule may be, and what is decided by them."""

from __future__ import annotations

import ipaddress
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.errors import InvalidRequest
from tidebox.model.egress import (
    MAX_RULES,
    Allowlist,
    EgressPolicy,
    allowlist_of,
    is_public,
    make_allowlist,
    normal_name,
    parse_address,
    unwrapped,
)

labels = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
names = st.builds(lambda parts, top: ".".join([*parts, top]), st.lists(labels, min_size=1, max_size=3), st.just("test"))
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
networks = st.builds(
    lambda address, cut: ipaddress.ip_network(
        (address, address.max_prefixlen - min(cut, address.max_prefixlen)), False
    ),
    addresses,
    st.integers(0, 32),
)
lists = st.builds(
    lambda hosts, wild, nets, ips: make_allowlist(
        [*hosts, *(f"*.{name}" for name in wild)], map(str, nets), map(str, ips)
    ),
    st.lists(names, max_size=4),
    st.lists(names, max_size=3),
    st.lists(networks, max_size=4),
    st.lists(addresses, max_size=3),
)


def policy(*given: Allowlist, former: Allowlist | None = None) -> EgressPolicy:
    return EgressPolicy(given, former)


def hosts(*given: str) -> Allowlist:
    return make_allowlist(given)


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("*.Example.com", "*.example.com"),
        ("straße.example", "xn--strae-oqa.example"),
        ("*.münchen.example", "*.xn--mnchen-3ya.example"),
        ("localhost", "localhost"),
        ("_service.example.com", "_service.example.com"),
    ],
)
def test_host_rules_have_one_form(given: str, normal: str) -> None:
    assert hosts(given).hosts == (normal,)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "*",
        "*.",
        "*.com",
        "*.*.example.com",
        "a.*.example.com",
        "*example.com",
        "https://example.com",
        "example.com:443",
        "example.com/path",
        "user@example.com",
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "[::1]",
        "::1",
        "a..b",
        ".example.com",
        "example.com..",
        "-a.example",
        "a-.example",
        "a b.example",
        "exa\u0000mple.com",
        "example.com\n",
        "a" * 64 + ".example",
        ".".join(["abcdefgh"] * 32),
        "\u2100.example\ud800",
        7,
        None,
    ],
)
def test_what_is_no_host_is_refused_and_named(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        make_allowlist([given])
    assert refusal.value.details["field"] == "egress.hosts"


@pytest.mark.parametrize("given", ["10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "fe80::%eth0/64", "x/8", "", 5])
def test_what_is_no_network_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        make_allowlist(cidrs=[given])
    assert refusal.value.details["field"] == "egress.cidrs"


@pytest.mark.parametrize("given", ["10.0.0.0/8", "010.0.0.1", "1.2.3", "fe80::1%lo", "example.com", "", None])
def test_what_is_no_address_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        make_allowlist(ips=[given])
    assert refusal.value.details["field"] == "egress.ips"


@pytest.mark.parametrize(
    "given",
    [{"host": ["a.example"]}, {"hosts": "a.example"}, {"hosts": {}}, [], "a.example", {"ports": [443]}, {1: 2}],
)
def test_other_shapes_and_keys_are_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        allowlist_of(given)


def test_a_list_has_at_most_a_thousand_rules() -> None:
    most = [f"h{number}.example" for number in range(MAX_RULES)]
    assert len(allowlist_of({"hosts": most})) == MAX_RULES
    with pytest.raises(InvalidRequest, match="1000"):
        allowlist_of({"hosts": most, "ips": ["1.2.3.4"]})
    with pytest.raises(InvalidRequest, match="1000"):
        allowlist_of({"hosts": ["one.example"] * (MAX_RULES + 1)})


def test_a_wildcard_is_for_names_below_it_alone() -> None:
    found = hosts("*.example.com")
    assert found.by_name("a.example.com") == found.by_name("b.a.example.com") == "*.example.com"
    assert found.by_name("example.com") is None
    assert found.by_name("aexample.com") is None
    assert found.by_name("example.com.evil.test") is None


def test_the_narrowest_rule_for_an_address_is_named() -> None:
    found = make_allowlist(cidrs=["8.0.0.0/8", "8.8.0.0/16"], ips=["8.8.8.8"])
    rules = [found.by_address(parse_address(text)) for text in ("8.8.8.8", "8.8.1.1", "8.1.1.1", "9.1.1.1")]
    assert rules == ["8.8.8.8", "8.8.0.0/16", "8.0.0.0/8", None]


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "::ffff:10.0.0.1",
        "::10.0.0.1",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "64:ff9b::10.0.0.1",
        "2002:a00:1::",
        "2001:db8::1",
        "5f00::1",
    ],
)
def test_special_addresses_need_a_rule_by_address_in_every_list(text: str) -> None:
    address = parse_address(text)
    named = hosts("inside.example")
    everything = make_allowlist(["inside.example"], ["0.0.0.0/0", "::/0"])
    listed = make_allowlist(ips=[text])
    assert not is_public(address)
    assert not policy(named).decide(address, ["inside.example"]).allowed
    assert not policy(everything).decide(address, ["inside.example"]).allowed
    assert not policy(listed, named).decide(address, ["inside.example"]).allowed
    assert not policy(named, listed).decide(address, ["inside.example"]).allowed
    assert policy(listed, listed).decide(address).allowed


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700::1", "64:ff9b::8.8.8.8", "2002:808:808::", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(text: str) -> None:
    assert is_public(parse_address(text))
    assert policy(make_allowlist(cidrs=["0.0.0.0/0", "::/0"])).decide(parse_address(text)).allowed


def test_lists_allow_by_name_or_by_address_each_for_itself() -> None:
    server, run = make_allowlist(cidrs=["8.8.0.0/16"]), hosts("api.example")
    both = policy(server, run)
    assert both.pinned_names() == ("api.example",)
    found = both.decide(parse_address("8.8.8.8"), ["api.example"])
    assert (found.rule, found.names) == ("api.example", frozenset({"api.example"}))
    assert both.decide(parse_address("8.8.8.8")).reason == "no_match"
    assert both.decide(parse_address("9.9.9.9"), ["api.example"]).reason == "no_match"


def test_two_names_do_not_make_up_one_allowed_connection() -> None:
    shared = parse_address("8.8.8.8")
    both = policy(hosts("a.example"), hosts("b.example"))
    assert both.decide(shared, ["a.example", "b.example"]).reason == "no_match"


def test_a_name_in_sight_must_be_one_that_led_to_the_address() -> None:
    found = policy(hosts("*.example.com")).decide(parse_address("8.8.8.8"), ["a.example.com", "evil.test"])
    assert found.seen("A.example.com.").allowed
    assert found.seen(None).allowed
    assert found.seen("b.example.com").reason == "dns_mismatch"
    assert found.seen("evil.test").reason == "dns_mismatch"
    assert found.seen("\u0000").reason == "dns_mismatch"
    by_address = policy(make_allowlist(ips=["8.8.8.8"])).decide(parse_address("8.8.8.8"))
    assert by_address.seen("anything.test").allowed


def test_names_that_are_not_pinned_are_asked_only_where_every_list_has_them_by_name() -> None:
    by_address = make_allowlist(cidrs=["8.0.0.0/8"])
    wild = hosts("*.example.com")
    assert policy(wild).may_ask("a.example.com")
    assert not policy(wild, by_address).may_ask("secret-data.example.com")
    assert not policy(by_address, wild).may_ask("secret-data.example.com")
    assert not policy(wild).may_ask("evil.test")
    assert policy(wild).pinned_names() == ()
    assert not policy().may_ask("a.example.com")


def test_what_the_list_of_the_session_s_first_day_allowed_is_denied_because_the_policy_changed() -> None:
    now, then = hosts("b.example"), hosts("a.example", "b.example")
    found = policy(now, former=then)
    address = parse_address("8.8.8.8")
    assert found.decide(address, ["a.example"]).reason == "policy_changed"
    assert found.denied_name("a.example") == "policy_changed"
    assert found.decide(address, ["c.example"]).reason == found.denied_name("c.example") == "no_match"
    assert found.decide(address, ["b.example"]).allowed


def test_nothing_is_allowed_by_no_list_and_by_an_empty_one() -> None:
    address = parse_address("8.8.8.8")
    assert not policy().decide(address, ["a.example"]).allowed
    assert not policy(Allowlist()).decide(address, ["a.example"]).allowed


def test_a_rule_covers_the_names_of_another() -> None:
    found = hosts("*.example.com", "one.test")
    assert all(map(found.covers, ("a.example.com", "*.example.com", "*.b.example.com", "one.test")))
    assert not any(map(found.covers, ("example.com", "*.one.test", "*.test.example")))


@given(lists, st.lists(lists, max_size=2), addresses, st.lists(names, max_size=3))
def test_another_list_only_takes_away(first: Allowlist, more: list[Allowlist], address: Any, led: list[str]) -> None:
    narrow = policy(first, *more).decide(address, led)
    if narrow.allowed:
        assert all(policy(item).decide(address, led).allowed for item in (first, *more))


@given(lists, addresses, st.lists(names, max_size=3))
def test_a_special_address_is_never_allowed_by_name(found: Allowlist, address: Any, led: list[str]) -> None:
    verdict = policy(found).decide(address, led)
    if verdict.allowed and not is_public(address):
        assert verdict.rule in (*found.cidrs, *found.ips)
        assert verdict.names is None
        network = ipaddress.ip_network(verdict.rule)
        assert not is_public(network[0])
        assert not is_public(network[-1])


@given(lists, addresses)
def test_rules_by_address_agree_with_the_standard_library(found: Allowlist, address: Any) -> None:
    address = unwrapped(address)
    fitting = [rule for rule in (*found.cidrs, *found.ips) if address in ipaddress.ip_network(rule)]
    if is_public(address):
        assert (found.by_address(address) is not None) == bool(fitting)
    assert found.by_address(address) in (None, *fitting)


@given(st.text(max_size=40))
def test_the_normal_form_of_a_name_is_its_own(text: str) -> None:
    normal = normal_name(text)
    if normal is not None:
        assert normal_name(normal) == normal
        assert normal.isascii()


@given(lists)
def test_a_list_is_read_back_as_it_was_shown(found: Allowlist) -> None:
    assert allowlist_of(found.shown()) == found
