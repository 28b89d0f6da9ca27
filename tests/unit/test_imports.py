"""Who may import whom: the layers of the package, read from the source so that an import need not run to be seen."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tidebox"

# Part of the package -> what it may import besides itself. A dotted entry allows that one module only; a dotted part
# may import that besides what the part it belongs to may.
# A part that is missing here fails the test: a new layer is a decision.
MAY_IMPORT: dict[str, set[str]] = {
    "": {"entry", "model", "sdk"},  # the public names, imported lazily
    "errors": set(),
    "wire": set(),
    "agent": {"wire"},
    "spawner": {"agent", "wire"},
    "model": {"errors"},
    "untrusted_files": {"errors"},
    "protocols": {"errors", "model"},
    "config": {"errors", "model"},
    "store": {"errors", "model"},
    "runtime": {"errors", "model", "untrusted_files", "wire", "egress"},
    # The list of system calls, which a container's profile is made of, is data. So are records of files.
    "runtime.docker": {"spawner.seccomp", "spawner.syscall_tables"},
    "runtime.shared": {"spawner.seccomp", "agent.tree_records"},
    # Control groups are made, kept and swept alike for every runtime; so is the image of the machine's own files.
    "runtime.gvisor": {"spawner.cgroups", "spawner.sweeping", "spawner.steps"},
    # A program of its own, and the server's side of it.
    "egress": {"errors", "model"},
    "cluster": {"errors", "model", "store.base"},
    "broker": {"errors", "model", "untrusted_files", "store.base", "runtime.base", "cluster.membership"},
    # Sandboxes of other servers, of which this one is a client.
    "broker.sandboxes.providers": {"protocols", "sdk"},
    "api": {"errors", "model", "untrusted_files", "broker", "protocols", "lean"},
    "sdk": {"errors", "model", "protocols", "config"},
    "lsp": {"errors", "model", "untrusted_files", "sdk", "stdio"},
    "mcp": {"errors", "model", "sdk", "stdio", "lean"},
    # Standard input and output, for those who speak a protocol there.
    "stdio": set(),
    "web": {"errors", "model", "sdk"},
    "embedded": {"errors", "model", "config", "runtime", "egress.operator_rules"},
    # `tidebox.run`: by the engine of this process, or on a server.
    "entry": {"model", "config", "embedded", "sdk"},
    "logs": {"lean"},
    # How libraries are imported.
    "lean": set(),
    "data_dir": {"errors", "model"},
    # The runtime, pool and driver are put together in one place, for the server and without one.
    "server": {
        "errors",
        "model",
        "untrusted_files",
        "config",
        "data_dir",
        "logs",
        "runtime",
        "store",
        "cluster",
        "broker",
        "api",
        "embedded",
        # Its HTTP side is a client of the server, in the server's own process.
        "mcp",
    },
    "cli": {"errors", "model", "untrusted_files", "config", "logs", "sdk", "embedded", "server", "mcp", "lsp"},
    "__main__": {"cli"},
}

# Part of the package -> what it may name in annotations: it is passed values of it, and makes none.
MAY_NAME: dict[str, set[str]] = {"api": {"config"}}

# Package of the broker -> the other packages of the broker that it may import; "" is the modules of the broker itself
# that all of them may import, which import none of them. ``broker`` puts them together.
BROKER_MAY_IMPORT: dict[str, set[str]] = {
    "": set(),
    "audit": set(),
    "storage": {"", "audit"},
    "runs": {"", "audit", "storage"},
    "sandboxes": {"", "audit"},
    "broker": {"", "audit", "storage", "runs", "sandboxes"},
}

# These run under other interpreters than the server's, inside boxes and before them.
BOX_PROGRAMS = ("wire", "agent", "spawner")
OLDEST_BOX_PYTHON = (3, 9)


class Import(NamedTuple):
    importer: str
    imported: str
    line: int
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = ("tidebox", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(module: str) -> str:
    """The layer a module belongs to: the first name under ``tidebox``."""
    return module.partition(".")[2].partition(".")[0]


def is_typing_guard(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imported_names(node: ast.AST, module: str) -> Iterator[str]:
    """The modules an import statement names; for ``from a import b`` that is ``a.b`` where b is a module of ours."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            is_package = MODULES[module].name == "__init__.py"
            parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
            base = ".".join([*parents, *([base] if base else [])])
        for alias in node.names:
            yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base


