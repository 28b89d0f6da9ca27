"""Secrets that are put into requests: who may use them, where they are put, and what never comes back."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.config import load_settings
from tidebox.egress import secrets, sigv4
from tidebox.egress.rewriting import MISPLACED, Mask, RequestRefused, Rewriter, Scanner, hidden_values
from tidebox.egress.secrets import AwsKeys, Value
from tidebox.errors import Forbidden, InvalidRequest, PolicyUnsupported
from tidebox.model.egress import Allowlist, allowlist_of
from tidebox.model.injection import Injection, Secrets, secret_info
from tidebox.model.package_mirrors import Mirrors
from tidebox.model.requested_egress import TRUST_VARIABLES, BoxEgress, EgressRules, read_requested_egress

SECRETS = Secrets(
    {
        "API_KEY": secret_info("API_KEY", {"value": None, "hosts": ["api.example.com"]}, "x"),
        "SHARED": secret_info("SHARED", {"value": None, "hosts": ["*.example.com"], "users": ["ada"]}, "x"),
        "CLOUD": secret_info("CLOUD", {"aws": None, "hosts": ["*.example.com"], "users": ["*"]}, "x"),
    }
)
RULES = EgressRules(server=allowlist_of({"hosts": ["*.example.com"]}), secrets=SECRETS)
VALUES = {
    "API_KEY": Value("value-of-the-key", hosts=("api.example.com",)),
    "SHARED": Value("a value/with&signs", hosts=("*.example.com",)),
    "CLOUD": Value(aws=AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"), hosts=("*.example.com",)),
}
HEADER = {"host": "api.example.com", "name": "Authorization", "secret": "API_KEY", "format": "Bearer {}"}


def agree(ask: dict[str, Any], *, user: str = "ada", owner: bool = False, rules: EgressRules = RULES) -> BoxEgress:
    return rules.agree([read_requested_egress(ask)], user=user, owner=owner, box="b1")


def rewriter(host: str = "api.example.com", **ask: Any) -> tuple[Rewriter, Injection]:
    injection = agree({"hosts": ["*.example.com"], **ask}, owner=True).injection
    return Rewriter(injection, VALUES, host), injection


def head(*headers: tuple[bytes, bytes], host: bytes = b"api.example.com") -> list[tuple[bytes, bytes]]:
    return [(b"host", host), *headers]


# What may be asked for


def test_a_secret_is_for_those_that_the_operator_names_and_for_its_hosts() -> None:
    with pytest.raises(Forbidden):
        agree({"headers": [HEADER]})
    with pytest.raises(Forbidden):
        agree({"secrets": ["SHARED"]}, user="bob")
    with pytest.raises(Forbidden):
        agree({"headers": [{**HEADER, "host": "other.example.com"}]}, owner=True)
    assert agree({"headers": [HEADER]}, owner=True).injection.opened("api.example.com")
    found = agree({"secrets": ["SHARED"]})
    assert set(found.environment) == {"TIDEBOX_SECRET_SHARED", *TRUST_VARIABLES}
    signed = agree({"headers": [{"host": "s3.example.com", "kind": "aws_sigv4", "secret": "CLOUD"}]}, user="bob")
    assert signed.injection.opened("s3.example.com")


def test_a_secret_that_is_not_there_looks_like_one_that_may_not_be_used() -> None:
    messages = []
    for name in ("API_KEY", "NONE"):
        with pytest.raises(Forbidden) as refusal:
            agree({"secrets": [name]}, user="bob")
        messages.append(refusal.value.message.replace(name, "?"))
    assert messages[0] == messages[1]


def test_a_host_of_a_secret_must_be_allowed_by_name_in_every_list() -> None:
    with pytest.raises(InvalidRequest, match="by name"):
        agree({"hosts": ["other.example.com"], "headers": [HEADER]}, owner=True)
    with pytest.raises(InvalidRequest, match="by name"):
        agree({"cidrs": ["8.0.0.0/8"], "secrets": ["API_KEY"]}, owner=True)


@pytest.mark.parametrize(
    "rule",
    [
        {"host": "api.example.com", "secret": "API_KEY"},
        {**HEADER, "name": "Host"},
        {**HEADER, "name": "Content-Length"},
        {**HEADER, "name": "X: y\r\nZ"},
        {**HEADER, "format": "no place"},
        {**HEADER, "format": "{} and {}"},
        {**HEADER, "format": "{}\r\nX: y"},
        {**HEADER, "format": "{} "},
        {**HEADER, "secret": "lower"},
        {**HEADER, "host": "*"},
        {**HEADER, "value": "x"},
        {**HEADER, "kind": "basic"},
        {"host": "a.example.com", "kind": "aws_sigv4", "secret": "CLOUD", "region": "Über"},
        "text",
    ],
)
def test_header_rules_that_cannot_be(rule: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_requested_egress({"headers": [rule]})


def test_a_secret_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="another kind"):
        agree({"headers": [{**HEADER, "secret": "CLOUD"}]}, owner=True)


def test_an_ask_is_read_back_as_it_was_shown() -> None:
    ask = {
        "hosts": ["a.example.com"],
        "cidrs": [],
        "ips": [],
        "packages": True,
        "events": True,
        "headers": [HEADER, {"host": "s3.example.com", "kind": "aws_sigv4", "secret": "CLOUD", "region": "eu-west-1"}],
        "secrets": ["API_KEY"],
    }
    assert read_requested_egress(read_requested_egress(ask).shown()) == read_requested_egress(ask)


@pytest.mark.parametrize("ask", [{"hostz": []}, {"packages": 1}, {"events": "yes"}, {"headers": {}}, [], None, "x"])
def test_other_keys_and_shapes_are_refused(ask: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_requested_egress(ask)


def test_without_a_list_of_the_server_nobody_is_let_out() -> None:
    with pytest.raises(PolicyUnsupported):
        agree({"hosts": ["a.example.com"]}, owner=True, rules=EgressRules())
    embedded = EgressRules(embedded=True)
    assert [item.hosts for item in agree({"hosts": ["a.test"]}, owner=True, rules=embedded).policy.lists] == [
        ("a.test",)
    ]
    with pytest.raises(InvalidRequest, match="no list"):
        agree({"events": True}, owner=True, rules=embedded)


def test_an_ask_without_rules_is_under_the_server_s_alone_and_an_empty_one_reaches_nothing() -> None:
    assert agree({"events": True}).policy.lists == (RULES.server,)
    assert agree({"hosts": []}).policy.lists == (RULES.server, Allowlist())


def test_mirrors_of_packages_are_among_the_rules() -> None:
    mirrors = Mirrors(
        allowlist_of({"hosts": ["mirror.example.com"]}), {"PIP_INDEX_URL": "https://mirror.example.com/simple"}
    )
    rules = EgressRules(server=RULES.server, find_mirrors=lambda: mirrors)
    found = agree({"packages": True}, rules=rules)
    assert found.policy.lists[-1].hosts == ("mirror.example.com",)
    assert found.environment == mirrors.environment
    both = agree({"packages": True, "hosts": ["a.example.com"]}, rules=rules)
    assert both.policy.lists[-1].hosts == ("a.example.com", "mirror.example.com")
    with pytest.raises(PolicyUnsupported):
        agree({"packages": True})


def test_a_run_of_an_earlier_server_is_under_the_list_of_this_one() -> None:
    before = agree({"hosts": ["a.example.com", "b.example.com"]})
    now = before.under(allowlist_of({"hosts": ["a.example.com"]}))
    assert now.policy.denied_name("b.example.com") == "policy_changed"
    assert now.policy.denied_name("c.example.com") == "no_match"
    assert before.under(RULES.server) is before
    assert not before.under(None).policy.may_ask("a.example.com")


# The file of secrets


def stored(path: Path, content: Any, mode: int = 0o600) -> Path:
    file = path / "secrets.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    file.chmod(mode)
    return file


def test_the_server_learns_everything_of_secrets_but_their_values(tmp_path: Path) -> None:
    found = secrets.describe(
        stored(
            tmp_path,
            {
                "API_KEY": {"value": "the-value-itself", "hosts": ["API.example.com"], "users": ["ada"]},
                "CLOUD": {"aws": {"access_key_id": "AK", "secret_access_key": "SK"}, "hosts": ["*.example.com"]},
            },
        )
    )
    assert found.known["API_KEY"].hosts == ("api.example.com",)
    assert found.known["CLOUD"].kind == "aws_sigv4"
    assert "the-value-itself" not in repr(found)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "JSON object"),
        ("[]", "JSON object"),
        ({"low": {"value": "secret-value", "hosts": ["a.test"]}}, "name of a secret"),
        ({"A": {"value": "secret-value"}}, "name the hosts"),
        ({"A": {"value": "secret-value", "hosts": ["*"]}}, "not a host"),
        ({"A": {"hosts": ["a.test"]}}, "either a value or aws"),
        ({"A": {"value": "secret-value\n", "hosts": ["a.test"]}}, "printable"),
        ({"A": {"value": "", "hosts": ["a.test"]}}, "give a text"),
        ({"A": {"value": ["secret-value"], "hosts": ["a.test"]}}, "give a text"),
        ({"A": {"aws": {"access_key_id": "secret-value"}, "hosts": ["a.test"]}}, "secret_access_key"),
        ({"A": {"value": "secret-value", "hosts": ["a.test"], "more": 1}}, "no such key"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_without_its_values(tmp_path: Path, content: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match="SANDBOX_EGRESS_SECRETS") as refusal:
        secrets.describe(stored(tmp_path, content))
    assert problem in refusal.value.message
    assert "secret-value" not in refusal.value.message


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    content = {"A": {"value": "v", "hosts": ["a.test"]}}
    with pytest.raises(InvalidRequest, match="0600"):
        secrets.describe(stored(tmp_path, content, 0o640))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        secrets.describe(tmp_path / "none")
    with pytest.raises(InvalidRequest, match="not a file"):
        secrets.describe(tmp_path)


# What is done to a request


def test_a_header_rule_replaces_what_the_program_wrote() -> None:
    found, _ = rewriter(headers=[HEADER])
    done = found.rewrite(b"/", head((b"authorization", b"Bearer mine"), (b"accept-encoding", b"gzip")))
    assert [value for name, value in done.headers if name == b"authorization"] == [b"Bearer value-of-the-key"]
    assert [value for name, value in done.headers if name == b"accept-encoding"] == [b"identity"]
    assert done.packed == ()


def test_a_placeholder_becomes_the_secret_in_headers_paths_and_passwords() -> None:
    found, injection = rewriter(secrets=["SHARED"])
    placeholder = injection.placeholders[0][0].encode()
    basic = b"Basic " + base64.b64encode(b"me:" + placeholder)
    done = found.rewrite(
        b"/bot" + placeholder + b"/x?key=" + placeholder,
        head((b"x-key", b"token " + placeholder), (b"authorization", basic)),
    )
    assert done.target == b"/bota%20value%2Fwith%26signs/x?key=a%20value%2Fwith%26signs"
    assert (b"x-key", b"token a value/with&signs") in done.headers
    assert (b"authorization", b"Basic " + base64.b64encode(b"me:a value/with&signs")) in done.headers
    assert done.packed == (base64.b64encode(b"me:a value/with&signs"),)


@pytest.mark.parametrize("where", ["target", "header", "password", "name"])
def test_a_placeholder_for_another_host_is_refused(where: str) -> None:
    found, injection = rewriter("other.example.com", secrets=["API_KEY", "SHARED"])
    placeholder = next(item for item, name in injection.placeholders if name == "API_KEY").encode()
    headers = head(host=b"other.example.com")
    if where == "header":
        headers.append((b"x-key", placeholder))
    elif where == "name":
        headers.append((b"x-" + placeholder, b"1"))
    elif where == "password":
        headers.append((b"authorization", b"basic " + base64.b64encode(b":" + placeholder)))
    with pytest.raises(RequestRefused) as refusal:
        found.rewrite(b"/?k=" + placeholder if where == "target" else b"/", headers)
    assert refusal.value.reason == MISPLACED


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"/", b"evil.test"),
        (b"/", b"api.example.com.evil.test"),
        (b"https://evil.test/", b"api.example.com"),
        (b"https://api.example.com@evil.test/", b"api.example.com"),
        (b"evil.test:443", b"api.example.com"),
    ],
)
def test_every_request_is_for_the_host_of_its_connection(target: bytes, host: bytes) -> None:
    found, _ = rewriter(headers=[HEADER])
    with pytest.raises(RequestRefused) as refusal:
        found.rewrite(target, head(host=host))
    assert refusal.value.reason == "dns_mismatch"
    assert "value-of-the-key" not in str(refusal.value)


def test_a_host_with_a_port_is_the_same_host() -> None:
    found, _ = rewriter(headers=[HEADER])
    assert found.rewrite(b"*", head(host=b"API.example.com:8443")).target == b"*"


def test_a_secret_that_is_gone_is_said_so() -> None:
    injection = agree({"headers": [HEADER]}, owner=True).injection
    with pytest.raises(RequestRefused) as refusal:
        Rewriter(injection, {}, "api.example.com").rewrite(b"/", head())
    assert refusal.value.status == 502


@pytest.mark.parametrize("ask", [{"headers": [HEADER]}, {"secrets": ["API_KEY"]}])
def test_a_secret_that_the_operator_took_from_a_host_is_not_sent_there(ask: dict[str, Any]) -> None:
    """Whatever was agreed upon when the run was accepted: the file may have changed since."""
    injection = agree(ask, owner=True).injection
    values = {"API_KEY": Value("value-of-the-key", hosts=("other.example.com",))}
    headers = head((b"x-key", injection.placeholders[0][0].encode() if injection.placeholders else b""))
    with pytest.raises(RequestRefused) as refusal:
        Rewriter(injection, values, "api.example.com").rewrite(b"/", headers)
    assert refusal.value.reason == "secret_unknown"


@given(st.lists(st.sampled_from(["tidebox-secret-", "0123456789abcdef" * 2, "x", "tidebox-"]), max_size=8), st.data())
def test_a_placeholder_is_found_however_it_is_cut(parts: list[str], data: st.DataObject) -> None:
    known = "tidebox-secret-" + "0123456789abcdef" * 2
    text = "".join(parts).encode()
    scanner = Scanner([known])
    found = False
    while text:
        size = data.draw(st.integers(1, len(text)))
        try:
            scanner.feed(text[:size])
        except RequestRefused:
            found = True
            break
        text = text[size:]
    assert found == (known in "".join(parts))


@given(st.lists(st.sampled_from([b"secret", b"sec", b"ret", b"secsecret", b"."]), max_size=10), st.data())
def test_what_comes_back_is_hidden_however_it_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    mask = Mask([b"secret"])
    mask.hide([b"ret."])
    text, out = b"".join(parts), b""
    rest = text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out += mask.feed(rest[:size])
        rest = rest[size:]
    out += mask.flush()
    assert len(out) == len(text)
    assert b"secret" not in out


def test_as_much_is_held_back_whatever_it_is() -> None:
    """Else a program that has a server repeat its guesses would see which of them a secret begins with."""
    for guess in (b"sec", b"see", b"xxx", b"secre", b"secrex", b"\0"):
        mask = Mask([b"secret", b"other"])
        out = mask.feed(b"data: " + guess)
        assert len(out) == len(b"data: " + guess) - 5
        assert mask.holds
        assert out + mask.release() == b"data: " + guess
        assert not mask.holds


@pytest.mark.parametrize("size", range(1, 6))
def test_of_a_value_that_comes_very_slowly_the_rest_is_hidden(size: int) -> None:
    mask = Mask([b"secret"])
    out = mask.feed(b"a " + b"secret"[:size]) + mask.release()
    out += mask.feed(b"secret"[size:] + b" and secret") + mask.flush()
    assert out == b"a " + b"secret"[:size] + b"*" * (6 - size) + b" and ******"


def test_no_more_is_looked_for_than_there_may_be() -> None:
    """A program packs its password with as many names as it likes."""
    mask = Mask([b"secret"])
    for number in range(1000):
        mask.hide([b"packed-%d" % number])
    assert mask.whole(b"secret packed-999 packed-1") == b"*" * 6 + b" " + b"*" * 10 + b" packed-1"
    assert len(mask._hidden) <= 32


def test_every_secret_of_a_box_is_hidden_whatever_was_put_in() -> None:
    injection = agree({"headers": [HEADER], "secrets": ["SHARED"]}, owner=True).injection
    assert hidden_values(injection, VALUES) == (
        b"value-of-the-key",
        b"a value/with&signs",
        b"a%20value%2Fwith%26signs",
    )


# Signatures, by the examples of the specification


@pytest.mark.parametrize(
    ("method", "target", "headers", "signature"),
    [
        ("GET", "/", [], "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", [], "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            [],
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
    ],
)
def test_signatures(method: str, target: str, headers: list[tuple[bytes, bytes]], signature: str) -> None:
    keys = AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    given_headers = [(b"host", b"example.amazonaws.com"), *headers, (b"authorization", b"old"), (b"x-amz-date", b"old")]
    done = sigv4.sign(
        method, target, given_headers, keys, sigv4.SigningScope("us-east-1", "service"), empty, "20150830T123600Z"
    )
    (authorization,) = (value.decode() for name, value in done if name == b"authorization")
    assert authorization == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={signature}"
    )


def test_the_scope_of_a_program_s_own_signature_is_kept() -> None:
    value = b"AWS4-HMAC-SHA256 Credential=none/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    assert sigv4.scope_in([(b"authorization", value)]) == sigv4.SigningScope("eu-west-1", "s3")
    assert sigv4.scope_in([(b"authorization", b"Bearer x")]) is None


# Settings


def test_settings_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("EGRESS_ALLOWLIST", "example.com"),
        ("EGRESS_ALLOWLIST", '{"hosts": ["*"]}'),
        ("EGRESS_ALLOWLIST", '{"headers": []}x'),
        ("EGRESS_ALLOWLIST", '{"events": true}'),
        ("EGRESS_RESOLVER", "resolver.example"),
        ("EGRESS_RESOLVER", "192.0.2.1:0"),
        ("EGRESS_PROXY", "https://proxy.example"),
        ("EGRESS_PROXY", "http://user:pass-word@"),
        ("EGRESS_CONNECTIONS", "0"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"SANDBOX_{name}", text)
            with pytest.raises(InvalidRequest, match=f"SANDBOX_{name}") as refusal:
                load_settings()
            assert "pass-word" not in refusal.value.message


def test_settings_of_egress(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "{}", '{"hosts": []}'):
        monkeypatch.setenv("SANDBOX_EGRESS_ALLOWLIST", text)
        assert load_settings().egress_allowlist is None
    monkeypatch.setenv("SANDBOX_EGRESS_ALLOWLIST", '{"hosts": ["A.example"], "packages": true}')
    monkeypatch.setenv("SANDBOX_EGRESS_RESOLVER", "2001:db8::53")
    found = load_settings()
    assert found.egress_allowlist is not None
    assert found.egress_allowlist.shown() == {"hosts": ["a.example"], "cidrs": [], "ips": [], "packages": True}
    assert found.egress_resolver == "[2001:db8::53]:53"
    monkeypatch.setenv("SANDBOX_EGRESS_RESOLVER", "192.0.2.1:5353")
    assert load_settings().egress_resolver == "192.0.2.1:5353"
