"""What the egress process reads of hostile programs and resolvers: names in questions, answers, TLS and HTTP."""

from __future__ import annotations

import ipaddress
import ssl
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.egress import dns, sniffing
from tidebox.egress.messages import MOST_BYTES, BoxLimits, Broken, Counted, Serve, encode, process_reader, server_reader
from tidebox.egress.resolver import machine_servers, parse_server
from tidebox.errors import InvalidRequest
from tidebox.model.egress import EgressPolicy, allowlist_of
from tidebox.model.requested_egress import BoxEgress

BOUNDS, COUNTED = BoxLimits(connections=3, bytes=4, rate=5), Counted(1, 2, 3, 4, 5, 6)
ADDRESS = ipaddress.ip_address("192.0.2.7")


def labels(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def answer(name: str, *records: bytes, number: int = 9, code: int = 0, flags: int = 0x8180, kind: int = dns.A) -> bytes:
    head = pack(">6H", number, flags | code, 1, len(records), 0, 0)
    return head + labels(name) + pack(">2H", kind, 1) + b"".join(records)


def record(owner: bytes, kind: int, data: bytes, network: int = 1) -> bytes:
    return owner + pack(">HHIH", kind, network, 60, len(data)) + data


def test_a_question_is_read_and_answered() -> None:
    question = dns.parse_question(pack(">6H", 5, 0x100, 1, 0, 0, 0) + labels("One.Example.com") + pack(">2H", dns.A, 1))
    assert (question.name, question.kind, question.problem) == ("One.Example.com", dns.A, 0)
    said = dns.make_answer(question, dns.NO_ERROR, [ADDRESS, ipaddress.ip_address("2001:db8::1")])
    found = dns.parse_answer(said, 5, "one.example.com", dns.A)
    assert found == dns.DnsAnswer(0, (ADDRESS,))


def test_an_answer_has_as_much_as_its_asker_takes() -> None:
    addresses = [ipaddress.ip_address(f"2001:db8::{number}") for number in range(1, 25)]
    plain = pack(">6H", 5, 0x100, 1, 0, 0, 0) + labels("one.example.com") + pack(">2H", dns.AAAA, 1)
    question = dns.parse_question(plain)
    assert question.room == 512
    cut = dns.make_answer(question, dns.NO_ERROR, addresses, question.room)
    assert 480 < len(cut) <= 512
    found = dns.parse_answer(cut, 5, "one.example.com", dns.AAAA)
    assert found.truncated
    assert found.addresses == tuple(addresses[: len(found.addresses)])
    more = dns.parse_question(dns.make_question(5, "one.example.com", dns.AAAA))
    assert more.room == 1232
    found = dns.parse_answer(dns.make_answer(more, dns.NO_ERROR, addresses, more.room), 5, "one.example.com", dns.AAAA)
    assert found == dns.DnsAnswer(dns.NO_ERROR, tuple(addresses))


def test_what_a_resolver_is_asked_can_be_read() -> None:
    question = dns.parse_question(dns.make_question(77, "a.example.com", dns.AAAA))
    assert (question.number, question.name, question.kind) == (77, "a.example.com", dns.AAAA)


def test_aliases_lead_to_addresses() -> None:
    data = answer(
        "a.com", record(b"\xc0\x0c", dns.CNAME, labels("b.net")), record(labels("b.net"), dns.A, ADDRESS.packed)
    )
    assert dns.parse_answer(data, 9, "a.com", dns.A).addresses == (ADDRESS,)


@pytest.mark.parametrize(
    "data",
    [
        answer("a.com", number=8),
        answer("b.com"),
        answer("a.com", flags=0x0100),
        answer("a.com", kind=dns.AAAA),
        answer("a.com", b"\xc0"),
        answer("a.com", record(b"\xc0\xff", dns.A, ADDRESS.packed)),
        answer("a.com", record(b"\xc0\x1b", dns.A, ADDRESS.packed)),
        answer("a.com")[:20],
        b"",
    ],
    ids=["number", "name", "question", "kind", "cut", "far", "loop", "short", "empty"],
)
def test_an_answer_to_something_else_is_not_believed(data: bytes) -> None:
    with pytest.raises(dns.MalformedDns):
        dns.parse_answer(data, 9, "a.com", dns.A)


def test_addresses_of_other_names_and_of_wrong_sizes_are_left_out() -> None:
    data = answer(
        "a.com",
        record(labels("evil.net"), dns.A, ADDRESS.packed),
        record(b"\xc0\x0c", dns.A, b"123"),
        record(b"\xc0\x0c", dns.A, ADDRESS.packed, network=3),
    )
    assert dns.parse_answer(data, 9, "a.com", dns.A) == dns.DnsAnswer(0, ())


def test_an_answer_that_was_cut_has_the_addresses_that_are_whole() -> None:
    whole = record(b"\xc0\x0c", dns.A, ADDRESS.packed)
    data = answer("a.com", whole, whole[:-2], flags=0x8380)
    assert dns.parse_answer(data, 9, "a.com", dns.A).addresses == (ADDRESS,)


@given(st.binary(max_size=600))
def test_no_bytes_break_the_reader_of_questions(data: bytes) -> None:
    try:
        question = dns.parse_question(data)
    except dns.MalformedDns:
        return
    assert len(dns.make_answer(question, dns.REFUSED)) <= len(data)


@given(st.binary(max_size=80), st.integers(0, 3))
def test_no_bytes_break_the_reader_of_answers(tail: bytes, count: int) -> None:
    data = pack(">6H", 9, 0x8180, 1, count, 0, 0) + labels("a.com") + pack(">2H", dns.A, 1) + tail
    try:
        found = dns.parse_answer(data, 9, "a.com", dns.A)
    except dns.MalformedDns:
        return
    assert len(found.addresses) <= count


def hello(name: str | None) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


HELLO = hello("one.example.com")


def test_the_name_of_tls_is_seen() -> None:
    assert sniffing.sniff(HELLO) == sniffing.Sniffed("tls", "one.example.com")
    assert sniffing.sniff(hello(None)) == sniffing.Sniffed("tls")


def test_every_part_of_a_hello_needs_the_rest() -> None:
    assert {sniffing.sniff(HELLO[:size]) for size in range(1, len(HELLO))} == {sniffing.NEEDED}


@given(st.data())
def test_a_hello_that_was_changed_shows_its_name_or_none_or_hides_it(data: st.DataObject) -> None:
    changed = bytearray(HELLO)
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(1, len(changed) - 1))] = data.draw(st.integers(0, 255))
    sniffing.sniff(bytes(changed))


