"""What the programs of these tests begin with."""

from __future__ import annotations

import textwrap

from tests.egress.world import ALL, rules

PRELUDE = """
import errno, os, socket, ssl, struct, sys, threading, time, urllib.error, urllib.request

def told(error):
    number = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror):
        return "unresolved"
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.headers.get('x-tidebox-egress')}"
    if isinstance(error, urllib.error.URLError):
        return told(error.reason)
    return errno.errorcode.get(number, type(error).__name__)

def attempt(work):
    try:
        print(work())
    except Exception as error:
        print("denied", told(error))

def get(url, host=None):
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    return urllib.request.urlopen(request, timeout=20).read().decode().strip()

def talk(address, data=b"", family=None):
    with socket.socket(family or (socket.AF_INET6 if ":" in address[0] else socket.AF_INET)) as sock:
        sock.settimeout(20)
        sock.connect(address)
        if data:
            sock.sendall(data)
        return sock.recv(4096).decode("latin-1")

def secure(address, name):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(address, 20) as sock, context.wrap_socket(sock, server_hostname=name) as tls:
        tls.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        return tls.recv(4096).decode().splitlines()[-1]
"""


def python(text: str) -> str:
    """A program with those helpers."""
    return PRELUDE + textwrap.dedent(text)


ONLY_ONE = rules(ALL, {"hosts": ["one.example.com"]})
