"""Looks at every guarantee twice: what the runtime says it enforces, and what a program in a box sees of it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on, start_of
from tidebox.errors import TideboxError
from tidebox.model.box import BoxSpec
from tidebox.model.images import HOST
from tidebox.model.limits import MIB
from tidebox.model.preloads import SETS
from tidebox.model.result import Outcome, Result
from tidebox.model.runtimes import BOUNDARIES, Finding, Guarantee, RuntimeReport

# Printed by a program in a box: what it is, what it sees, what it is refused.
_LOOK_AROUND = """
import ctypes, json, os
def ask(number):
    return str(ctypes.CDLL(None).prctl(number, 0, 0, 0, 0))
def link(name):
    try:
        return os.readlink("/proc/self/ns/" + name)
    except OSError:
        return None
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
try:
    open("/usr/tidebox-doctor", "w")
    writable = True
except OSError:
    writable = False
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": int(status["CapPrm"], 16) | int(status["CapEff"], 16) | int(status.get("CapAmb", "0"), 16),
    "no_new_privs": status.get("NoNewPrivs", ask(39)).strip(),
    "seccomp": status.get("Seccomp", ask(21)).strip(),
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]],
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "namespaces": {name: link(name) for name in ("user", "pid", "net", "ipc", "uts", "mnt")},
    "root_read_only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
    "writable": writable,
    "file_system": os.stat("/usr").st_dev,
}))
"""
_FORK_UNTIL_REFUSED = """
import os, time
children = 0
try:
    while children < 64:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        children += 1
except OSError:
    pass
print(children)
"""
_BUSY = "import time\nend = time.monotonic() + 0.4\nwhile time.monotonic() < end: pass"
_FILL_DISK = "open('/workspace/f', 'wb').write(bytes(4 << 20))"
_FILL_MEMORY = "x = bytearray(b'x') * (256 << 20)"

# Those that say which version they are.
_INTERPRETERS = ("python3", "node", "elixir")
_FEW_PIDS = 8
_CPU_SHARE = 0.25
_ENOUGH = 20.0
_MOST_IMAGES = 20


@dataclass(frozen=True, slots=True)
class Check:
    """One guarantee: what the runtime says, what was seen."""

    guarantee: str
    state: str
    how: str
    seen: str
    remedy: str | None


@dataclass(frozen=True, slots=True)
class HostInterpreter:
    """An interpreter of the host image."""

    name: str
    path: str | None
    version: str | None
    """The version that it reports in a box."""


@dataclass(frozen=True, slots=True)
class ImageStart:
    """The way an interpreter starts in boxes of an image."""

    image: str
    language: str
    start: str
    """forked, parked or cold; ``none`` where the image has no such interpreter that works."""


@dataclass(frozen=True, slots=True)
class Examination:
    """All that was found."""

    runtime: str
    checks: list[Check]
    interpreters: list[HostInterpreter] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    images: list[ImageStart] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether every guarantee is enforced."""
        return self.problem is None and all(check.state == "enforced" for check in self.checks)


async def examine(runtime: str | None = None) -> Examination:
    """Probe a runtime, or the default one, and look at its boxes from inside."""
    named = {} if runtime is None else {"default_runtime": runtime}
    # Where a guarantee is missing the others are still worth seeing.
    engine = Engine(load_settings(allow_weak_isolation=True, **named), pool=False)
    try:
        report = await engine.probe()
        if not report.available:
            checks = [_missing(finding) for finding in report.findings]
            return Examination(report.runtime, checks, problem=report.reason)
        try:
            seen = await _see(engine)
        except TideboxError as error:
            checks = [_missing(finding) for finding in report.findings]
            return Examination(report.runtime, checks, facts=dict(report.facts), problem=error.message)
        interpreters = await _interpreters(engine)
        report = await _preloads(engine, report)
        checks = [_missing(f) if not f.enforced else _checked(f, *seen[f.guarantee]) for f in report.findings]
        images = [
            ImageStart(image.name, language, await start_of(engine, language, image.name) or "none")
            for image in engine.runtime.images()[:_MOST_IMAGES]
            for language in ("python", "javascript")
        ]
        return Examination(report.runtime, checks, interpreters, dict(report.facts), images=images)
    finally:
        await engine.close()


async def _preloads(engine: Engine, report: RuntimeReport) -> RuntimeReport:
    """The report, with what is loaded before programs start and what is not."""
    loaded = []
    forks = engine.runtime.shows_host and engine.runtime.start_of("python", HOST) == "forked"
    for name in SETS if forks else ():
        try:
            async with asyncio.timeout(_ENOUGH):
                await engine.runtime.warm(BoxSpec(preload=name))
            loaded.append(name)
        except (TideboxError, TimeoutError):
            continue  # what is not there, or why not, is said below
    facts = (await engine.probe()).facts if loaded else report.facts
    return replace(report, facts={**facts, "loaded before programs": ", ".join(loaded) or "nothing"})


