"""Packages on the command line: ``run --with``, metadata of a script, ``image build``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import error_line, tidebox
from tests.packages.index import Index

TIDE = {"tide/__init__.py": "HIGH = 7\n"}
SCRIPT = """\
# /// script
# requires-python = ">=3.9"
# dependencies = [
#   "tide",
# ]
# ///
import tide
print(tide.HIGH)
"""


@pytest.fixture
def settings(index: Index, tmp_path: Path) -> dict[str, str]:
    return {**index.environment, "SANDBOX_DATA_DIR": str(tmp_path / "data")}


def run(settings: dict[str, str], *arguments: str | Path, **more: bytes) -> subprocess.CompletedProcess[bytes]:
    return tidebox(*arguments, env=settings, seconds=90, stdin=more.get("stdin", b""))


def test_with(index: Index, settings: dict[str, str], tmp_path: Path) -> None:
    index.add("tide", TIDE)
    index.add("moon", {"moon.py": "X = 1\n"})
    (tmp_path / "p.py").write_text("import tide, moon; print(tide.HIGH, moon.X)")
    done = run(settings, "run", "--with", "tide", "--with", "moon>=1", tmp_path / "p.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"7 1\n", b"")
    index.asked.clear()
    done = run(settings, "run", "--with", "tide", "--with", "moon>=1", "-c", "import tide; print(tide.HIGH)")
    assert (done.stdout, index.asked) == (b"7\n", {})


def test_packages_are_of_the_language_of_the_program(index: Index, settings: dict[str, str], tmp_path: Path) -> None:
    index.add_node("shore", {"package/index.js": "exports.sand = 5"})
    (tmp_path / "p.mjs").write_text("import shore from 'shore'; console.log(shore.sand)")
    done = run(settings, "run", "--with", "shore", tmp_path / "p.mjs")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"5\n", b"")


def test_a_script_says_what_it_needs(index: Index, settings: dict[str, str], tmp_path: Path) -> None:
    index.add("tide", TIDE)
    (tmp_path / "script.py").write_text(SCRIPT)
    for arguments, stdin in ((("run", tmp_path / "script.py"), b""), (("run", "-"), SCRIPT.encode())):
        done = run(settings, *arguments, stdin=stdin)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"7\n", b"")
    done = run(settings, "run", "-c", SCRIPT.replace('"tide"', '"not-there"'))
    assert "not-there" in error_line(done)
    assert "metadata" in error_line(run(settings, "run", "-c", "# /// script\n# a = [\n# ///\n"))


@pytest.mark.parametrize("package", ["not-there", "git+https://x/y", "--index-url", "tide==99"])
def test_what_cannot_be_had_is_one_line_that_names_it(index: Index, settings: dict[str, str], package: str) -> None:
    index.add("tide", TIDE)
    done = run(settings, "run", "--with", package, "-c", "print(1)")
    assert done.stdout == b""
    assert package.partition("==")[0] in error_line(done)


def test_the_policy_counts_here_too(index: Index, settings: dict[str, str]) -> None:
    index.add("tide", TIDE)
    for value in ("off", "moon,sun"):
        done = run({**settings, "SANDBOX_PACKAGES": value}, "run", "--with", "tide", "-c", "1")
        assert "tide" in error_line(done)
    done = run({**settings, "SANDBOX_PACKAGES": "tide"}, "run", "--with", "tide", "-c", "import tide")
    assert done.returncode == 0
    assert "SANDBOX_PACKAGES" in error_line(run({**settings, "SANDBOX_PACKAGES": "any,tide"}, "run", "-c", "1"))


class TestImages:
    def test_build_show_list_remove_prune(self, index: Index, settings: dict[str, str], tmp_path: Path) -> None:
        index.add("tide", TIDE, requires=("moon",))
        index.add("moon", {"moon.py": "X = 1\n"})
        index.add_node("shore", {"package/index.js": "exports.sand = 5"})
        (tmp_path / "requirements.txt").write_text("# what we need\ntide>=1  # always\n\n")
        options = ("--requirements", tmp_path / "requirements.txt", "--node", "shore", "--preload", "tide")
        built = run(settings, "image", "build", "data", "--from", "host", *options)
        assert (built.returncode, built.stderr) == (0, b"")
        assert built.stdout.startswith(b"data sha256:")
        program = "import tide, moon, subprocess; print(tide.HIGH, moon.X)"
        assert run(settings, "run", "--image", "data", "-c", program).stdout == b"7 1\n"
        js = "console.log(require('shore').sand)"
        assert run(settings, "run", "--image", "data", "--language", "js", "-c", js).stdout == b"5\n"

        shown = run(settings, "image", "show", "data").stdout.decode()
        for word in ("data", "host", "tide==1.0", "moon==1.0", "shore==1.0.0", "preloads"):
            assert word in shown
        described = json.loads(run(settings, "image", "show", "data", "--json").stdout)
        assert described["preload"] == ["tide"]
        assert described["packages"] == {"python": ["tide>=1"], "node": ["shore"]}
        assert [layer["language"] for layer in described["layers"]] == ["python", "node"]
        assert described["layers"][0]["lock"][0]["digest"].startswith("sha256:")
        assert json.loads(run(settings, "image", "list", "--json").stdout) == {"items": [described]}

        # More on top of it keeps what it has.
        index.add("sun", {"sun.py": ""})
        done = run(settings, "run", "--image", "data", "--with", "sun", "-c", "import sun, tide; print(tide.HIGH)")
        assert done.stdout == b"7\n"
        built = run(settings, "image", "build", "more", "--from", "data", "--python", "sun")
        assert built.returncode == 0
        described = json.loads(run(settings, "image", "show", "more", "--json").stdout)
        assert (described["base"], described["preload"]) == ("data", ["tide"])
        assert described["packages"]["python"] == ["sun", "tide>=1"]

        assert run(settings, "image", "remove", "more").returncode == 0
        assert run(settings, "image", "remove", "data").returncode == 0
        layers = tmp_path / "data" / "images" / "packages" / "layers"
        for layer in layers.iterdir():
            (layer / "used").touch()
            subprocess.run(["touch", "-d", "@1", layer / "used"], check=True)
        assert run(settings, "image", "prune").stdout.startswith(b"removed 3 layers")
        assert list(layers.iterdir()) == []

    def test_a_failed_build_names_nothing(self, index: Index, settings: dict[str, str]) -> None:
        done = run(settings, "image", "build", "data", "--python", "not-there")
        assert "not-there" in error_line(done)
        assert json.loads(run(settings, "image", "list", "--json").stdout) == {"items": []}

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--from", "nothing", "--python", "tide"),
            ("--from", "host", "--apt", "python3"),
            ("--python", "/etc/passwd"),
            ("--node", "../x"),
            ("--preload", "a-b"),
            ("--requirements", "/no/such/file"),
        ],
    )
    def test_bad_input_is_one_line(self, settings: dict[str, str], arguments: tuple[str, ...]) -> None:
        assert error_line(run(settings, "image", "build", "data", *arguments))
