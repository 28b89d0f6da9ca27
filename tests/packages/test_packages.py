"""Packages by name in boxes: where programs find them, and that each layer is made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.peer import interpreters
from tests.images import import_python
from tests.packages.conftest import Box
from tests.packages.index import Index
from tests.packages.rootfs import python_rootfs
from tidebox.embedded import start_of
from tidebox.errors import InvalidRequest, PackageForbidden, PackageUnresolvable
from tidebox.model.packages import make_packages, policy_of

TIDE = {"tide/__init__.py": "HIGH = 7\n", "tide/low.py": "print(__name__)\n"}

_FOUND = list(interpreters())
# Between the oldest and the newest that this machine has, all are tried only where there is time.
VERSIONS = _FOUND if "TIDEBOX_TEST_ALL_PACKAGES" in os.environ else list(dict.fromkeys([_FOUND[0], _FOUND[-1]]))


class TestPython:
    def test_a_package_is_imported_however_the_interpreter_is_started(self, box: Box, index: Index) -> None:
        index.add("tide", TIDE)
        assert box("import tide; print(tide.HIGH, tide.__file__)", packages=["tide"]).stdout.startswith(b"7 /usr")
        program = (
            "import subprocess, sys\n"
            "for more in (['-c', 'import tide; print(tide.HIGH)'], ['-m', 'tide.low']):\n"
            "    print(subprocess.run([sys.executable, *more], capture_output=True, text=True).stdout, end='')\n"
        )
        assert box(program, packages=["tide"]).stdout == b"7\n__main__\n"
        done = box(None, command=["python3", "-c", "import tide; print(tide.HIGH)"], packages=["tide"])  # type: ignore[arg-type]
        assert done.stdout == b"7\n"

    def test_what_it_needs_comes_with_it(self, box: Box, index: Index) -> None:
        index.add("tide", TIDE, requires=("moon>=2",))
        index.add("moon", {"moon.py": "PHASE = 'old'\n"})
        index.add("moon", {"moon.py": "PHASE = 'new'\n"}, version="2.5")
        assert box("import moon; print(moon.PHASE)", packages=["tide"]).stdout == b"new\n"

    def test_its_commands_are_on_the_path(self, box: Box, index: Index) -> None:
        points = (
            "[console_scripts]\n"
            "tide = tide:main\n"
            "../../tide-out = tide:main\n"
            "tide-code = tide:main;import os\n"
            "tide-space = tide : main [extra]\n"
        )
        index.add(
            "tide",
            {
                "tide/__init__.py": "import sys\ndef main():\n    print('in', sys.argv[1:])\n    return 3\n",
                "tide-1.0.dist-info/entry_points.txt": points,
                "tide-1.0.data/scripts/ebb": "#!python\nprint('ebb')\n",
                "tide-1.0.data/data/share/tide.txt": "salt",
                "tide-1.0.data/headers/tide.h": "int tide;",
            },
        )
        done = box(None, command=["sh", "-c", "tide a; echo $?; ebb; tide-space"], packages=["tide"])  # type: ignore[arg-type]
        assert done.stdout == b"in ['a']\n3\nebb\nin []\n"
        shown = box("import os; print([n for n in os.listdir('/usr/local/bin') if 'tide' in n])", packages=["tide"])
        assert sorted(eval(shown.stdout)) == ["tide", "tide-space"]
        assert box("print(open('/usr/local/share/tide.txt').read())", packages=["tide"]).stdout == b"salt\n"

    def test_its_bytecode_is_there_and_is_that_of_its_place(self, box: Box, index: Index) -> None:
        index.add("tide", {**TIDE, "tide/broken.py": "def (:\n", "tide/deep/er/x.py": "X = 1\n"})
        program = (
            "import tide, tide.deep.er.x as x, os\n"
            "print(os.path.exists(tide.__cached__), os.path.exists(x.__cached__))\n"
            "print((lambda: 0).__code__.co_filename, x.__spec__.loader.get_code(x.__name__).co_filename)\n"
        )
        done = box(program, packages=["tide"])
        assert done.stdout.splitlines()[0] == b"True True"
        assert done.stdout.split()[-1].endswith(b"dist-packages/tide/deep/er/x.py"), done.stdout

    def test_it_is_not_mixed_with_what_the_machine_happens_to_have(self, box: Box, index: Index) -> None:
        index.add("tide", TIDE)
        show = "import sys; print([p for p in sys.path if 'packages' in p])"
        assert len(eval(box(show, packages=["tide"]).stdout)) == 1

    def test_nothing_of_it_can_be_written(self, box: Box, index: Index) -> None:
        index.add("tide", TIDE)
        done = box("import tide; open(tide.__file__, 'w')", packages=["tide"])
        assert b"Read-only file system" in done.stderr or b"Permission denied" in done.stderr

    def test_other_boxes_do_not_have_it(self, box: Box, index: Index) -> None:
        index.add("tide", TIDE)
        assert box("import tide", packages=["tide"]).exit_code == 0
        assert b"No module named 'tide'" in box("import tide").stderr


class TestImportedImages:
    def test_an_image_keeps_its_packages_and_those_on_top_hide_the_same_names(
        self, box: Box, index: Index, tmp_path: Path
    ) -> None:
        own = {
            "tide/__init__.py": "HIGH = 'old'\n",
            "tide/gone.py": "",
            "kept/__init__.py": "X = 1\n",
            "sea/north.py": "",
        }
        python_rootfs(tmp_path / "rootfs.tar", own)
        box.images.import_("own-python", tmp_path / "rootfs.tar")
        index.add("tide", {**TIDE, "sea/south.py": ""})
        program = (
            "import tide, kept, sea.north, sea.south, importlib.util\n"
            "print(tide.HIGH, kept.X, importlib.util.find_spec('tide.gone'))"
        )
        done = box(program, image="own-python", packages=["tide"])
        assert (done.stdout, done.stderr) == (b"7 1 None\n", b"")
        assert box("import tide; print(tide.HIGH)", image="own-python").stdout == b"old\n"

    @pytest.mark.parametrize("version", VERSIONS)
    def test_it_has_its_own_version_of_python(self, box: Box, index: Index, version: str) -> None:
        image = f"python-{version}"
        import_python(box.root.parents[1], image, interpreters()[version])
        index.add("tide", TIDE)
        program = "import sys, tide; print(sys.version_info[:2], tide.HIGH, tide.__cached__.endswith('.pyc'))"
        done = box(program, image=image, packages=["tide"])
        assert (done.stdout, done.stderr) == (f"({version.replace('.', ', ')}) 7 True\n".encode(), b"")
        start = box.runner.submit(start_of(box.engine, "python", image)).result(60)
        assert start == "parked", "a program that is given to a waiting interpreter ends as it should"

    def test_an_image_without_the_interpreter_says_so(self, box: Box, index: Index, tmp_path: Path) -> None:
        python_rootfs(tmp_path / "rootfs.tar", {})
        box.images.import_("no-node", tmp_path / "rootfs.tar")
        index.add_node("shore", {"package/index.js": "1"})
        with pytest.raises(PackageUnresolvable, match="there is no node in the image no-node"):
            box("1", image="no-node", packages={"node": ["shore"]})


class TestNode:
    def test_it_is_found_by_require_and_import(self, box: Box, index: Index) -> None:
        index.add_node("shore", {"package/index.js": "exports.sand = 5"})
        assert box("console.log(require('shore').sand)", "javascript", packages={"node": ["shore"]}).stdout == b"5\n"
        module = b"import shore from 'shore'; console.log(shore.sand)"
        done = box(
            None,  # type: ignore[arg-type]
            command=["node", "m.mjs"],
            files={"m.mjs": module},
            packages={"node": ["shore@1"]},
        )
        assert done.stdout == b"5\n"

    def test_no_script_of_it_runs_and_its_commands_are_on_the_path(
        self, box: Box, index: Index, tmp_path: Path
    ) -> None:
        mark = tmp_path / "ran"
        manifest = (
            '{"scripts": {"preinstall": "touch %s", "install": "touch %s", "postinstall": "touch %s",'
            ' "prepare": "touch %s"}, "bin": {"sandy": "./cli.js", "../out": "cli.js", "up": "../../x"}}'
        ) % ((mark,) * 4)
        script = "#!/usr/bin/env node\nconsole.log('beach')"
        index.add_node("shore", {"package/package.json": manifest, "package/cli.js": script})
        done = box(None, command=["sandy"], packages={"node": ["shore"]})  # type: ignore[arg-type]
        assert done.stdout == b"beach\n"
        assert not mark.exists()

    def test_typescript_has_the_packages_of_node(self, box: Box, index: Index) -> None:
        index.add_node("shore", {"package/index.js": "exports.sand = 5"})
        code = 'import { sand } from "shore";\nconst much: number = sand;\nconsole.log(much, require("shore").sand);\n'
        assert box(code, "typescript", packages={"node": ["shore"]}).stdout == b"5 5\n"

    def test_python_and_node_together(self, box: Box, index: Index) -> None:
        index.add("tide", TIDE)
        index.add_node("shore", {"package/index.js": "exports.sand = 5"})
        program = (
            "import tide, subprocess\n"
            "js = 'console.log(require(\"shore\").sand)'\n"
            "print(tide.HIGH, subprocess.run(['node', '-e', js], capture_output=True, text=True).stdout)"
        )
        assert box(program, packages={"python": ["tide"], "node": ["shore"]}).stdout.split() == [b"7", b"5"]

    def test_one_that_is_not_there_is_named(self, box: Box) -> None:
        with pytest.raises(PackageUnresolvable, match=r"not-there"):
            box("1", "javascript", packages={"node": ["not-there"]})


class TestRequests:
    def test_one_that_is_not_there_is_named(self, box: Box) -> None:
        with pytest.raises(PackageUnresolvable, match=r"cannot resolve not-there: .*not-there"):
            box("1", packages=["not-there"])

    def test_versions_that_exclude_each_other_are_named(self, box: Box, index: Index) -> None:
        index.add("tide", TIDE, requires=("moon<2",))
        index.add("moon", {"moon.py": ""})
        index.add("moon", {"moon.py": ""}, version="2.5")
        with pytest.raises(PackageUnresolvable, match=r"moon"):
            box("1", packages=["tide", "moon>=2"])

    @pytest.mark.parametrize(
        "requirement",
        [
            "",
            "-r /etc/passwd",
            "--index-url=http://x",
            "tide @ http://127.0.0.1/tide.whl",
            "git+https://x/y",
            "./tide",
            "/etc/passwd",
            "tide\nmoon",
            "x" * 300,
        ],
    )
    def test_what_is_no_name_of_an_index_is_refused(self, requirement: str) -> None:
        with pytest.raises(InvalidRequest):
            make_packages([requirement])
        with pytest.raises(InvalidRequest):
            make_packages(node=[requirement])

    def test_a_second_run_needs_no_index(self, box: Box, index: Index) -> None:
        index.add("again", {"again.py": ""})
        box("import again", packages=["again"])
        index.asked.clear()
        assert box("import again", packages=["again"]).exit_code == 0
        assert not index.asked

    def test_requests_of_one_lock_share_a_layer(self, box: Box, index: Index) -> None:
        index.add("shared", {"shared.py": ""})
        box("import shared", packages=["shared"])
        before = {layer.digest for layer in box.images.layers.list()}
        index.asked.clear()
        box("import shared", packages=["shared>=1"])
        assert {layer.digest for layer in box.images.layers.list()} == before
        assert not any(path.endswith(".whl") for path in index.asked)

    def test_policy(self) -> None:
        asked = make_packages(["Tide_Lib>=2"], ["@sea/shore"])
        policy_of(None, owner=True).check(asked)
        policy_of(("any",), owner=False).check(asked)
        policy_of(("tide-lib", "@sea/shore"), owner=False).check(asked)
        for setting in (None, ("off",), ("tide-lib",)):
            with pytest.raises(PackageForbidden, match=r"tide-lib|@sea/shore"):
                policy_of(setting, owner=False).check(asked)
        with pytest.raises(PackageForbidden):
            policy_of(("off",), owner=True).check(asked)

    @pytest.mark.parametrize(
        ("entry", "python", "node"),
        [
            ("tide.lib", ["tide-lib"], ["tide.lib"]),
            ("python:tide.lib", ["tide-lib"], []),
            ("node:tide.lib", [], ["tide.lib"]),
            ("@sea/shore", [], ["@sea/shore"]),
        ],
    )
    def test_an_entry_of_a_list_means_what_each_index_calls_so(
        self, entry: str, python: list[str], node: list[str]
    ) -> None:
        policy = policy_of((entry,), owner=False)
        for packages in [make_packages([name]) for name in python] + [make_packages(node=[name]) for name in node]:
            policy.check(packages)
        refused = [make_packages([name]) for name in ("tide-lib",) if name not in python]
        refused += [make_packages(node=[name]) for name in ("tide-lib", "tide.lib", "@sea/shore") if name not in node]
        for packages in refused:
            with pytest.raises(PackageForbidden):
                policy.check(packages)