def imports_of(module: str) -> Iterator[Import]:
    """Every import of a module, at the top, inside functions and behind TYPE_CHECKING."""

    def walk(node: ast.AST, typing_only: bool) -> Iterator[Import]:
        for name in imported_names(node, module):
            yield Import(module, name, getattr(node, "lineno", 0), typing_only)
        if isinstance(node, ast.If) and is_typing_guard(node):
            for guarded in node.body:
                yield from walk(guarded, True)
            for otherwise in node.orelse:
                yield from walk(otherwise, typing_only)
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, typing_only)

    yield from walk(ast.parse(MODULES[module].read_text(), module), False)


@functools.cache
def all_imports() -> tuple[Import, ...]:
    """Those of every module; not when this file is loaded, which every process of a run does."""
    return tuple(found for module in MODULES for found in imports_of(module))


def is_ours(name: str) -> bool:
    return name == "tidebox" or name.startswith("tidebox.")


def is_allowed(found: Import) -> bool:
    importer, imported = part_of(found.importer), part_of(found.imported)
    if importer == imported or found.imported == "tidebox":
        return True
    names = found.importer.split(".")[1:]
    packages = (".".join(names[:length]) for length in range(2, len(names) + 1))
    named = MAY_NAME.get(importer, set()) if found.typing_only else set()
    allowed = MAY_IMPORT[importer].union(named, *(MAY_IMPORT.get(package, set()) for package in packages))
    below = found.imported.removeprefix("tidebox.")
    return imported in allowed or any(below == entry or below.startswith(entry + ".") for entry in allowed)


def test_every_part_of_the_package_has_a_rule() -> None:
    assert {part_of(module) for module in MODULES} <= MAY_IMPORT.keys()


def test_no_layer_imports_one_it_must_not_know() -> None:
    assert [str(found) for found in all_imports() if is_ours(found.imported) and not is_allowed(found)] == []


def broker_package(module: str) -> str:
    """The package of the broker that a module of it belongs to; "" for a module that all of them share."""
    names = module.split(".")[2:]
    return names[0] if names and (len(names) > 1 or names[0] in BROKER_MAY_IMPORT) else ""


def test_packages_of_the_broker_import_each_other_in_one_direction() -> None:
    packages = {broker_package(module) for module in MODULES if part_of(module) == "broker"}
    assert packages == BROKER_MAY_IMPORT.keys()
    wrong = []
    for found in all_imports():
        if part_of(found.importer) == part_of(found.imported) == "broker":
            importer, imported = broker_package(found.importer), broker_package(found.imported)
            if importer != imported and imported not in BROKER_MAY_IMPORT[importer]:
                wrong.append(str(found))
    assert wrong == []


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in all_imports():
        # The package root only names its public functions lazily, and every module of ours runs it first.
        if is_ours(found.imported) and not found.typing_only and found.importer != "tidebox":
            graph[found.importer].add(found.imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(reversed(error.args[1])))


def test_box_programs_use_the_standard_library_only() -> None:
    foreign = [
        str(found)
        for found in all_imports()
        if part_of(found.importer) in BOX_PROGRAMS
        and not found.typing_only
        and not is_ours(found.imported)
        and found.imported.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert foreign == []


@pytest.mark.parametrize("module", [module for module in MODULES if part_of(module) in ("", *BOX_PROGRAMS)])
def test_box_programs_parse_on_the_oldest_interpreter(module: str) -> None:
    ast.parse(MODULES[module].read_text(), module, feature_version=OLDEST_BOX_PYTHON)


def reads_environment(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "environb", "getenv", "getenvb")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    )


def test_only_config_reads_the_environment() -> None:
    # The box programs start with an empty environment of their own and set the user program's.
    readers = [
        f"{module}:{getattr(node, 'lineno', 0)}"
        for module, path in MODULES.items()
        if part_of(module) not in ("config", *BOX_PROGRAMS)
        for node in ast.walk(ast.parse(path.read_text(), module))
        if reads_environment(node)
    ]
    assert readers == []


def test_importing_tidebox_loads_nothing_but_itself() -> None:
    script = "import sys; before = set(sys.modules); import tidebox; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["__future__", "tidebox"]
