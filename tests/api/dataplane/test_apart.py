"""Two sandboxes side by side: of one, nothing is reachable from the other."""

from __future__ import annotations

import json
from typing import Any

from tests.api.dataplane.plane import Plane

MARK = "the-other-ones-secret"

# Leaves something wherever programs can meet, and waits to be found.
HOME = f"""
import ctypes, os, socket, threading, time
secret = {MARK!r}
for place in ("/workspace", "/tmp", "/dev/shm"):
    open(f"{{place}}/{{secret}}", "w").write(secret)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.msgget(4711, 0o1666) >= 0 and libc.shmget(4711, 4096, 0o1666) >= 0
tcp = socket.create_server(("127.0.0.1", 4711))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 4711))
local = socket.socket(socket.AF_UNIX)
local.bind("\\0" + secret)
local.listen()
os.environ["SECRET"] = secret
print("ready", flush=True)
time.sleep(600)
"""

# Looks everywhere, and tells what it found.
STRANGER = f"""
import ctypes, json, os, socket
secret = {MARK!r}
found = []
for place, _, names in os.walk("/", followlinks=False):
    if place.startswith("/proc") and place.count("/") > 2:
        continue
    found += [f"{{place}}/{{name}}" for name in names if secret in name]
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cmdline", "environ"):
        try:
            text = open(f"/proc/{{pid}}/{{name}}", "rb").read().decode("utf-8", "replace")
        except OSError:
            continue
        if secret in text and int(pid) != os.getpid():
            found.append(f"{{name}} of {{pid}}")
libc = ctypes.CDLL(None, use_errno=True)
if libc.msgget(4711, 0) >= 0:
    found.append("message queue")
if libc.shmget(4711, 0, 0) >= 0:
    found.append("shared memory")
for family, address in ((socket.AF_INET, ("127.0.0.1", 4711)), (socket.AF_UNIX, "\\0" + secret)):
    with socket.socket(family) as sock:
        sock.settimeout(2)
        try:
            sock.connect(address)
            found.append(f"socket {{address!r}}")
        except OSError:
            pass
found += [line for line in open("/proc/net/unix") if secret in line]
processes = [int(pid) for pid in filter(str.isdigit, os.listdir("/proc"))]
signalled = []
for pid in range(2, 400):
    if pid != os.getpid():
        try:
            os.kill(pid, 0)
            signalled.append(pid)
        except OSError:
            pass
print(json.dumps({{"found": found, "processes": len(processes), "signalled": signalled}}))
"""


def look(plane: Plane, token: str) -> dict[str, Any]:
    with plane.client(token) as http:
        answer = http.post("/v1/exec", json={"command": ["python3", "-c", STRANGER], "timeout_ms": 60_000}).json()
    assert answer["exit_code"] == 0, answer
    seen: dict[str, Any] = json.loads(answer["stdout"])
    return seen


def test_nothing_of_one_is_reachable_from_another(plane: Plane) -> None:
    here, there = plane.sandbox(), plane.sandbox()
    token = plane.token(here)
    with plane.socket("/v1/exec/ws", token) as socket:
        socket.send("start", command=["python3", "-c", HOME])
        socket.expect("ready")
        socket.read_until("ready")
        # A process in the same namespace finds all of it, so it is there to be found.
        own = look(plane, token)
        assert {"message queue", "shared memory", "socket ('127.0.0.1', 4711)"} <= set(own["found"])
        assert {f"{place}/{MARK}" for place in ("/workspace", "/tmp", "/dev/shm")} <= set(own["found"])
        assert any("cmdline" in found for found in own["found"])
        assert own["signalled"]
        strange = look(plane, plane.token(there))
        assert (strange["found"], strange["signalled"]) == ([], [])
        # The program itself, and its init where that cannot be hidden.
        assert strange["processes"] <= 2
