"""Writes an interpreter, with the libraries and modules that the agent needs of it, as a tar archive.

A program of its own, run by the interpreter that is collected: on this machine, or in a container where this machine's
would not run there. Its arguments are the directory with the agent's package and the modules to have besides.

    ld.so, lib/*.so.*          the loader and the libraries of the interpreter
    bin/python3                the interpreter
    lib/pythonX.Y/             the modules that were loaded, compiled
"""

from __future__ import annotations

import importlib
import io
import os
import py_compile
import re
import subprocess
import sys
import tarfile
import tempfile

_LOADER = re.compile(r"/ld-(linux|musl)[^/]*\.so[^/]*$|/ld-[0-9.]+\.so$")
_LISTED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)
# Libraries that an image wants to have in every process; the second is nowhere.
_PRELOADED, _NOTHING = b"/etc/ld.so.preload\0", b"/.tidebox/nothing\0\0"
_ALWAYS = ("encodings.utf_8", "encodings.ascii", "encodings.latin_1")


def main(package_root: str, *modules: str) -> None:
    """Load the modules, see what came with them, and write it all to standard output."""
    sys.path.append(package_root)
    for name in (*modules, *_ALWAYS):
        importlib.import_module(name)
    program = os.path.realpath(sys.executable)
    library = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    files = {"bin/python3": _read(program)}
    shared = [program]
    for name, module in sorted(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if name == "__main__" or not origin or not os.path.isfile(origin):
            continue
        if origin.endswith(".py"):
            path = name.replace(".", "/") + ("/__init__" if hasattr(module, "__path__") else "")
            files[f"{library}/{path}.pyc"] = _compiled(origin, path) if name != "tidebox" else _compiled_text(b"")
        else:
            shared.append(origin)
            files[f"{library}/lib-dynload/{os.path.basename(origin)}"] = _read(origin)
    if f"{library}/os.pyc" not in files:
        # It is built in; by a file of this name an interpreter finds where its modules are.
        files[f"{library}/os.py"] = b""
    files.setdefault(f"{library}/lib-dynload/README", b"")
    with open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if "/" in line}
    loader = next((path for path in sorted(mapped) if _LOADER.search(path)), None)
    if loader is not None:
        files["ld.so"] = _read(loader).replace(_PRELOADED, _NOTHING)
        listed = "".join(
            subprocess.run([loader, "--list", path], capture_output=True, text=True, check=False).stdout
            for path in shared
        )
        for name, path in _LISTED.findall(listed):
            if "/" not in name:
                files[f"lib/{name}"] = _read(path)
    _write(files)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _compiled(source: str, name: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        target = os.path.join(directory, "module.pyc")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(source, target, name + ".py", doraise=True, optimize=0, invalidation_mode=mode)
        return _read(target)


def _compiled_text(text: bytes) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".py") as file:
        file.write(text)
        file.flush()
        return _compiled(file.name, "module")


def _write(files: dict[str, bytes]) -> None:
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            member.mode = 0o755 if path == "ld.so" or path.startswith("bin/") or ".so" in path else 0o644
            tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
