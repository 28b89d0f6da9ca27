"""Runs ``tidebox`` as on a Mac, as far as a Linux machine can tell: what only Linux has is not there.

The first argument is a file to which the imported modules are written at the end, the others are the command's; or they
are ``-c`` and a program that uses the library.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import types

_ONLY_LINUX = {
    os: (
        *("sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open", "eventfd", "eventfd_read", "splice"),
        *("copy_file_range", "getrandom", "O_PATH", "O_TMPFILE", "getxattr", "setxattr", "listxattr", "posix_fadvise"),
        *("posix_fallocate", "sched_setscheduler", "setresuid", "setresgid", "getresuid", "getresgid", "pipe2"),
        *("unshare", "setns", "preadv", "pwritev", "fdatasync", "openat2", "P_PIDFD"),
    ),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigwaitinfo", "sigtimedwait", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT"),
    socket: ("SO_PEERCRED", "AF_VSOCK", "AF_NETLINK", "AF_PACKET", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "MSG_NOSIGNAL"),
}


def become_a_mac() -> None:
    """Take away what only Linux has, before anything of ours is imported."""
    for module, names in _ONLY_LINUX.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    # What a Mac has and this machine does not: urllib asks it for proxies.
    proxies = types.ModuleType("_scproxy")
    proxies.__dict__.update(_get_proxies=dict, _get_proxy_settings=dict)
    sys.modules["_scproxy"] = proxies
    sys.platform = "darwin"


def main() -> None:
    """Run the command or the program."""
    listing, *arguments = sys.argv[1:]
    become_a_mac()
    try:
        if arguments[0] == "-c":
            exec(arguments[1], {})
            return
        sys.argv = ["tidebox", *arguments]
        from tidebox.cli.main import main as command

        sys.exit(command())
    finally:
        with open(listing, "w") as file:
            file.write("\n".join(sys.modules))


if __name__ == "__main__":
    main()
