"""Repositories as workspace input: fetched from real servers on this machine, friendly and hostile ones."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.api import conftest
from tests.api.conftest import NO_CELLS, RunningServer, finish, start
from tests.api.interpreter.repositories import Repository, git, git_daemon, git_http, silent_server
from tests.api.interpreter.service import JWT_SECRET, Service, error_of
from tests.boxes import descendants

SCRIPT = b"#!/bin/sh\necho from the repository\n"


@dataclass
class Hosting:
    """Repositories, their servers, and a Tidebox that may fetch from them."""

    root: Path
    git_url: str
    http_url: str
    silent_url: str
    repository: Repository
    commits: dict[str, str]
    server: RunningServer


@pytest.fixture(scope="module")
def hosting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosting]:
    root = tmp_path_factory.mktemp("hosting")
    repository = Repository(root, "project")
    commits = {"first": repository.commit({"README": b"first\n", "src/main.py": b"print('one')\n"})}
    git(repository.work, "tag", "v1")
    git(repository.work, "branch", "old")
    (repository.work / "link").symlink_to("README")
    files: dict[str, bytes | None] = {
        "README": b"second\n",
        "run.sh": SCRIPT,
        ".gitattributes": b"secret export-ignore\nsubst export-subst\n*.bin filter=lfs\n",
        "secret": b"kept\n",
        "subst": b"$Format:%H$\n",
        "x.bin": b"\x00\x01",
    }
    (repository.work / "run.sh").write_bytes(SCRIPT)
    (repository.work / "run.sh").chmod(0o755)
    commits["second"] = repository.commit(files)
    with git_daemon(root) as git_url, git_http(root) as http_url, silent_server() as silent_url:
        hosts = ",".join(url.partition("://")[2] for url in (git_url, http_url, silent_url))
        server = start(
            tmp_path_factory.mktemp("data"),
            auth_jwt_secret=JWT_SECRET,
            rate_limit="off",
            git_hosts=hosts,
            git_schemes="git,http",
            git_timeout_sec="40",
            workspace_cap_mb="8",
            **NO_CELLS,
        )
        yield Hosting(root, git_url, http_url, silent_url, repository, commits, server)
        finish(server)


@pytest.fixture(scope="module")
def client(hosting: Hosting) -> Iterator[Service]:
    with Service.of(hosting.server, "ada") as service:
        yield service


@pytest.fixture
def session(client: Service) -> str:
    return client.session()


def put(client: Service, session: str, url: str, **options: Any) -> httpx.Response:
    """Put a repository into a session."""
    return client.post(f"/sessions/{session}/files", json={"git": {"url": url, **options}})


def listed(client: Service, session: str) -> dict[str, dict[str, Any]]:
    """The files of a session."""
    return {item["path"]: item for item in client.get(f"/sessions/{session}/files").json()["items"]}


def text(client: Service, session: str, path: str) -> str:
    """A file of a session."""
    return client.get(f"/sessions/{session}/files/{path}").text


@pytest.mark.parametrize("how", ["git", "http"])
def test_a_repository_is_fetched(client: Service, session: str, hosting: Hosting, how: str) -> None:
    base = hosting.git_url if how == "git" else hosting.http_url
    response = put(client, session, f"{base}/project.git")
    assert response.status_code == 200, response.text
    assert response.json()["commit"] == hosting.commits["second"]
    assert response.json()["file_count"] == 8
    found = listed(client, session)
    assert set(found) == {"README", "src/main.py", "run.sh", "link", ".gitattributes", "secret", "subst", "x.bin"}
    assert text(client, session, "README") == "second\n"


def test_attributes_of_the_repository_do_nothing(client: Service, session: str, hosting: Hosting) -> None:
    put(client, session, f"{hosting.git_url}/project.git")
    assert text(client, session, "secret") == "kept\n"
    assert text(client, session, "subst") == "$Format:%H$\n"


def test_links_and_modes_stay(client: Service, session: str, hosting: Hosting) -> None:
    put(client, session, f"{hosting.git_url}/project.git")
    assert listed(client, session)["link"]["link_target"] == "README"
    assert client.get(f"/sessions/{session}/files/link").status_code == 404
    run = client.run(["sh", "-c", "cat link; stat -c %a run.sh; sh run.sh; ls -a | grep -c git"], session_id=session)
    assert client.log(run["id"]) == "second\n755\nfrom the repository\n1\n"


@pytest.mark.parametrize("ref", ["old", "v1", "refs/heads/old", "refs/tags/v1", "commit"])
def test_branches_tags_and_commits(client: Service, session: str, hosting: Hosting, ref: str) -> None:
    wanted = hosting.commits["first"] if ref == "commit" else ref
    response = put(client, session, f"{hosting.git_url}/project.git", ref=wanted, depth=5)
    assert response.status_code == 200, response.text
    assert response.json()["commit"] == hosting.commits["first"]
    assert set(listed(client, session)) == {"README", "src/main.py"}


PATCH = """\
diff --git a/README b/README
--- a/README
+++ b/README
@@ -1 +1 @@
-second
+patched
diff --git a/new/file.txt b/new/file.txt
new file mode 100644
--- /dev/null
+++ b/new/file.txt
@@ -0,0 +1 @@
+added
diff --git a/secret b/secret
deleted file mode 100644
--- a/secret
+++ /dev/null
@@ -1 +0,0 @@
-kept
"""


def test_a_patch_is_applied(client: Service, session: str, hosting: Hosting) -> None:
    response = put(client, session, f"{hosting.git_url}/project.git", patch=PATCH)
    assert response.status_code == 200, response.text
    assert text(client, session, "README") == "patched\n"
    assert text(client, session, "new/file.txt") == "added\n"
    assert "secret" not in listed(client, session)


BAD_PATCHES = {
    "does not fit": PATCH.replace("-second", "-third"),
    "nonsense": "not a patch",
    "empty": "",
    "leads out": "--- /dev/null\n+++ b/../../x\n@@ -0,0 +1 @@\n+x\n",
    "into .git": "--- /dev/null\n+++ b/.git/config\n@@ -0,0 +1 @@\n+x\n",
}


@pytest.mark.parametrize("name", BAD_PATCHES)
def test_a_patch_that_does_not_apply(client: Service, session: str, hosting: Hosting, name: str) -> None:
    response = put(client, session, f"{hosting.git_url}/project.git", patch=BAD_PATCHES[name])
    error = error_of(response, 400, "invalid_request")
    assert error["details"]["field"] == "git.patch"
    assert listed(client, session) == {}


def test_a_run_of_its_own_with_a_repository(client: Service, hosting: Hosting) -> None:
    source = {"url": f"{hosting.http_url}/project.git", "patch": PATCH}
    run = client.run(["sh", "-c", "cat README new/file.txt; sh run.sh"], git=source)
    assert run["phase"] == "completed"
    assert client.log(run["id"]) == "patched\nadded\nfrom the repository\n"
    assert _nothing_left(hosting.server)


def test_a_run_in_a_session_with_a_repository(client: Service, session: str, hosting: Hosting) -> None:
    client.post(f"/sessions/{session}/files", files=[("files", ("mine", b"1"))])
    run = client.run(
        ["sh", "-c", "cat README mine"], session_id=session, git={"url": f"{hosting.git_url}/project.git", "ref": "v1"}
    )
    assert client.log(run["id"]) == "first\n1"
    assert set(listed(client, session)) == {"README", "src/main.py", "mine"}


def test_a_run_whose_repository_is_not_there(client: Service, hosting: Hosting) -> None:
    run = client.run(["true"], git={"url": f"{hosting.git_url}/nothing.git"})
    assert (run["phase"], run["reason_code"]) == ("failed", "provision_failed")
    assert run["message"].startswith("git: ")


FORBIDDEN_URLS = [
    "https://127.0.0.1/x.git",
    "file:///etc",
    "ssh://127.0.0.1/x",
    "ext::sh -c id",
    "ftp://127.0.0.1/x",
    "http://localhost/x.git",
    "http://169.254.169.254/latest/meta-data",
    "http://[::1]/x.git",
    "git://127.0.0.1/project.git",
    "http://127.0.0.1.nip.io/x.git",
    "/etc/passwd",
    "127.0.0.1:project.git",
]


@pytest.mark.parametrize("url", FORBIDDEN_URLS)
def test_other_places_are_not_asked(client: Service, session: str, url: str) -> None:
    response = put(client, session, url)
    assert response.status_code in (400, 403), response.text
    assert client.submit(["true"], git={"url": url}).status_code in (400, 403)


def test_a_url_with_a_password_is_refused_and_not_repeated(client: Service, session: str, hosting: Hosting) -> None:
    host = hosting.git_url.removeprefix("git://")
    response = put(client, session, f"git://user:hunter2@{host}/project.git")
    error_of(response, 400, "invalid_request")
    assert "hunter2" not in response.text
    assert "hunter2" not in hosting.server.log


@pytest.mark.parametrize(
    "options",
    [
        {"ref": "--upload-pack=touch /tmp/x"},
        {"ref": "-x"},
        {"ref": "a..b"},
        {"ref": "a b"},
        {"ref": ""},
        {"ref": "main:refs/heads/x"},
        {"ref": "+main"},
        {"depth": 0},
        {"depth": 100_000},
        {"depth": "x"},
        {"submodules": True},
        {"patch": "x" * (1 << 20) + "x"},
    ],
)
def test_options_that_are_no_options(client: Service, session: str, hosting: Hosting, options: dict[str, Any]) -> None:
    response = put(client, session, f"{hosting.git_url}/project.git", **options)
    error_of(response, 400, "invalid_request")


@pytest.mark.parametrize("path", ["nothing.git", "../../etc", "project.git/objects"])
def test_a_repository_that_is_not_there(client: Service, session: str, hosting: Hosting, path: str) -> None:
    error = error_of(put(client, session, f"{hosting.git_url}/{path}"), 502, "fetch_failed")
    assert error["retryable"]
    assert listed(client, session) == {}


def test_a_ref_that_is_not_there(client: Service, session: str, hosting: Hosting) -> None:
    error = error_of(put(client, session, f"{hosting.git_url}/project.git", ref="nowhere"), 502, "fetch_failed")
    assert "nowhere" in error["message"]


def test_a_redirect_is_not_followed(client: Service, session: str, hosting: Hosting) -> None:
    error_of(put(client, session, f"{hosting.http_url}/moved/project.git"), 502, "fetch_failed")


def test_nobody_is_asked_for_a_password(client: Service, session: str, hosting: Hosting) -> None:
    error = error_of(put(client, session, f"{hosting.http_url}/private/project.git"), 502, "fetch_failed")
    assert "seconds" not in error["message"]


def test_a_server_that_says_nothing(hosting: Hosting, start_server: Callable[..., RunningServer]) -> None:
    silent = hosting.silent_url.removeprefix("git://")
    server = start_server(git_hosts=silent, git_schemes="git", git_timeout_sec="1", **NO_CELLS)
    with Service.of(server) as client:
        error = error_of(put(client, client.session(), f"git://{silent}/x.git"), 502, "fetch_failed")
    assert "1 seconds" in error["message"]
    assert _nothing_left(server)


def test_a_run_that_is_cancelled_while_it_fetches(client: Service, hosting: Hosting) -> None:
    run = client.start(["true"], git={"url": f"{hosting.silent_url}/x.git"})
    client.wait(run, "starting")
    time.sleep(0.2)
    client.post(f"/runs/{run}/cancel")
    assert client.wait(run)["phase"] == "killed"
    assert _nothing_left(hosting.server)


def _nothing_left(server: RunningServer) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        commands = [_command(pid) for pid in descendants(server.pid)]
        if not any("git" in command for command in commands) and not os.listdir(server.data_dir / "uploads"):
            return True
        time.sleep(0.05)
    return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def test_a_repository_that_is_too_large(client: Service, session: str, hosting: Hosting) -> None:
    large = Repository(hosting.root, "large")
    large.commit({"data": os.urandom(9 << 20)})
    error_of(put(client, session, f"{hosting.git_url}/large.git"), 413, "payload_too_large")
    dense = Repository(hosting.root, "dense")
    dense.commit({"zeros": bytes(64 << 20)})
    error = error_of(put(client, session, f"{hosting.git_url}/dense.git"), 413, "payload_too_large")
    assert error["details"]["member"] == "zeros"
    assert listed(client, session) == {}


def test_a_repository_that_grows_without_end(client: Service, session: str, hosting: Hosting) -> None:
    bomb = Repository(hosting.root, "bomb")
    below = bomb.tree([(b"100644", b"file%d" % number, bomb.blob(b"x")) for number in range(10)])
    for _ in range(9):
        below = bomb.tree([(b"40000", b"d%d" % number, below) for number in range(10)])
    bomb.forge([(b"40000", b"d%d" % number, below) for number in range(10)])
    began = time.monotonic()
    assert put(client, session, f"{hosting.git_url}/bomb.git").status_code in (413, 502)  # too many files, or too slow
    assert time.monotonic() - began < 60
    assert _nothing_left(hosting.server)


@pytest.mark.parametrize("name", [b"..", b"../x", b"a/../../x", b"a\\b", b"/x", b"a\x01b", b"\xff\xfe"])
def test_a_repository_with_names_that_lead_elsewhere(
    client: Service, session: str, hosting: Hosting, name: bytes
) -> None:
    forged = Repository(hosting.root, f"forged{abs(hash(name))}")
    forged.forge([(b"100644", b"good", forged.blob(b"1")), (b"100644", name, forged.blob(b"bad"))])
    response = put(client, session, f"{hosting.git_url}/{forged.name}.git")
    assert response.status_code in (400, 502), response.text
    assert listed(client, session) == {}


def test_a_repository_within_a_repository_is_left_out(client: Service, session: str, hosting: Hosting) -> None:
    forged = Repository(hosting.root, "nested")
    inner = forged.tree([(b"100644", b"config", forged.blob(b"[core]\n\tfsmonitor = touch /tmp/owned\n"))])
    forged.forge([(b"40000", b".git", inner), (b"100644", b"good", forged.blob(b"1"))])
    response = put(client, session, f"{hosting.git_url}/nested.git")
    assert response.status_code in (200, 502), response.text
    assert set(listed(client, session)) <= {"good"}


def test_submodules_are_empty_directories(client: Service, session: str, hosting: Hosting) -> None:
    outer = Repository(hosting.root, "outer")
    modules = f'[submodule "sub"]\n\tpath = sub\n\turl = {hosting.git_url}/project.git\n'
    (outer.work / ".gitmodules").write_text(modules)
    git(outer.work, "update-index", "--add", "--cacheinfo", f"160000,{hosting.commits['first']},sub")
    git(outer.work, "add", ".gitmodules")
    git(outer.work, "commit", "-q", "-m", "sub")
    outer.push()
    response = put(client, session, f"{hosting.git_url}/outer.git")
    assert response.status_code == 200, response.text
    assert set(listed(client, session)) == {".gitmodules"}


def test_the_machines_own_git_settings_do_not_count(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, mark = tmp_path / "home", tmp_path / "mark"
    home.mkdir()
    touch = f"touch {mark}"
    (home / ".gitconfig").write_text(f'[url "ext::{touch}"]\n\tinsteadOf = git:\n')
    settings = {"HOME": str(home), "GIT_SSH_COMMAND": touch, "GIT_PROXY_COMMAND": touch, "GIT_DIR": "/nonexistent"}
    monkeypatch.setattr(conftest, "_CLEAN", conftest._CLEAN | settings)
    host = hosting.git_url.removeprefix("git://")
    server = start(tmp_path / "data", git_hosts=host, git_schemes="git", store_backend="memory", **NO_CELLS)
    try:
        with Service.of(server) as client:
            response = put(client, client.session(), f"{hosting.git_url}/project.git")
            assert response.status_code == 200, response.text
        assert not mark.exists()
    finally:
        finish(server)


def test_repositories_can_be_turned_off(tmp_path: Path) -> None:
    server = start(tmp_path / "data", git_hosts=",", store_backend="memory", **NO_CELLS)
    try:
        with Service.of(server) as client:
            error_of(put(client, client.session(), "https://github.com/a/b.git"), 403, "forbidden")
    finally:
        finish(server)


def test_many_fetches_at_once(client: Service, hosting: Hosting) -> None:
    sessions = [client.session() for _ in range(6)]
    answers: list[int] = []

    def fetch(session: str) -> None:
        answers.append(put(client, session, f"{hosting.git_url}/project.git").status_code)

    threads = [threading.Thread(target=fetch, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 502}, answers
    assert answers.count(200) >= 4
