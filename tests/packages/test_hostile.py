"""Packages of an enemy: refused or harmless, and nothing of them runs outside a box."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.conftest import Box
from tests.packages.index import Index, make_sdist, metadata, running_index
from tests.packages.rootfs import python_rootfs
from tidebox.errors import FetchFailed, InvalidPackage, InvalidRequest, PackageUnresolvable, TideboxError
from tidebox.model.packages import make_packages
from tidebox.runtime.packaging import node, tree

# Where a package names what it needs; `make test-packages` tries all of them.
FIELDS = ["dependencies", "optionalDependencies", "peerDependencies"]
if "TIDEBOX_TEST_ALL_PACKAGES" not in os.environ:
    FIELDS = FIELDS[:1]


def test_a_source_distribution_is_not_run(box: Box, index: Index, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for name in ("evil_sdist", "evil_below"):
        index.files[f"{name}-1.0.tar.gz"] = make_sdist(name, f"open({str(mark)!r}, 'w')\nraise SystemExit(1)\n")
    index.add("carrier", {"carrier.py": ""}, requires=("evil-below",))
    for asked in ("evil_sdist", "carrier"):
        with pytest.raises(PackageUnresolvable, match=r"evil-(sdist|below)"):
            box("1", packages=[asked])
    assert not mark.exists()


def test_a_pth_file_runs_in_the_box_alone(box: Box, index: Index, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    # Where it ran: a box has a host name of its own, and its own directory to write to.
    code = f"import os; open({str(mark)!r} if os.path.isdir({str(tmp_path)!r}) else '/tmp/ran', 'w')\n"
    index.add("evil_pth", {"evil_pth.py": "", "evil.pth": code})
    done = box("import os; print(os.path.exists('/tmp/ran'))", packages=["evil_pth"])
    assert done.stdout == b"True\n"
    assert not mark.exists()
    assert b"False" in box("import os; print(os.path.exists('/tmp/ran'))").stdout


def test_code_at_import_and_in_strange_encodings_is_only_compiled(box: Box, index: Index, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    line = f"open({str(mark)!r}, 'w')\n"
    index.add(
        "evil_code",
        {
            "evil_code/__init__.py": line,
            "evil_code/odd.py": "# -*- coding: evil_code -*-\n" + line,
            "sitecustomize.py": line,
            "usercustomize.py": line,
            "encodings/evil_code.py": line,
            "compileall.py": line,
            "json/__init__.py": line,
        },
    )
    box("1", packages=["evil_code"])
    assert not mark.exists()


@pytest.mark.parametrize(
    "path",
    [
        "../outside.py",
        "evil/../../outside.py",
        "/outside.py",
        "evil\\..\\..\\outside.py",
        "evil_path-1.0.data/scripts/../../../../outside",
        "evil_path-1.0.data/data/../../../../outside",
        "C:/outside.py",
        "evil/\x01.py",
        "x/" * 60 + "deep.py",
        "n" * 300,
    ],
)
def test_a_path_that_leads_out_is_refused(box: Box, index: Index, path: str) -> None:
    index.add("evil_path", {"evil_path.py": "", path: "x = 1\n"})
    with pytest.raises(InvalidPackage, match=r"evil-path==1.0 cannot be unpacked"):
        box("1", packages=["evil_path"])
    assert not list(box.root.parent.rglob("outside*"))


def test_a_link_is_refused(box: Box, index: Index) -> None:
    index.add("evil_link", {"evil_link.py": ""}, links={"evil_link/passwd": "/etc/passwd"})
    with pytest.raises(InvalidPackage, match=r"a symbolic link"):
        box("1", packages=["evil_link"])


def test_a_link_that_a_file_goes_through_is_refused(box: Box, index: Index) -> None:
    target = box.root.parent / "planted"
    target.mkdir(exist_ok=True)
    index.add("evil_way", {"evil_way.py": "", "door/in.py": "x"}, links={"door": str(target)})
    with pytest.raises(InvalidPackage):
        box("1", packages=["evil_way"])
    assert not list(target.iterdir())


def test_more_than_it_may_be_is_refused_before_it_is_written(box: Box, index: Index) -> None:
    box.use(index.environment, layer_bytes=4 << 20)
    index.add("evil_bomb", {"evil_bomb.py": "", "zeros": bytes(64 << 20)})
    assert len(index.files["evil_bomb-1.0-py3-none-any.whl"]) < 1 << 20
    with pytest.raises(InvalidPackage, match=r"evil-bomb==1.0 cannot be unpacked: .*more than 4194304 bytes"):
        box("1", packages=["evil_bomb"])


def test_sizes_count_over_all_packages(box: Box, index: Index) -> None:
    box.use(index.environment, layer_bytes=4 << 20)
    names = [f"evil_part{number}" for number in range(3)]
    for name in names:
        index.add(name, {f"{name}.py": "", f"{name}.bin": bytes(2 << 20)})
    with pytest.raises(InvalidPackage, match=r"more than"):
        box("1", packages=names)


def test_more_to_fetch_than_may_be_is_not_fetched(box: Box, index: Index) -> None:
    box.use(index.environment, layer_bytes=1 << 20)
    index.add("evil_size", {"evil_size.bin": os.urandom(3 << 20)})
    with pytest.raises(InvalidPackage, match=r"evil-size==1.0 the packages are larger than 1048576 bytes"):
        box("1", packages=["evil_size"])


def test_members_that_share_their_bytes_are_refused(box: Box, index: Index) -> None:
    """The densest bombs: many members of one piece of data."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("first", bytes(1 << 20))
        archive.writestr("other", bytes(1 << 20))
    data = bytearray(buffer.getvalue())
    second = data.rindex(b"PK\x01\x02")
    data[second + 42 : second + 46] = struct.pack("<L", 0)
    index.files["evil_overlap-1.0-py3-none-any.whl"] = bytes(data)
    index.extra["evil_overlap-1.0-py3-none-any.whl"] = metadata("evil_overlap")
    with pytest.raises(InvalidPackage):
        box("1", packages=["evil_overlap"])


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_wheel_is_refused_or_empty(box: Box, index: Index, content: bytes) -> None:
    name = f"evil_none{len(content)}"
    index.files[f"{name}-1.0-py3-none-any.whl"] = content
    index.extra[f"{name}-1.0-py3-none-any.whl"] = metadata(name)
    if content.startswith(b"PK"):
        assert box("print(1)", packages=[name]).stdout == b"1\n"
    else:
        with pytest.raises(InvalidPackage):
            box("1", packages=[name])