@given(st.binary(min_size=1, max_size=400))
def test_no_bytes_break_the_looking(data: bytes) -> None:
    for start in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\nHost:"):
        sniffing.sniff(start + data)


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"\0\0\0\x01", sniffing.OTHER),
        (b"SSH-2.0-OpenSSH_9.2\r\n", sniffing.OTHER),
        (b"EHLO there\r\n", sniffing.OTHER),
        (b"\x16\x04\x01\x00\x00", sniffing.OTHER),
        (b"GE", sniffing.NEEDED),
        (b"GET / HTTP/1.1\r\nHost: a", sniffing.NEEDED),
        (b"GET / HTTP/1.0\r\n\r\n", sniffing.Sniffed("http")),
        (b"GET / HTTP/1.1\r\nHost: A.com:8080\r\n\r\n", sniffing.Sniffed("http", "a.com")),
        (b"GET http://u@a.com:1/x HTTP/1.1\nhost:a.com\n\n", sniffing.Sniffed("http", "a.com")),
        (b"GET a.com HTTP/1.1\r\nHost: a.com\r\n\r\n", sniffing.Sniffed("http", contradictory=True)),
        (b"PRI * HTTP/2.0\r\n\r\n", sniffing.Sniffed("http", contradictory=True)),
        (b"GET /" + b"x" * 9000, sniffing.Sniffed("http", contradictory=True)),
        (b"hello", sniffing.Sniffed("", may_turn=True)),
        (b"\r\n", sniffing.Sniffed("", may_turn=True)),
        (b"\x15\x03\x01\0\2\1\x5a\x16", sniffing.Sniffed("tls", contradictory=True)),
        (b"\x14\x03\x03\0\1\1", sniffing.Sniffed("tls", contradictory=True)),
        (b"\x15", sniffing.NEEDED),
        (b"\x15\x04", sniffing.OTHER),
        (b"GET /a b HTTP/1.1\r\n", sniffing.Sniffed("http", contradictory=True)),
        (b"GET\x0b/\x0bHTTP/1.1\r\n", sniffing.Sniffed("http", contradictory=True)),
        (b" GET\xa0/ HTTP/1.1 \x0c \r\n", sniffing.Sniffed("http", contradictory=True)),
        (b"GET\x0b/", sniffing.Sniffed("", may_turn=True)),
        (b"FOO /" + b"x" * 9000, sniffing.Sniffed("", may_turn=True)),
        (b"hello HTTP/1.1 there\n", sniffing.OTHER),
        (b"\0\0\0\x08 HTTP/1.1\n", sniffing.OTHER),
        (b"GET / HTTP/1.1\r\nX: y\rHost: b.com\r\n\r\n", sniffing.Sniffed("http", contradictory=True)),
    ],
)
def test_what_is_seen(data: bytes, seen: object) -> None:
    assert sniffing.sniff(data) == seen


