"""Let a program reach one host, and see what it was denied: python examples/egress.py HOST OTHER-HOST"""

from __future__ import annotations

import sys

import tidebox
from tidebox.model.events import EgressSeen

CODE = """
import sys, urllib.request
for host in sys.stdin.read().split():
    try:
        print(host, urllib.request.urlopen(f"http://{host}/", timeout=20).status)
    except OSError:
        print(host, "is out of reach")
"""

allowed, other = sys.argv[1:3]
seen: list[EgressSeen] = []
result = tidebox.run(CODE, stdin=f"{allowed} {other}", egress=[allowed], on_egress=seen.append)
print(result.text, end="")
for event in seen:
    print("allowed by" if event.allowed else "denied:", event.matched_rule or event.reason, event.host)
