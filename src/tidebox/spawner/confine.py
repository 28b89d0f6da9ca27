"""Confinement: the capabilities that init keeps; the capabilities, core dumps and system calls that programs lack."""

from __future__ import annotations

import os
import resource

from tidebox.spawner import seccomp
from tidebox.spawner import syscalls as sys_

# What init needs to start, signal and serve the files of processes of another uid, inside its own user namespace.
INIT_CAPABILITIES = (sys_.CAP_CHOWN, sys_.CAP_DAC_OVERRIDE, sys_.CAP_KILL, sys_.CAP_SETGID, sys_.CAP_SETUID)

_INIT, _NONE = sys_.Capabilities(INIT_CAPABILITIES), sys_.Capabilities(())
_NO_NEW_PRIVILEGES = sys_.prctl_call(sys_.PR_SET_NO_NEW_PRIVS, 1)

# For a process whose box is for it alone: of it and of all that come from it no file that is executed gives any power;
# then it has none itself, and is dumpable as any program is.
BOUND = [*_NONE.bound_calls, _NO_NEW_PRIVILEGES]
CONFINE = [*_NONE.set_calls, sys_.prctl_call(sys_.PR_SET_DUMPABLE, 1)]

# No core is dumped, and no handler for crashes is started: one that the machine pipes cores to would get the program's
# memory, as root, under every other limit. The filter keeps it.
NO_CORE = (resource.RLIMIT_CORE, (1, 1))

_filters: dict[bool, sys_.Filter] = {}


def load_filter_calls(nested: bool) -> list[sys_.Call]:
    """Return the calls that load the seccomp filter, for a process and all it starts; ``nested`` lets it load more.

    Built once in a template and inherited by every clone: assembling it costs more than loading it.
    """
    if nested not in _filters:
        _filters[nested] = sys_.Filter(seccomp.build_filter(os.uname().machine, nested))
    return _filters[nested].load_calls


def bound_init(two_ids: bool) -> None:
    """As a single program is bounded, but for what init needs."""
    sys_.make([*_kept(two_ids).bound_calls, _NO_NEW_PRIVILEGES], "drop bounding set")


def restrict_init(two_ids: bool) -> None:
    """Leave init only the capabilities it needs: none where user code has its uid."""
    sys_.make(_kept(two_ids).set_calls, "capset")
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)


def _kept(two_ids: bool) -> sys_.Capabilities:
    return _INIT if two_ids else _NONE


def confine_program() -> None:
    """In a child that is already the user: no capability, and dumpable again."""
    sys_.make(CONFINE, "capset")
