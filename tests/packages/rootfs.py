"""A root file system with a Python of its own, made of this machine's: what an import brings, without a network."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

PYTHON = "/usr/bin/python3"
_LEFT_OUT = re.compile(r"/(?:test|tests|idlelib|tkinter|ensurepip|__pycache__|dist-packages)(?:/|$)")


def python_rootfs(target: Path, packages: Mapping[str, str], library_files: Mapping[str, str] | None = None) -> str:
    """Write a tar archive with the system's Python, and these files among its packages and in its library.

    Returns where the packages are.
    """
    ask = "import sys, sysconfig; print(sys.executable, sysconfig.get_path('stdlib'), sysconfig.get_path('purelib'))"
    executable, library, site = _output([PYTHON, "-I", "-c", ask]).split()
    extensions = [str(path) for path in Path(library, "lib-dynload").glob("*.so")]
    needed = {line.split("=>")[-1].split()[0] for line in _linked([os.path.realpath(executable), *extensions])}
    with tarfile.open(target, "w") as archive:
        for path in sorted({os.path.realpath(executable), *needed}):
            archive.add(os.path.realpath(path), path.lstrip("/"))
        archive.add(library, library.lstrip("/"), filter=_wanted)
        link = tarfile.TarInfo(executable.lstrip("/"))
        link.type, link.linkname = tarfile.SYMTYPE, os.path.basename(os.path.realpath(executable))
        archive.addfile(link)
        files = {f"{site}/{name}": content for name, content in packages.items()}
        files |= {f"{library}/{name}": content for name, content in (library_files or {}).items()}
        for path, content in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return site


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _LEFT_OUT.search(member.name) else member


def _linked(paths: list[str]) -> list[str]:
    lines = _output(["ldd", *paths]).splitlines()
    return [line for line in lines if line.startswith("\t") and "/" in line]


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
