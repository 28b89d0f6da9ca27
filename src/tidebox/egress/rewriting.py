"""Puts secrets into one request on its way out, or refuses it; hides them in answers. Nothing here touches a socket."""

from __future__ import annotations

import base64
import binascii
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from tidebox.egress.secrets import AwsKeys, Value
from tidebox.egress.sigv4 import Headers
from tidebox.model.egress import matches, normal_name
from tidebox.model.injection import PLACEHOLDER_PREFIX, Injection, SigningRule

MISPLACED = "secret_misplaced"
"""Reason of a denial: a placeholder was sent to a host that its secret is not for."""
MALFORMED = "malformed"
_PLACEHOLDER = re.compile(re.escape(PLACEHOLDER_PREFIX.encode()) + rb"[0-9a-f]{32}")
_LONGEST = len(PLACEHOLDER_PREFIX) + 32
_MASK = b"*"
# Passwords that a program has packed with names of its own.
_MOST_PACKED = 16


class RequestRefused(Exception):
    """A request that must not go on; its text is for the program."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        """For the audit."""


@dataclass(frozen=True, slots=True)
class Signing:
    """A signature that the request is to be given once its body is known."""

    rule: SigningRule
    keys: AwsKeys


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A request as it goes on."""

    target: bytes
    headers: Headers
    packed: tuple[bytes, ...]
    """Encodings that secrets were packed into: they must not come back, as the secrets must not."""
    signing: Signing | None = None