def test_what_came_is_not_what_the_lock_says(box: Box, index: Index) -> None:
    file_name = index.add("evil_swap", {"evil_swap.py": ""})
    index.served[file_name] = index.files[file_name][:-1] + b"x"
    with pytest.raises(FetchFailed, match=r"evil-swap==1.0 is not what the lock says"):
        box("1", packages=["evil_swap"])
    # Once the index gives what it promised, so does the next program.
    del index.served[file_name]
    assert box("import evil_swap", packages=["evil_swap"]).exit_code == 0


def test_modes_of_an_archive_count_for_nothing_but_execution(box: Box, index: Index) -> None:
    buffer = io.BytesIO(index.files[index.add("evil_mode", {"evil_mode.py": "X = 1\n"})])
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, mode in (("secret", 0o000), ("set_id", 0o6755)):
            member = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, (0o100000 | mode) << 16
            archive.writestr(member, "x")
    index.files["evil_mode-1.0-py3-none-any.whl"] = buffer.getvalue()
    program = (
        "import evil_mode, os\n"
        "place = os.path.dirname(evil_mode.__file__)\n"
        "print([oct(os.stat(f'{place}/{n}').st_mode & 0o7777) for n in ('evil_mode.py', 'secret', 'set_id')])"
    )
    assert eval(box(program, packages=["evil_mode"]).stdout) == ["0o644", "0o644", "0o755"]


