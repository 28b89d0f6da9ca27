"""Packages as requests, files and scripts name them."""

from __future__ import annotations

import time

import pytest

from tidebox.errors import InvalidRequest
from tidebox.model.packages import (
    NO_PACKAGES,
    make_packages,
    packages_of,
    python_name,
    read_requirements,
    script_packages,
)


@pytest.mark.parametrize(
    "requirement",
    ["a", "A.b_c-d", "a>=2", "a >= 2 , < 4", "a[b, c]==1.0", 'a; python_version < "4"', "a (>=1)", "a==1.*"],
)
def test_what_an_index_has(requirement: str) -> None:
    assert make_packages([requirement]).python == (requirement,)


def test_names_have_one_form() -> None:
    assert {python_name(text) for text in ("A_b.C", "a-b-c>=2", "a--b__c[x]")} == {"a-b-c"}
    assert make_packages(["A_b"], ["@x/y@^1"]).names() == [("python", "a-b"), ("node", "@x/y")]


def test_how_a_caller_writes_them() -> None:
    assert packages_of(None) is NO_PACKAGES
    assert packages_of(["b", "a", "a"]).python == ("a", "b")
    assert packages_of({"node": ["z"]}).node == ("z",)
    for wrong in ("pandas", {"ruby": ["x"]}, [1]):
        with pytest.raises(InvalidRequest):
            packages_of(wrong)  # type: ignore[arg-type]


def test_requirements_of_a_file() -> None:
    assert read_requirements("# all\na>=1  # why\n\n  b\n") == ("a>=1", "b")
    for line in ("-r other.txt", "a @ https://x", "--hash=sha256:0", "./a"):
        with pytest.raises(InvalidRequest, match="line 2"):
            read_requirements(f"a\n{line}\n")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("print(1)\n", ()),
        ("# /// script\n# dependencies = ['a']\n# ///\n", ("a",)),
        ("#!/usr/bin/python3\r\n# /// script\r\n# dependencies = ['a']\r\n# ///\r\nimport a\r\n", ("a",)),
        ("# /// script\n# dependencies = [\n#   'a',\n#\n#   'b>=2',\n# ]\n# ///", ("a", "b>=2")),
        ("# /// script\n# requires-python = '>=3.9'\n# ///\n", ()),
        ("# /// other\n# dependencies = ['a']\n# ///\n", ()),
        ("# /// script\n# dependencies = ['a']\n", ()),
        ("# /// script\n# dependencies = ['a']\nimport a\n# ///\n", ()),
    ],
)
def test_metadata_of_a_script(script: str, found: tuple[str, ...]) -> None:
    assert script_packages(script.encode()).python == found


@pytest.mark.parametrize(
    "script",
    [
        "# /// script\n# dependencies = [\n# ///\n",
        "# /// script\n# dependencies = 'a'\n# ///\n",
        "# /// script\n# dependencies = [1]\n# ///\n",
        "# /// script\n# dependencies = ['a @ http://x']\n# ///\n",
        "# /// script\n# ///\n\n# /// script\n# ///\n",
    ],
)
def test_metadata_that_is_wrong(script: str) -> None:
    with pytest.raises(InvalidRequest):
        script_packages(script.encode())


def test_no_text_takes_long_to_read() -> None:
    texts = ["a" + " " * 254 + "/", "a" * 255 + "/", "a[" + " " * 253, "a==1" + " ,==1" * 50 + "/", "a" + " [b]" * 60]
    before = time.thread_time()
    for text in texts:
        for node in (False, True):
            with pytest.raises(InvalidRequest):
                make_packages(*(((), [text]) if node else ([text], ())))
    for script in (b"# /// script\n" * 50_000, b"# /// script\n" + b"# x\n" * 50_000):
        assert script_packages(script) is NO_PACKAGES
    assert time.thread_time() - before < 2
