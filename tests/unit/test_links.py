"""Every document's links lead somewhere, and the files and `make` targets that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "editors").glob("*/*.md")])
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
# Capitals stand for a name of one's own.
_NAMED_PATH = re.compile(r"`((?:tests|src|docs|examples|benchmarks|scripts)/[a-z0-9_./-]+)(?:::[\w\[\]]+)?`")
_NAMED_TARGET = re.compile(r"`make ([a-z-]+)")
_TYPED_TARGET = re.compile(r"^make ([a-z-]+)", re.MULTILINE)
_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", document.read_text()))
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w -]", "", text.lower()).strip().replace(" ", "-") for text in texts}


def _broken(document: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    return not target.exists() or (bool(anchor) and target.suffix == ".md" and anchor not in _anchors(target))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = _LINK.findall(_FENCE.sub("", document.read_text()))
    assert [link for link in links if "://" not in link and _broken(document, link)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_and_targets_exist(document: Path) -> None:
    text = document.read_text()
    assert [path for path in _NAMED_PATH.findall(text) if not (ROOT / path).exists()] == []
    typed = [target for block in _FENCE.findall(text) for target in _TYPED_TARGET.findall(block)]
    assert {*_NAMED_TARGET.findall(text), *typed} <= _TARGETS