class Rewriter:
    """The rules of one box for one host."""

    def __init__(self, injection: Injection, values: Mapping[str, Value], host: str) -> None:
        self._host = host
        self._values = values
        self._headers = [rule for rule in injection.headers if matches(rule.host, host)]
        self._signing = next((rule for rule in injection.signing if matches(rule.host, host)), None)
        names = {name for name, hosts in injection.hosts if any(matches(item, host) for item in hosts)}
        self._placeholders = {item.encode(): name for item, name in injection.placeholders if name in names}
        self.scanner = Scanner(item for item, name in injection.placeholders if name not in names)

    def rewrite(self, target: bytes, headers: Headers) -> Rewritten:
        """The request with secrets in it; raises ``RequestRefused``. Names of headers are in lower case."""
        self._check_host(target, headers)
        names = [name for name, _ in headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            raise RequestRefused(400, MALFORMED, "a request whose length is said in two ways")
        packed: list[bytes] = []
        target = _PLACEHOLDER.sub(lambda found: self._in_target(found[0]), target)
        found = [(name, self._in_header(name, value, packed)) for name, value in headers]
        for rule in self._headers:
            secret = self._text(rule.secret).encode()
            name = rule.name.lower().encode()
            found = [item for item in found if item[0] != name]
            found.append((name, rule.format.encode().replace(b"{}", secret)))
        signing = None
        if self._signing is not None:
            keys = self._value(self._signing.secret).aws
            if keys is None:
                raise _unknown(self._signing.secret)
            signing = Signing(self._signing, keys)
        for part in (target, *(part for item in found for part in item)):
            self.scanner.check_whole(part)
        # What comes back is searched for what was put in, and packed it could not be.
        found = [item for item in found if item[0] != b"accept-encoding"] + [(b"accept-encoding", b"identity")]
        return Rewritten(target, found, tuple(packed), signing)

    def _check_host(self, target: bytes, headers: Headers) -> None:
        """Every request of a connection is for the host that it was opened for."""
        hosts = [value for name, value in headers if name == b"host"]
        authority = re.match(rb"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?([^/?#]*)", target)
        hosts += [authority[1]] if authority else []
        if not target.startswith((b"/", b"*")) and not authority:
            raise RequestRefused(400, "dns_mismatch", "a request for no path")
        for host in hosts:
            name = re.sub(rb":[0-9]*\Z", b"", host).decode("latin-1")
            if normal_name(name) != self._host:
                raise RequestRefused(421, "dns_mismatch", f"this connection is for {self._host}")

    def _in_target(self, placeholder: bytes) -> bytes:
        name = self._placeholders.get(placeholder)
        return placeholder if name is None else quote(self._text(name), safe="").encode()

    def _in_header(self, name: bytes, value: bytes, packed: list[bytes]) -> bytes:
        def swap(found: re.Match[bytes]) -> bytes:
            secret = self._placeholders.get(found[0])
            return found[0] if secret is None else self._text(secret).encode()

        if name == b"authorization" and value[:6].lower() == b"basic ":
            # A user and a password, which clients pack before anybody can look for a placeholder in it.
            try:
                plain = base64.b64decode(value[6:].strip(), validate=True)
            except (binascii.Error, ValueError):
                return value
            swapped = _PLACEHOLDER.sub(swap, plain)
            self.scanner.check_whole(swapped)
            if swapped != plain:
                packed.append(base64.b64encode(swapped))
                return value[:6] + packed[-1]
            return value
        return _PLACEHOLDER.sub(swap, value)

    def _text(self, name: str) -> str:
        text = self._value(name).text
        if not text:
            raise _unknown(name)
        return text

    def _value(self, name: str) -> Value:
        found = self._values.get(name)
        if found is None or not any(matches(item, self._host) for item in found.hosts):
            raise _unknown(name)
        return found


def hidden_values(injection: Injection, values: Mapping[str, Value]) -> tuple[bytes, ...]:
    """Return the values that must not come back to a box, in any answer: a server may keep one for another request."""
    used = [rule.secret for rule in injection.headers] + [rule.secret for rule in injection.signing]
    used += [name for _, name in injection.placeholders]
    found: list[str] = []
    for name in dict.fromkeys(used):
        value = values.get(name, Value())
        keys = () if value.aws is None else (value.aws.secret_access_key, value.aws.session_token)
        found += [text for text in (value.text, *keys) if text]
    return tuple(dict.fromkeys(form.encode() for text in found for form in (text, quote(text, safe=""))))


def _unknown(name: str) -> RequestRefused:
    return RequestRefused(502, "secret_unknown", f"the secret {name} is not there any more, or not for this host")


class Scanner:
    """Looks for placeholders in bytes that go where their secrets do not."""

    def __init__(self, placeholders: Iterable[str]) -> None:
        self._known = frozenset(item.encode() for item in placeholders)
        self._tail = b""

    def check_whole(self, data: bytes) -> None:
        """Refuse a piece that has a placeholder in it."""
        if self._known and any(found in self._known for found in _PLACEHOLDER.findall(data)):
            raise RequestRefused(
                403, MISPLACED, "a placeholder of a secret was sent to a host that the secret is not for"
            )

    def feed(self, data: bytes | memoryview) -> None:
        """The same for the next bytes of a stream, in which a placeholder may be cut into pieces."""
        if self._known:
            joined = self._tail + bytes(data)
            self.check_whole(joined)
            self._tail = joined[-(_LONGEST - 1) :]


class Mask:
    """Hides what was put into requests where a server sends it back; as many bytes come out as went in.

    A value may come in pieces, so the end of a stream waits for what follows: always as many bytes. Were
    only those held back that a value begins with, a program that has a server repeat its guesses would see which are.
    """

    def __init__(self, values: Iterable[bytes]) -> None:
        """``values`` are always hidden."""
        self._values = tuple(dict.fromkeys(values))
        self._packed: deque[bytes] = deque(maxlen=_MOST_PACKED)
        self._arrange()
        self._held = self._gone = b""

    def _arrange(self) -> None:
        # The longest first: one may be a part of another.
        self._hidden = tuple(sorted({*self._values, *self._packed}, key=len, reverse=True))
        self._most = len(self._hidden[0]) - 1 if self._hidden else 0

    def hide(self, values: Iterable[bytes]) -> None:
        """Hide these too from now on, until there are many others: a program makes as many as it likes."""
        new = [value for value in values if value not in self._hidden]
        if new:
            self._packed.extend(new)
            self._arrange()

    def whole(self, data: bytes) -> bytes:
        """A piece that is not continued."""
        for value in self._hidden:
            data = data.replace(value, _MASK * len(value))
        return data

    @property
    def holds(self) -> bool:
        """Whether something waits for what follows."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """The next bytes of a stream, but for those at its end."""
        gone = len(self._gone)
        joined = self.whole(self._gone + self._held + data)
        end = max(len(joined) - self._most, gone)
        self._held = joined[end:]
        self._gone = joined[max(end - self._most, 0) : end]
        return joined[gone:end]

    def release(self) -> bytes:
        """Return the bytes held back, when nothing followed for a while; the rest of a value that goes on is hidden."""
        held, self._held = self._held, b""
        self._gone = (self._gone + held)[-self._most :] if self._most else b""
        return held

    def flush(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        held, self._held, self._gone = self._held, b"", b""
        return held
