"""The system call profile of containers, in Docker's format, from the same table as the native filter.

The format cannot say all that the native filter does: it compares whole registers where the kernel looks at half of
them, and cannot allow a call but for some values of one argument. So it holds the list of calls, and what of their
arguments it can hold; the native filter itself is loaded by the agent, in every container, on top of it.
"""

from __future__ import annotations

import errno
import json
from typing import Any

from tidebox.spawner import seccomp

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_ALLOW, _REFUSE = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
_LOWER_HALF = 0xFFFFFFFF
# Memory that can be executed although no file of the box can be.
_EXECUTABLE_MEMORY = "memfd_create"


def profile(machine: str, *, executable: bool) -> str:
    """The profile for ``machine``; where files of the box are not ``executable``, neither is memory made like one."""
    simple = {name for name in seccomp.allowed() if executable or name != _EXECUTABLE_MEMORY}
    by_argument = {name for names, _ in seccomp.rules(nested=True) for name in names.split()}
    limited = {name: _conditions(name) for name in by_argument}
    rules: list[dict[str, Any]] = [
        {"names": sorted(simple | {name for name, found in limited.items() if not found}), "action": _ALLOW},
        # As an old kernel would answer: callers have another way then.
        {"names": sorted(seccomp.absent()), "action": _REFUSE, "errnoRet": errno.ENOSYS},
    ]
    rules += [
        {"names": [name], "action": _ALLOW, "args": [condition]}
        for name, conditions in sorted(limited.items())
        for condition in conditions
    ]
    return json.dumps({"defaultAction": _REFUSE, "architectures": [_ARCHITECTURES[machine]], "syscalls": rules})


def _conditions(name: str) -> list[dict[str, Any]]:
    """Return the conditions on a rule's arguments that the format can tell; any one of them allows the call."""
    if name == "clone":
        return [_masked(0, seccomp.REFUSED_CLONES, 0)]
    if name in ("socket", "socketpair"):
        return [_masked(0, _LOWER_HALF, family) for family in seccomp.FAMILIES]
    if name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        return [_masked(0, _LOWER_HALF, 0)]
    return []


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
