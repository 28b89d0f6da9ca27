"""User ids: a template lives over a block of unused ones, each of its boxes over two of that."""

from __future__ import annotations

import os

UID_BLOCK = 65536
AGENT_UID, USER_UID = 0, 1000


def agent_id(number: int) -> int:
    """The id, in the template's namespace, of the agent of box ``number``; user code has the one after it."""
    return 1 + 2 * (number % (UID_BLOCK // 2 - 1))


def write_map(pid: int, ids: str, group_ids: str, deny_setgroups: bool) -> None:
    """Give the user namespace of ``pid`` its ids."""
    names = [("uid_map", ids), ("gid_map", group_ids)]
    if deny_setgroups:
        names.insert(0, ("setgroups", "deny"))
    for name, value in names:
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def map_box(pid: int, number: int, two_ids: bool) -> None:
    """Give box ``number`` its own: one for its agent and one for user code, or one for both."""
    if two_ids:
        agent = agent_id(number)
        ids = f"{AGENT_UID} {agent} 1\n{USER_UID} {agent + 1} 1\n"
    else:
        ids = f"{USER_UID} 0 1\n"
    write_map(pid, ids, ids, deny_setgroups=not two_ids)
