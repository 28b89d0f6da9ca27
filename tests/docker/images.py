"""Docker images for tests, made of what this machine has: nothing is pulled, and each takes about a second.

They are named as those that are used where nobody names an image, and hold the least that serves: an interpreter with
its libraries, and the commands of a small Debian or of BusyBox.
"""

from __future__ import annotations

import glob
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from tests.images import libraries_of, without_tests

PYTHON_IMAGE, NODE_IMAGE, BUSYBOX_IMAGE = "python:3.11-slim", "node:20-alpine", "busybox:latest"
GCC_IMAGE = "gcc:latest"
"""With a compiler of C; larger than the others, and made for those who ask for it."""
NEEDED = ("busybox", "node")
"""What must be installed to make them."""

_SYSTEM_PACKAGES = ("coreutils", "dash", "findutils", "grep", "hostname", "mount", "sed", "tar", "util-linux")
_ASK = "import sys, sysconfig, json; print(json.dumps([sysconfig.get_path('stdlib'), sys.version_info[:2]]))"
# Directories that are links into /usr on this machine are so in the images.
_LINKS = [name for name in ("bin", "sbin", "lib", "lib64") if os.path.islink(f"/{name}")]
_PATH = "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\n"


def changes_of(image: str) -> list[str]:
    """The configuration of an image, as lines of a Dockerfile."""
    command = {PYTHON_IMAGE: '["python3"]', NODE_IMAGE: '["node"]'}.get(image, '["sh"]')
    return [f"ENV {_PATH}", f"CMD {command}"]


def write_image(image: str, target: IO[bytes]) -> None:
    """Write the root file system of an image as a tar archive."""
    with tarfile.open(fileobj=target, mode="w|", dereference=True, format=tarfile.GNU_FORMAT) as tar:
        _MAKERS[image](_Tree(tar))


class _Tree:
    """A root file system that is being written."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._written: set[str] = set()
        for name in _LINKS:
            self.link(f"/{name}", os.readlink(f"/{name}"))
        for name in ("dev", "etc", "proc", "root", "run", "sys", "var"):
            self.directory(f"/{name}", 0o755)
        self.directory("/tmp", 0o1777)
        self.file("/etc/passwd", _PASSWD)
        self.file("/etc/group", b"root:x:0:\n")

    def link(self, path: str, target: str) -> None:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.type, member.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(member)
        self._written.add(path)

    def directory(self, path: str, mode: int) -> None:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.type, member.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(member)

    def file(self, path: str, content: bytes) -> None:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.size = len(content)
        self._tar.addfile(member, io.BytesIO(content))

    def copy(self, path: str, source: str | None = None) -> None:
        """Put a file or directory of this machine at its own place, or that of ``source`` there."""
        place = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if place not in self._written:
            self._written.add(place)
            self._tar.add(source or path, place, filter=_of_root)

    def programs(self, paths: Iterable[str], extensions: Iterable[str] = ()) -> None:
        """Put programs at their places, and what the loader maps for them and for extensions of theirs."""
        found = list(paths)
        for path in (*found, *libraries_of([*found, *extensions])):
            self.copy(path)


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    kept = without_tests(member)
    if kept is not None:
        kept.uid = kept.gid = 0
        kept.uname = kept.gname = ""
        # A program that runs in an image is not its root.
        kept.mode &= 0o1755
    return kept


def _python(tree: _Tree) -> None:
    python = "/usr/bin/python3"
    library, version = json.loads(subprocess.check_output([python, "-I", "-c", _ASK]))
    extensions = [str(path) for path in Path(library, "lib-dynload").glob("*.so")]
    # The C library loads the last one by itself when a thread ends.
    tree.programs([python, *_debian_commands(), *glob.glob("/lib/*/libgcc_s.so.1")], extensions)
    tree.copy(library)
    for name in ("python", f"python{version[0]}.{version[1]}"):
        tree.copy(f"/usr/bin/{name}", python)


def _debian_commands() -> Iterator[str]:
    listed = subprocess.check_output(["dpkg-query", "-L", *_SYSTEM_PACKAGES], text=True).split()
    for path in listed:
        if os.path.dirname(path) in ("/bin", "/sbin", "/usr/bin", "/usr/sbin") and os.path.isfile(path):
            yield path
    yield "/bin/sh"


def _node(tree: _Tree) -> None:
    node = shutil.which("node")
    assert node is not None
    _busybox(tree)
    tree.programs([os.path.realpath(node)])
    tree.link("/usr/local/bin/node", os.path.realpath(node))
    # Debian's node reads a part of itself from there.
    for name in ("acorn", "acorn-walk", "cjs-module-lexer", "undici"):
        if os.path.isdir(f"/usr/share/nodejs/{name}"):
            tree.copy(f"/usr/share/nodejs/{name}")


def _busybox(tree: _Tree) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    tree.programs([busybox])
    for name in subprocess.check_output([busybox, "--list"], text=True).split():
        if name != "busybox":
            tree.link(f"/usr/bin/{name}", busybox)
    if "bin" not in _LINKS:
        tree.link("/bin/sh", busybox)


def _gcc(tree: _Tree) -> None:
    """What it takes to compile and link a program of C."""
    _busybox(tree)
    gcc = shutil.which("gcc")
    assert gcc is not None

    def place(option: str, name: str) -> str:
        return os.path.realpath(subprocess.check_output([gcc, f"-print-{option}-name={name}"], text=True).strip())

    tools = [gcc]
    for name in ("cc1", "collect2", "lto-wrapper", "as", "ld"):
        path = place("prog", name)
        tools.append(path if os.path.isabs(path) and os.path.exists(path) else shutil.which(name) or name)
    tree.programs([*tools, *glob.glob(f"{os.path.dirname(place('prog', 'cc1'))}/liblto_plugin.so")])
    for name in ("as", "ld"):
        tree.copy(f"/usr/bin/{name}", os.path.realpath(shutil.which(name) or name))
    for name in ("crt1.o", "Scrt1.o", "crti.o", "crtn.o", "libc.so", "libc.so.6", "libc_nonshared.a", "libm.so"):
        path = subprocess.check_output([gcc, f"-print-file-name={name}"], text=True).strip()
        tree.copy(os.path.normpath(path))
    for path in (*glob.glob("/lib/*/libm.so.6"), *glob.glob("/lib/*/libmvec.so.1"), *glob.glob("/lib/*/libgcc_s.so.1")):
        tree.copy(path)
    for path in place("file", "crtbegin.o").rpartition("/")[:1]:
        for name in ("crtbegin.o", "crtbeginS.o", "crtend.o", "crtendS.o", "libgcc.a", "libgcc_s.so", "include"):
            tree.copy(f"{path}/{name}")
    tree.copy("/usr/include")


_MAKERS: Mapping[str, Callable[[_Tree], None]] = {
    PYTHON_IMAGE: _python,
    NODE_IMAGE: _node,
    BUSYBOX_IMAGE: _busybox,
    GCC_IMAGE: _gcc,
}
IMAGES = (PYTHON_IMAGE, NODE_IMAGE, BUSYBOX_IMAGE)