def test_a_line_that_becomes_a_request_is_noticed_before_its_end_is_sent() -> None:
    line = sniffing.FirstLine()
    assert all(line.feed(piece) for piece in (b"QU", b"UX / HT", b"TP/1.1"))
    assert not line.feed(b"\r\n")
    other = sniffing.FirstLine()
    assert all(other.feed(piece) for piece in (b"hello", b" there\n", b"GET / HTTP/1.1\r\n"))


@pytest.mark.parametrize(
    "line",
    [
        b"QUUX /" + b"x" * 100_000 + b" HTTP/1.1\r\n",
        b"QUUX / HTTP/1.1" + b" \t" * 5000 + b"\r\n",
        b"\r\n\r\n GET\x0b/\x0cHTTP/1.1\n",
        b"\xa0QUUX / a b HTTP/1.0\n",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000, 200_000])
def test_no_line_is_too_long_or_too_odd_to_be_a_request(line: bytes, size: int) -> None:
    watch = sniffing.FirstLine()
    pieces = [line[at : at + size] for at in range(0, len(line), size)]
    assert all(map(watch.feed, pieces[:-1]))
    assert not watch.feed(pieces[-1])


@pytest.mark.parametrize("line", [b"QUUX HTTP/1.1 x\n", b"\0 / HTTP/1.1\n", b"a" * 100_000 + b"\n", b"220 HTTP\n"])
def test_other_lines_are_let_by(line: bytes) -> None:
    for size in (1, 5, 100_001):
        watch = sniffing.FirstLine()
        assert all(watch.feed(line[at : at + size]) for at in range(0, len(line), size))
        assert watch.over


@given(st.binary(max_size=300), st.integers(1, 20))
def test_no_bytes_break_the_watching(data: bytes, size: int) -> None:
    for watch in (sniffing.FirstLine(), sniffing.Hellos("a.com")):
        for at in range(0, len(data), size):
            watch.feed(data[at : at + size])


@pytest.mark.parametrize("size", [1, 3, 100, 5000])
@pytest.mark.parametrize("between", [b"", b"\x14\x03\x03\0\1\1", b"\x15\x03\x03\0\2\1\x5a"])
def test_a_second_hello_must_show_the_same_name(size: int, between: bytes) -> None:
    """A server that wants other keys is sent another: its name may be the one that counts there."""

    def passes(*messages: bytes) -> bool:
        watch, data = sniffing.Hellos("one.example.com"), b"".join(messages)
        return all(watch.feed(data[at : at + size]) for at in range(0, len(data), size))

    first, other = hello("one.example.com"), hello("two.example.com")
    assert passes(first, between, first, b"\x17\x03\x03\0\5hello")
    assert not passes(first, between, other)
    body = other[5:]
    cut = [b"\x16\x03\x03" + pack(">H", len(part)) + part for part in (body[:9], body[9:])]
    assert not passes(first, cut[0], between, cut[1])
    # What comes after the keys shows nothing.
    assert passes(first, between, b"\x17\x03\x03\0\1x", other)
    assert passes(first, between, b"\x16\x03\x03\0\4\x10\0\0\0", other)


def test_rules_come_across_as_they_are() -> None:
    lists = [allowlist_of({"hosts": ["*.a.com"], "cidrs": ["10.0.0.0/8"]}), allowlist_of({"ips": ["192.0.2.1"]})]
    sent = Serve.of(BoxEgress(policy=EgressPolicy(tuple(lists), lists[1])), {"x.a.com": ("192.0.2.1",)}, BOUNDS)
    data = encode(sent)
    reader = process_reader()
    found = [message for size in range(len(data)) for message in reader.feed(data[size : size + 1])]
    assert found == [sent]
    assert isinstance(found[0], Serve)
    assert found[0].policy() == EgressPolicy(tuple(lists), lists[1])


@pytest.mark.parametrize("data", [pack(">I", MOST_BYTES + 1), pack(">I", 1) + b"\xc1", encode(COUNTED)])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Broken):
        list(process_reader().feed(data))


def test_counts_come_back() -> None:
    assert list(server_reader().feed(encode(COUNTED))) == [COUNTED]


def test_resolvers_are_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert parse_server("192.0.2.1") == ("192.0.2.1", 53)
    assert parse_server("192.0.2.1:54") == ("192.0.2.1", 54)
    assert parse_server("[2001:db8::1]:54") == ("2001:db8::1", 54)
    for text in ("example.com", "192.0.2.1:0", "192.0.2.1:x", "[::1]x"):
        with pytest.raises(InvalidRequest):
            parse_server(text)
    file = tmp_path_factory.mktemp("etc") / "resolv.conf"
    file.write_text("# x\nnameserver 192.0.2.1\nsearch a\nnameserver fe80::1%eth0\nnameserver bad\n")
    assert machine_servers(file) == (("192.0.2.1", 53), ("fe80::1%eth0", 53))
    assert machine_servers(file.parent / "none") == (("127.0.0.1", 53),)