def test_a_script_is_never_held_whole(box: Box, index: Index) -> None:
    size = 96 << 20
    scripts = {"plain": bytes(size), "python": b"#!python\n" + bytes(size)}
    index.add("evil_script", {f"evil_script-1.0.data/scripts/{name}": content for name, content in scripts.items()})
    del scripts
    tracemalloc.start()
    try:
        box("1", packages=["evil_script"])
        assert tracemalloc.get_traced_memory()[1] < size // 2
    finally:
        tracemalloc.stop()


def test_a_script_begins_with_the_interpreter_of_the_image(box: Box, index: Index) -> None:
    index.add("scripted", {"scripted-1.0.data/scripts/tell": "#!python\nprint('told')\n"})
    program = "import subprocess; print(subprocess.check_output(['tell']))"
    assert box(program, packages=["scripted"]).stdout == b"b'told\\n'\n"


def entry_points(prefix: str, count: int) -> str:
    return "[console_scripts]\n" + "".join(f"{prefix}{number}=a:b\n" for number in range(count))


def test_commands_are_few_and_of_the_package_itself(box: Box, index: Index) -> None:
    index.add("evil_many", {"evil_many-1.0.dist-info/entry_points.txt": entry_points("many", 501)})
    with pytest.raises(InvalidPackage, match=r"evil-many==1\.0 has more than 500 commands"):
        box("1", packages=["evil_many"])
    index.add("evil_twice", {"Evil.Twice-2.0.dist-info/entry_points.txt": entry_points("twice", 1)})
    with pytest.raises(InvalidPackage, match=r"evil-twice==1\.0 describes itself twice"):
        box("1", packages=["evil_twice"])
    others = {f"p{number}-1.dist-info/entry_points.txt": entry_points(f"p{number}x", 400) for number in range(3)}
    index.add("evil_others", {**others, "evil_others-1.0.dist-info/entry_points.txt": entry_points("own", 2)})
    done = box("import os; print(sorted(os.listdir('/usr/local/bin')))", packages=["evil_others"])
    listed = eval(done.stdout)
    assert {"own0", "own1"} <= set(listed)
    assert not [name for name in listed if name.startswith("p0x")]


