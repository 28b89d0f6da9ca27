"""Images for tests, made of what this machine has: an interpreter with its libraries, or a shell alone."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from tidebox.config import load_settings
from tidebox.runtime.images import IMAGES, Image, ImageStore

_LEFT_OUT = ("test", "tests", "idlelib", "ensurepip", "site-packages", "dist-packages", "config-", "turtledemo")
_TOOLS = ("/usr/bin/grep", "/usr/bin/head", "/usr/bin/ls", "/usr/bin/tail", "/usr/bin/yes")
_ASK = "import sys, sysconfig, json; print(json.dumps([sysconfig.get_path('stdlib'), sys.version_info[:2]]))"


def import_python(data_dir: Path, name: str, python: str) -> Image:
    """An image with this interpreter at /usr/bin/python3, a shell, and what programs of tests call from it."""
    library, version = json.loads(subprocess.check_output([python, "-I", "-c", _ASK]))
    program = os.path.realpath(python)
    extensions = [str(path) for path in Path(library, "lib-dynload").glob("*.so")]
    archive = data_dir / f"{name}.tar".replace("/", "-")
    with tarfile.open(archive, "w") as tar:
        tar.add(program, program)
        tar.add(library, library, filter=without_tests)
        for tool in _TOOLS:
            tar.add(os.path.realpath(tool), tool)
        _add_links(tar, {"/usr/bin/python3": program, f"/usr/bin/python{version[0]}.{version[1]}": program})
        _add_shell(tar, [program, *extensions, *_TOOLS])
    try:
        return ImageStore(load_settings(data_dir=data_dir).data_dir / IMAGES).import_(name, archive)
    finally:
        archive.unlink()


def import_shell(data_dir: Path, name: str) -> Image:
    """An image with a shell and no other program."""
    archive = data_dir / f"{name}.tar"
    with tarfile.open(archive, "w") as tar:
        _add_shell(tar, [])
    try:
        return ImageStore(load_settings(data_dir=data_dir).data_dir / IMAGES).import_(name, archive)
    finally:
        archive.unlink()


def _add_shell(tar: tarfile.TarFile, programs: list[str]) -> None:
    tar.add(os.path.realpath("/bin/sh"), "/bin/sh")
    # The C library loads the last one by itself when a thread ends.
    unwinders = glob.glob("/lib/*/libgcc_s.so.1") if programs else []
    for library in sorted({*libraries_of([os.path.realpath("/bin/sh"), *programs]), *unwinders}):
        tar.add(os.path.realpath(library), library)


def _add_links(tar: tarfile.TarFile, links: dict[str, str]) -> None:
    for path, target in links.items():
        if path != target:
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)


def libraries_of(programs: Iterable[str]) -> list[str]:
    """What the loader maps for these, by the names it looks for."""
    output = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    words = (word for line in output.splitlines() if line.startswith("\t") for word in line.split())
    return sorted({word for word in words if word.startswith("/") and os.path.isfile(word)})


def without_tests(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what no program of a test imports."""
    return None if os.path.basename(member.name).startswith(_LEFT_OUT) else member
