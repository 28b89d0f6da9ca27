"""Configuration that packages of this machine brought, for programs of the host image.

A library may need the file that its package put into /etc. Of all files there a box sees those that the package manager
knows as such and that still are, byte for byte, as their packages brought them: those anybody can download, so none
holds a secret of this machine. One that was edited may hold one, and is left out; so is what is about accounts, access
and services.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

STATUS = Path("/var/lib/dpkg/status")
MOST_FILES = 1000
MOST_NAMES = 48 * 1024
"""Bytes of their names together: all go into one message."""
LARGEST = 256 * 1024
# About who may do what on the machine, and what it does by itself: of no use in a box, no matter what is in there.
_PRIVATE = re.compile(
    r"/etc/(apparmor|apt|audit|cron|default/|dbus-1/|gnupg|grub|gss|init|kernel|krb5|ldap|logrotate|login|"
    r"modprobe|modules|netconfig|network|NetworkManager|pam|PackageKit|polkit|postgresql|ppp|profile|qemu|rc|securetty|"
    r"security|selinux|shadow|skel|ssh|ssl|sudo|sysctl|systemd|udev|ufw|update-motd|wireguard|xattr)"
)
_BLOCK = re.compile(rb"^Conffiles:\n((?: .+\n?)+)", re.MULTILINE)


def package_files(status: Path = STATUS) -> tuple[tuple[str, str], ...]:
    """Paths with the MD5 of their content, the nearest to the root first; none where there is no dpkg."""
    found: list[tuple[str, str]] = []
    names = 0
    for path, digest in sorted(_listed(status), key=lambda item: (item[0].count("/"), item[0])):
        names += len(path) + len(digest)
        if len(found) == MOST_FILES or names > MOST_NAMES:
            break
        if _is_as_packaged(path, digest):
            found.append((path, digest))
    return tuple(found)


def _listed(status: Path) -> Iterator[tuple[str, str]]:
    try:
        text = status.read_bytes()
    except OSError:
        return
    for block in _BLOCK.finditer(text):
        for line in block[1].decode("utf-8", "replace").splitlines():
            words = line.split()
            # A third word says that the package does not have it any more.
            if len(words) == 2 and words[0].startswith("/etc/") and not _PRIVATE.match(words[0]):
                yield words[0], words[1]


def _is_as_packaged(path: str, digest: str) -> bool:
    """Whether everybody may read it, and it is what the package brought."""
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) or not mode & stat.S_IROTH or not _is_reached_by_all(path):
            return False
        content = Path(path).read_bytes()
    except OSError:
        return False
    return len(content) <= LARGEST and hashlib.md5(content, usedforsecurity=False).hexdigest() == digest


def _is_reached_by_all(path: str) -> bool:
    parents = Path(path).parents
    return all(stat.S_ISDIR(mode) and mode & stat.S_IXOTH for mode in (os.lstat(parent).st_mode for parent in parents))
