"""Images that recipes make: what their steps leave, once and for all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tests.cli.command import error_line, tidebox
from tests.languages.conftest import ALL
from tests.patience import patient
from tests.runtimes import native_only
from tidebox.errors import InvalidImage
from tidebox.model.recipes import Recipe, Step
from tidebox.runtime import cooking
from tidebox.runtime.images import IMAGES, Image, ImageStore

pytestmark = native_only("recipes make images of the native runtime")

WORKED_OUT = "mkdir -p out/opt/thing && date +%N >out/opt/thing/when && cat given >>out/opt/thing/when"
RECIPE = Recipe(
    name="thing",
    steps=(Step(command=("sh", "-c", WORKED_OUT), files=(("given", b"given\n"),)),),
    links=(("usr/local/bin/thing", "/opt/thing/when"),),
)


def made(runner: BoxRunner, recipe: Recipe) -> tuple[ImageStore, Image]:
    store = ImageStore(runner.engine.settings.data_dir / IMAGES)
    work = cooking.finished(recipe, store.resolve("host"), store, runner.engine.runners.run, lambda _: None)
    return store, runner.submit(work).result(patient(60))


def test_what_a_step_leaves_is_worked_out_once(languages_runner: BoxRunner) -> None:
    store, first = made(languages_runner, RECIPE)
    image = store.tag("thing", store.resolve("host"), first, first.packages, ())
    _, second = made(languages_runner, RECIPE)
    assert second.digest == first.digest == image.digest
    code = "import os\nprint(open('/usr/local/bin/thing').read().splitlines()[1])\nos.unlink('/opt/thing/when')"
    done = languages_runner(code, image="thing", timeout=patient(20))
    assert done.text == "given\n"
    assert b"Read-only file system" in done.stderr


@pytest.mark.skipif(ALL not in os.environ, reason="make test-languages makes images of Debian packages")
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("language", ["ruby"], indirect=True)
def test_the_same_packages_are_the_same_image(language: str, tmp_path: Path) -> None:
    def digest(data_dir: str, *words: str) -> str:
        done = tidebox("image", *words, "--json", env={"SANDBOX_DATA_DIR": data_dir}, seconds=1200)
        assert done.returncode == 0, done.stderr
        found: str = json.loads(done.stdout)["digest"]
        return found

    kept = digest(os.environ[ALL], "show", f"tidebox/{language}")
    assert digest(str(tmp_path), "build", "--recipe", language) == kept


def test_a_step_that_fails_leaves_no_image(languages_runner: BoxRunner) -> None:
    failing = Recipe(name="failing", steps=(Step(command=("sh", "-c", "echo why >&2; exit 4")),))
    with pytest.raises(InvalidImage, match=r"a step of the recipe failed.*4.*why"):
        made(languages_runner, failing)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipe", "cobol"], "no recipe 'cobol'"),
        (["x", "--recipe", "c", "--node", "zod"], "--recipe goes with --apt alone"),
        (["x", "--recipe", "c", "--from", "host"], "--recipe goes with --apt alone"),
        (["x", "--recipe", "typescript", "--apt", "gcc"], "makes its image without Debian packages"),
        (["x", "--recipe", "c", "--apt", "../gcc"], "not the name of a package"),
    ],
)
def test_a_recipe_that_cannot_be_carried_out(tmp_path: Path, words: list[str], said: str) -> None:
    done = tidebox("image", "build", *words, env={"SANDBOX_DATA_DIR": str(tmp_path)})
    assert said in error_line(done)


def test_an_image_needs_a_name_or_a_recipe() -> None:
    done = tidebox("image", "build")
    assert done.returncode == 2
    assert b"Missing argument 'NAME'" in done.stderr


def test_the_image_of_a_language_is_the_one_that_was_made(tmp_path: Path) -> None:
    runner = start_runner(tmp_path, pool_node=0, pool_python=0, pool_blank=0, pool_elixir=0)
    try:
        runners = runner.engine.runners
        store = ImageStore(runner.engine.settings.data_dir / IMAGES)
        host = store.resolve("host")
        store.tag("tidebox/ruby", host, host, host.packages, ())
        assert runners.languages_of(runners.default.runtime)["ruby"] == "tidebox/ruby"
        assert store.resolve("ruby:3.3-slim").name == "tidebox/ruby"
    finally:
        stop_runner(runner)