def _own_namespace(name: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return None  # boxes are on another machine, or this is not Linux


def _missing(finding: Finding) -> Check:
    return Check(finding.guarantee.value, "missing", finding.how, "", finding.remedy)


def _checked(finding: Finding, holds: bool, seen: str) -> Check:
    return Check(finding.guarantee.value, "enforced" if holds else "broken", finding.how, seen, finding.remedy)


async def _see(engine: Engine) -> dict[Guarantee, tuple[bool, str]]:
    """For each guarantee whether it holds, and what shows it."""
    look = _looked(await run_on(engine, _LOOK_AROUND, timeout=_ENOUGH))
    # The namespaces of another kernel are apart, no matter what that kernel calls them.
    other_kernel = BOUNDARIES.index(engine.runtime.boundary) >= BOUNDARIES.index("user_kernel")
    apart = {name for name, link in look["namespaces"].items() if other_kernel or link != _own_namespace(name)}
    if engine.runtime.boundary != "namespaces":
        # Its users are other ones without a namespace of their own, too.
        apart.add("user")

    def is_apart(*names: str) -> bool:
        return set(names) <= apart

    seen = {
        Guarantee.USER_SEPARATION: (look["uid"] != 0 and is_apart("user"), f"uid {look['uid']}"),
        Guarantee.FILE_SYSTEM: (
            look["root_read_only"] and not look["writable"] and is_apart("mnt"),
            "/ is read-only" if look["root_read_only"] and not look["writable"] else "/ can be written",
        ),
        Guarantee.PRIVATE_FILES: (
            look["file_system"] != os.stat("/usr").st_dev,
            f"/usr is file system {look['file_system']}, the machine's is {os.stat('/usr').st_dev}",
        ),
        Guarantee.PROCESSES: (
            is_apart("pid") and len(look["processes"]) <= 2,
            f"processes {', '.join(map(str, look['processes']))}",
        ),
        Guarantee.NETWORK: (
            is_apart("net") and look["interfaces"] == ["lo"],
            f"interfaces {', '.join(look['interfaces'])}",
        ),
        Guarantee.IPC: (is_apart("ipc", "uts"), "a kernel of its own" if other_kernel else "namespaces of its own"),
        Guarantee.SYSCALL_FILTER: (look["seccomp"] == "2", f"seccomp mode {look['seccomp']}"),
        Guarantee.NO_PRIVILEGES: (
            look["capabilities"] == 0 and look["no_new_privs"] == "1",
            f"capabilities {look['capabilities']:x}, no_new_privs {look['no_new_privs']}",
        ),
    }
    for guarantee, (code, limits, judge) in _TRIALS.items():
        seen[guarantee] = judge(await run_on(engine, code, **{"timeout": _ENOUGH, **limits}))
    return seen


def _looked(result: Result) -> dict[str, Any]:
    if not result.ok:
        raise TideboxError(f"a program in a box failed: {result.stderr.decode(errors='replace')}")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def _outcome_is(expected: Outcome) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: (result.outcome is expected, f"one too greedy: {result.outcome.value}")


def _forks_were_refused(result: Result) -> tuple[bool, str]:
    count = int(result.stdout or b"64")
    return count < _FEW_PIDS, f"{count + 1} of {_FEW_PIDS} allowed, then refused"


def _cpu_was_shared(result: Result) -> tuple[bool, str]:
    used = result.usage.cpu_seconds
    if used is None:
        return False, "not measured"
    # A quota is given out in slices of 0.1 s, and starting up is work too.
    return (
        used <= 2 * _CPU_SHARE * result.usage.wall_seconds,
        f"{used / result.usage.wall_seconds:.2f} cpu of {_CPU_SHARE}",
    )


def _disk_was_full(result: Result) -> tuple[bool, str]:
    full = b"No space left" in result.stderr
    return full, "full at its size" if full else "not full at its size"


_Trial = tuple[str, dict[str, Any], Callable[[Result], tuple[bool, str]]]
_TRIALS: dict[Guarantee, _Trial] = {
    Guarantee.MEMORY: (_FILL_MEMORY, {"memory": 64 * MIB}, _outcome_is(Outcome.OOM)),
    Guarantee.PIDS: (_FORK_UNTIL_REFUSED, {"pids": _FEW_PIDS}, _forks_were_refused),
    Guarantee.CPU: (_BUSY, {"cpus": _CPU_SHARE}, _cpu_was_shared),
    Guarantee.DISK: (_FILL_DISK, {"workspace": 1 * MIB}, _disk_was_full),
    Guarantee.TIME: ("while True: pass", {"timeout": 0.3}, _outcome_is(Outcome.TIMEOUT)),
}


async def _interpreters(engine: Engine) -> list[HostInterpreter]:
    interpreters = []
    for name in _INTERPRETERS:
        path = engine.runtime.interpreters.get(name)
        version = await _version(engine, name) if path else None
        interpreters.append(HostInterpreter(name, path, version))
    return interpreters


async def _version(engine: Engine, name: str) -> str:
    try:
        result = await run_on(engine, command=[name, "--version"], timeout=_ENOUGH)
    except TideboxError as error:
        return error.message
    lines = result.stdout.decode(errors="replace").strip().splitlines()
    return lines[-1] if result.ok and lines else f"does not start ({result.outcome.value})"