def test_commands_count_as_files_and_bytes(box: Box, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_FILES", 50)
    index.add("evil_count", {"evil_count-1.0.dist-info/entry_points.txt": entry_points("count", 100)})
    with pytest.raises(InvalidPackage, match=r"with evil-count==1\.0 the packages are too many files"):
        box("1", packages=["evil_count"])


@pytest.mark.parametrize(
    "settings",
    [
        {
            "UV_DEFAULT_INDEX": "http://bob:S3CRET@127.0.0.1:9/simple",
            "NPM_CONFIG_REGISTRY": "http://bob:S3CRET@127.0.0.1:9/",
        },
        {"UV_DEFAULT_INDEX": "http://bob:S3CRET@[::1/simple", "NPM_CONFIG_REGISTRY": "http://bob:S3CRET@[::1/node"},
        {"UV_DEFAULT_INDEX": "{url}/S3CRET/simple", "NPM_CONFIG_REGISTRY": "{url}/S3CRET/node"},
        {"UV_FIND_LINKS": "http://127.0.0.1:9/links?t=S3CRET", "NPM_CONFIG_REGISTRY": "http://inner.invalid/S3CRET"},
    ],
    ids=["password", "malformed", "path", "query"],
)
def test_errors_do_not_show_where_the_index_is(box: Box, index: Index, settings: dict[str, str]) -> None:
    given = {name: value.format(url=index.url) if "{" in value else value for name, value in settings.items()}
    box.use({**given, "UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "3", "NPM_CONFIG_FETCH_RETRIES": "0"})
    for language, packages in (("python", {"python": ["nothere"]}), ("javascript", {"node": ["nothere"]})):
        with pytest.raises(TideboxError) as caught:
            box("1", language, packages=packages)
        shown = f"{caught.value.message} {caught.value.details}"
        for secret in ("S3CRET", "bob", "127.0.0.1", "inner.invalid", str(box.root)):
            assert secret not in shown


@pytest.mark.parametrize(
    "name",
    ["foo.whl", "foo-1.0-py3-none-any.whl", "foo.tar.gz", "foo.ZIP", "foo.tgz==1", "foo.whl[x]", "foo.tar.bz2 ; x"],
)
def test_a_file_is_no_name_of_a_python_package(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a package of an index"):
        make_packages([name])


@pytest.mark.parametrize(
    "name",
    ["foo.tgz", "@a/b.tgz", "foo.tar@1", "x@1.tgz", "x@.", "x@..", "-g", "--foo", "~x", "_x", ".x", "node_modules"],
)
def test_a_file_or_an_option_is_no_name_of_a_node_package(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a package of an index"):
        make_packages(node=[name])


def test_names_that_only_look_like_files() -> None:
    python = ("tar.gz-x", "zip", "zipp>=3", "zope.interface[test]==1.0")
    node = ("@a/b-c@^1.2", "lodash.merge@4", "tar", "tar.gz-stream", "x@>=1 <2", "zip.js")
    assert make_packages(python, node).shown() == {"python": sorted(python), "node": sorted(node)}


# What an image can have in place of the module that compiles packages.
POISON = """
import importlib._bootstrap_external as external, importlib.util, os
for directory, _, files in os.walk("/workspace"):
    for name in files:
        cached = importlib.util.cache_from_source(os.path.join(directory, name))
        os.makedirs(os.path.dirname(cached), exist_ok=True)
        code = compile("HIGH = 'poison'", name, "exec")
        with open(cached, "wb") as file:
            file.write(external._code_to_hash_pyc(code, bytes(8), False))
"""


class TestHostileImages:
    def test_bytecode_that_one_image_made_is_no_other_s(self, box: Box, index: Index, tmp_path: Path) -> None:
        index.add("tide", {"tide.py": "HIGH = 7\n"})
        for name, library in (("evil-image", {"compileall.py": POISON}), ("good-image", {})):
            python_rootfs(tmp_path / f"{name}.tar", {}, library)
            box.images.import_(name, tmp_path / f"{name}.tar")
        program = "import tide; print(tide.HIGH)"
        assert box(program, image="evil-image", packages=["tide"]).stdout == b"poison\n"
        assert box(program, image="good-image", packages=["tide"]).stdout == b"7\n"
        assert box(program, packages=["tide"]).stdout == b"7\n"

    def test_a_command_of_a_package_does_not_compile_others(self, box: Box, index: Index) -> None:
        manifest = json.dumps({"bin": {"python3": "python3.sh"}})
        script = "#!/bin/sh\nexit 1\n"
        index.add_node("evil-python", {"package/package.json": manifest, "package/python3.sh": script})
        index.add("tide", {"tide.py": "HIGH = 7\n"})
        packages = make_packages(node=["evil-python"])
        base = box.images.resolve("host")

        async def layered() -> str:
            return await box.engine.packager.image_with("host", packages, lambda _: None)

        image = box.images.resolve(box.runner.submit(layered()).result(60))
        box.images.tag("evil-command", base, image, packages, ())
        assert box(None, command=["python3"], image="evil-command").exit_code == 1  # type: ignore[arg-type]
        command = ["/usr/bin/python3", "-c", "import tide; print(tide.HIGH)"]
        done = box(None, command=command, image="evil-command", packages=["tide"])  # type: ignore[arg-type]
        assert done.stdout == b"7\n"


class TestNode:
    def test_commands_are_few(self, box: Box, index: Index) -> None:
        manifest = json.dumps({"bin": {f"command{number}": "index.js" for number in range(501)}})
        index.add_node("evil-bin", {"package/index.js": "1", "package/package.json": manifest})
        with pytest.raises(InvalidPackage, match=r"evil-bin.* has more than 500 commands"):
            box("1", "javascript", packages={"node": ["evil-bin"]})

    def test_paths_and_links_are_refused(self, box: Box, index: Index) -> None:
        index.add_node("evil-up", {"package/../../outside.js": "1"})
        index.add_node("evil-link", {"package/index.js": "1"}, links={"package/x": "/etc/passwd"})
        for name in ("evil-up", "evil-link"):
            with pytest.raises(InvalidPackage, match=name):
                box("1", "javascript", packages={"node": [name]})
        assert not list(box.root.parent.rglob("outside*"))

    def test_a_dependency_that_is_a_place_is_refused(self, box: Box, index: Index, tmp_path: Path) -> None:
        (tmp_path / "package.json").write_text('{"name": "local", "version": "1.0.0"}')
        manifest = json.dumps({"dependencies": {"local": f"file:{tmp_path}"}})
        index.add_node("evil-place", {"package/package.json": manifest})
        with pytest.raises(PackageUnresolvable):
            box("1", "javascript", packages={"node": ["evil-place"]})

    def test_what_came_is_not_what_the_lock_says(self, box: Box, index: Index) -> None:
        index.add_node("evil-swap", {"package/index.js": "1"})
        index.served["evil-swap-1.0.0.tgz"] = index.files["evil-swap-1.0.0.tgz"] + b"x"
        with pytest.raises(FetchFailed):
            box("1", "javascript", packages={"node": ["evil-swap"]})

    @pytest.mark.parametrize("field", FIELDS)
    @pytest.mark.parametrize(
        "form", ["{url}/x.tgz", "git+{url}/repo.git", "git+file://{repo}", "git+ssh://git@{url}/x"]
    )
    @pytest.mark.parametrize("known", [True, False], ids=["options", "guard"])
    def test_no_address_but_the_registry_is_asked_and_no_git_runs(
        self,
        box: Box,
        index: Index,
        inner: Index,
        traps: Path,
        monkeypatch: pytest.MonkeyPatch,
        field: str,
        form: str,
        known: bool,
    ) -> None:
        if not known:
            # As with an npm that knows no such options.
            monkeypatch.setattr(node, "_REGISTRIES_ONLY", ())
        repository = traps / "repository"
        subprocess.run(["git", "init", "-q", repository], check=True)
        place = form.format(url=inner.url if "ssh" not in form else "127.0.0.1:1", repo=repository)
        index.add_node("evil-call", {"package/package.json": json.dumps({field: {"x": place}})})
        box.use({**index.environment, "PATH": f"{traps}:{os.environ['PATH']}"})
        try:
            box("1", "javascript", packages={"node": ["evil-call"]})
        except PackageUnresolvable:
            pass
        else:
            assert field == "optionalDependencies"
        assert not inner.asked
        assert not (traps / "ran").exists()

    def test_an_archive_at_another_address_is_refused(
        self, box: Box, index: Index, inner: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(node, "_REGISTRIES_ONLY", ())
        for name, more in (("evil-far", {}), ("evil-wrap", {"_hasShrinkwrap": True})):
            index.add_node(name, {"package/index.js": "1"})
            version = index.node[name]["versions"]["1.0.0"]  # type: ignore[index]
            version.update(more)
            version["dist"]["tarball"] = f"{inner.url}/files/x.tgz"
            with pytest.raises(PackageUnresolvable, match=name):
                box("1", "javascript", packages={"node": [name]})
        assert not inner.asked

    def test_npm_unpacks_nothing_while_it_resolves(
        self, box: Box, index: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(node, "_REGISTRIES_ONLY", ())
        index.add_node("evil-shrink", {"package/npm-shrinkwrap.json": "{}", "package/zeros": "0" * (1 << 20)})
        index.node["evil-shrink"]["versions"]["1.0.0"]["_hasShrinkwrap"] = True  # type: ignore[index]
        with pytest.raises(PackageUnresolvable, match="evil-shrink"):
            box("1", "javascript", packages={"node": ["evil-shrink"]})
        assert not index.asked["/files/evil-shrink-1.0.0.tgz"]


@pytest.fixture
def inner() -> Iterator[Index]:
    """A server that no package may make anybody ask."""
    with running_index() as found:
        yield found


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A directory of programs that leave a mark when they are run."""
    for name in ("git", "ssh"):
        real = shutil.which(name)
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} >> {tmp_path}/ran\nexec {real} "$@"\n')
        (tmp_path / name).chmod(0o755)
    return tmp_path
