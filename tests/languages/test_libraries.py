"""Libraries of other ecosystems than those of Python and Node: packages of Debian, put into the image by its recipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.boxes import BoxRunner
from tests.cli.command import tidebox
from tests.languages.conftest import ALL
from tests.patience import patient
from tests.runtimes import native_only
from tidebox.model.limits import GIB

pytestmark = [
    native_only("recipes make images of the native runtime"),
    pytest.mark.skipif(ALL not in os.environ, reason="make test-languages makes images of Debian packages"),
    pytest.mark.timeout(2400),
]

LIBRARIES = {
    "go": (
        ["golang-github-google-uuid-dev"],
        'package main\n\nimport (\n\t"fmt"\n\n\t"github.com/google/uuid"\n)\n\n'
        'func main() {\n\tfmt.Println(uuid.MustParse("0000002a-0000-0000-0000-000000000000").ID())\n}\n',
        "42\n",
    ),
    "java": (
        ["libcommons-lang3-java"],
        "import org.apache.commons.lang3.StringUtils;\n\nclass Main {\n  public static void main(String[] words) {\n"
        '    System.out.println(StringUtils.reverse("olleh"));\n  }\n}\n',
        "hello\n",
    ),
    "ruby": (["ruby-rainbow"], 'require "rainbow"\nputs Rainbow.uncolor(Rainbow("hello").red)\n', "hello\n"),
    "r": (["r-cran-jsonlite"], 'cat(jsonlite::fromJSON("{\\"a\\": 42}")$a, "\\n")\n', "42 \n"),
    "rust": (
        ["librust-itoa-dev", "librust-smallvec-dev"],
        "use smallvec::{smallvec, SmallVec};\n\nfn main() {\n    let numbers: SmallVec<[u8; 4]> = smallvec![1, 2];\n"
        '    println!("{} {}", itoa::Buffer::new().format(42), numbers.len());\n}\n',
        "42 2\n",
    ),
    "cpp": (
        ["nlohmann-json3-dev"],
        "#include <iostream>\n#include <nlohmann/json.hpp>\n\nint main() {\n"
        '  std::cout << nlohmann::json::parse("{\\"a\\": 42}")["a"] << "\\n";\n}\n',
        "42\n",
    ),
}
"""By language: Debian packages, and a program that needs them with what it prints."""


@pytest.mark.parametrize("language", LIBRARIES)
def test_a_program_has_a_library_of_its_image(languages_runner: BoxRunner, language: str) -> None:
    packages, code, said = LIBRARIES[language]
    data_dir, image = os.environ[ALL], f"with/{language}"
    if not (Path(data_dir) / "images" / "names" / f"with%2F{language}.json").exists():
        words = [word for package in packages for word in ("--apt", package)]
        built = tidebox(
            "image", "build", image, "--recipe", language, *words, env={"SANDBOX_DATA_DIR": data_dir}, seconds=1800
        )
        assert built.returncode == 0, built.stderr
    limits = {"memory": GIB, "compile_timeout": patient(100.0), "timeout": patient(60.0), "pids": 512}
    done = languages_runner(code, language, image=image, **limits)
    assert (done.stdout.decode(), done.exit_code) == (said, 0), done
    # It is of that image, and not of the one without.
    assert not languages_runner(code, language, image=f"tidebox/{language}", **limits).ok
