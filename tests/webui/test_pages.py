"""The built files and how they are served, without a browser."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.api.conftest import RunningServer
from tidebox.api.webui.pages import BUILT

WEB = Path(__file__).parents[2] / "web"
FIRST_PAINT_BYTES = 200 * 1024


def assets_of(document: str) -> list[str]:
    return re.findall(r'(?:src|href)="/webui/(assets/[^"]+)"', document)


def test_the_built_files_are_those_of_the_sources() -> None:
    """`make web` builds them; the digest is made here as `web/vite.config.js` makes it."""
    names = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.js"]
    for directory in ("public", "src"):
        names += [path.relative_to(WEB).as_posix() for path in (WEB / directory).rglob("*") if path.is_file()]
    total = hashlib.sha256()
    for name in sorted(names):
        total.update(f"{hashlib.sha256((WEB / name).read_bytes()).hexdigest()}  {name}\n".encode())
    built_from = (BUILT / "sources.sha256").read_text().strip()
    assert built_from == total.hexdigest(), "run `make web`, and commit what it builds"


def test_every_file_that_the_document_names_is_there() -> None:
    document = (BUILT / "index.html").read_text()
    assert len(assets_of(document)) >= 2
    for name in assets_of(document):
        assert (BUILT / name).is_file()


def test_the_licenses_of_all_that_is_in_them_go_with_them() -> None:
    text = (BUILT / "LICENSES.txt").read_text()
    for name in json.loads((WEB / "package.json").read_text())["dependencies"]:
        assert f"\n{name} " in text, name
    assert text.count("Permission is hereby granted") > 10


def test_the_sources_make_no_markup_of_texts() -> None:
    for path in (WEB / "src").rglob("*.ts*"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerously|\beval\(|new Function|DOMParser",
            path.read_text(),
        )
        assert not found, (path.name, found)


def test_the_first_paint_is_small(server: RunningServer) -> None:
    document = httpx.get(f"{server.url}/webui/", timeout=60).text
    files = [httpx.get(f"{server.url}/webui/{name}", timeout=60).content for name in assets_of(document)]
    assert sum(len(gzip.compress(each)) for each in [document.encode(), *files]) < FIRST_PAINT_BYTES / 2


@pytest.mark.parametrize("path", ["", "runs", "sandbox/runs/run-1", "sandboxes", "admin", "no/such/page"])
def test_every_path_has_the_document_with_a_strict_policy(server: RunningServer, path: str) -> None:
    answers = [httpx.get(f"{server.url}/webui/{path}", timeout=60) for _ in range(2)]
    assert {answer.status_code for answer in answers} == {200}
    assert answers[0].headers["content-type"] == "text/html; charset=utf-8"
    policies = [answer.headers["content-security-policy"] for answer in answers]
    for answer, policy in zip(answers, policies, strict=True):
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == "'self'"
        assert rules["connect-src"] == "'self'"
        assert rules["frame-ancestors"] == "'none'"
        assert "unsafe" not in policy
        nonce = re.fullmatch(r"'self' 'nonce-([\w-]{16,})'", rules["style-src"])
        assert nonce is not None
        assert f'nonce="{nonce[1]}"' in answer.text
        assert "__CSP_NONCE__" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        assert "set-cookie" not in answer.headers
    assert policies[0] != policies[1], "a nonce is used once"


def test_the_document_has_no_script_of_its_own() -> None:
    document = (BUILT / "index.html").read_text()
    assert re.findall(r"<script[^>]*>([^<]*)</script>", document) == [""]
    assert "<style" not in document
    assert not re.search(r"\son\w+=", document)


def test_assets_are_kept_for_good_and_sent_compressed(server: RunningServer) -> None:
    name = assets_of((BUILT / "index.html").read_text())[0]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.get(f"/webui/{name}")
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.content == (BUILT / name).read_bytes()
        plain = client.get(f"/webui/{name}", headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content
        tag = answer.headers["etag"]
        assert client.get(f"/webui/{name}", headers={"if-none-match": tag}).status_code == 304
        head = client.head(f"/webui/{name}")
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["assets/none.js", "assets/%2e%2e/%2e%2e/pages.py", "assets/..%2f..%2fpages.py"])
def test_nothing_else_is_served(server: RunningServer, path: str) -> None:
    answer = httpx.get(f"{server.url}/webui/{path}", timeout=60)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_the_digest_is_not_served(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/webui/sources.sha256", timeout=60).headers["content-type"].startswith("text/html")


def test_without_its_slash_it_leads_there(server: RunningServer) -> None:
    answer = httpx.get(f"{server.url}/webui", follow_redirects=False, timeout=60)
    assert (answer.status_code, answer.headers["location"]) == (308, "/webui/")


def test_nothing_can_be_sent_there(server: RunningServer) -> None:
    answer = httpx.post(f"{server.url}/webui/", content=b"x", timeout=60)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_somebody_is_told_who_they_are(server: RunningServer) -> None:
    answer = httpx.get(f"{server.url}/api/v1/sandbox/me", headers=server.headers, timeout=60)
    assert answer.json() == {"user_id": "local", "roles": ["sandbox_admin"], "admin": True}
    assert httpx.get(f"{server.url}/api/v1/sandbox/me", timeout=60).status_code == 401
