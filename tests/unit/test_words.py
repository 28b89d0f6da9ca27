"""The words of the source: one class name for one thing, and docstrings that say what a thing is or does."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/tidebox"

# Names that several classes have, all of one thing each: both ends of a protocol spell what travels between them alike.
SAME_THING = {
    "an answer of a REST route, at the server and at its client": {
        *("AdminRun", "AdminRunDetails", "Artifact", "ArtifactList", "ArtifactsDeleted", "FileInfo", "GuaranteeAnswer"),
        *("IdempotencyEntry", "MetricValue", "Page", "ResourceUsage", "Run", "RuntimeAnswer", "RuntimeTotals"),
        *("RuntimesAnswer", "Session", "StoreHealth", "UploadAnswer", "UsageSummary", "UsageTotals", "UserTotals"),
        *("UserUsage", "Window", "WorkspaceAnswer", "WorkspaceFile", "InputClosed", "Limits", "Result"),
    },
    "a message of the session access protocol, as REST describes it and as clients read it": {
        *("AccessAnswer", "Binding", "BindingAnswer", "Credentials", "ErrorBody", "ErrorEnvelope", "GrantAnswer"),
        *("HeaderRule", "Packages", "Sandbox", "Scope", "SessionRequest", "TokenAnswer"),
    },
    "a part of a run's request, in REST and in the command of an editor": {"InlineFile", "Resources"},
    "a message that several specifications have by this name": {
        *("Error", "ExecRequest", "Ping", "Pong", "Ready", "Stderr", "Stdout"),
    },
    "the message that tells of a failure, and the error it becomes": {"ExecFailed"},
    "the end of a program in a sandbox, as a frame and as a result": {"Ending"},
    "the same part of each runtime": {"Group", "Groups"},
}
_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def _trees() -> list[tuple[Path, ast.Module]]:
    return [(path.relative_to(SOURCE), ast.parse(path.read_text())) for path in sorted(SOURCE.rglob("*.py"))]


def test_no_class_name_stands_for_two_things() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path))
    known = {name for names in SAME_THING.values() for name in names}
    several = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in known} == {}
    assert known - several.keys() == set(), "names that are not shared any more"


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    riddles = []
    for path, tree in _trees():
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, _DEFINITIONS) else None
            if text and (text.startswith("What ") or len(text.split()) == 1):
                riddles.append(f"{path}: {text.splitlines()[0]}")
    assert riddles == []


def test_every_package_says_what_it_is_for() -> None:
    silent = [str(path) for path, tree in _trees() if path.name == "__init__.py" and not ast.get_docstring(tree)]
    assert [path for path in silent if "/built/" not in path and "versions" not in path] == []


def test_people_and_callers_are_named() -> None:
    texts = [*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    riddle = re.compile(r"\bwh(o|y)ever", re.IGNORECASE)
    assert [str(path) for path in texts if riddle.search(path.read_text())] == []
