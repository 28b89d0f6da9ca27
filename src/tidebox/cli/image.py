"""``tidebox image``: what boxes are made from, imported, built, listed and removed."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidebox.cli.output import note, one_line, print_table
from tidebox.cli.remote import JsonCommand, json_option
from tidebox.cli.wording import size_text

if TYPE_CHECKING:
    from tidebox.embedded import Image, ImageStore
    from tidebox.model.events import Preparing

_name = click.argument("name", help="What to call it, like debian:12 or my/app.")


class _InOrder(click.Group):
    """Shows its commands in the order in which one needs them."""

    command_class = JsonCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("image", cls=_InOrder)
def command() -> None:
    """Root file systems for boxes."""


@command.command("import")
@_name
@click.argument(
    "source",
    type=click.Path(path_type=Path),
    help="A tar archive of a root file system, or an OCI layout; - is standard input.",
)
@json_option
def import_image(name: str, source: Path, as_json: bool) -> None:
    """Take a root file system from a tar archive or an OCI layout."""
    from tidebox.cli.progress import BusyLine

    with BusyLine(f"Unpacking {source}"):
        image = _store().import_(name, Path("/dev/stdin") if str(source) == "-" else source)
    _show(image, as_json)


@command.command("build")
@click.argument("name", required=False, help="What to call it, like debian:12 or my/app.")
@click.argument("packages", nargs=-1, help="The same as --apt.")
@click.option("--from", "base", metavar="IMAGE", help="What to put packages on.", show_default="host")
@click.option("--python", multiple=True, metavar="PACKAGE", help="A Python package, like 'pandas>=2' (repeatable).")
@click.option("--node", multiple=True, metavar="PACKAGE", help="A Node package, like zod or zod@4 (repeatable).")
@click.option(
    "--apt", multiple=True, metavar="PACKAGE", help="A Debian package, of a new base or a recipe (repeatable)."
)
@click.option("--requirements", multiple=True, metavar="FILE", help="Python packages, one in a line (repeatable).")
@click.option("--preload", multiple=True, metavar="MODULE", help="A module that is loaded beforehand (repeatable).")
@click.option("--suite", metavar="NAME", help="Release to take --apt from.", show_default="this machine's own")
@click.option("--recipe", metavar="LANGUAGE", help="The image of a language: go, java, typescript, c, ...")
@json_option
def build_image(
    name: str | None,
    packages: tuple[str, ...],
    base: str | None,
    python: tuple[str, ...],
    node: tuple[str, ...],
    apt: tuple[str, ...],
    requirements: tuple[str, ...],
    preload: tuple[str, ...],
    suite: str | None,
    recipe: str | None,
    as_json: bool,
) -> None:
    """Make an image of packages: on top of another one, or of Debian or Ubuntu packages alone, or by a recipe."""
    from tidebox.cli.progress import BusyLine
    from tidebox.embedded import build_image as build
    from tidebox.errors import InvalidRequest
    from tidebox.model.packages import make_packages, read_requirements

    if recipe is not None:
        if packages or base or python or node or requirements or preload:
            raise InvalidRequest("--recipe goes with --apt alone; leave the other packages out", field="recipe")
        _show(_by_recipe(recipe, name, apt, suite), as_json)
        return
    if name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    listed = [item for path in requirements for item in read_requirements(_text_of(path))]
    wanted = make_packages([*python, *listed], node)
    system = [*packages, *apt]
    if base is not None and (system or suite):
        raise InvalidRequest("--apt makes a base of its own, so leave out --from", field="from")
    new_base = bool(system or suite or not (base or wanted or preload))
    # Debian packages come without a word; others tell what is done.
    with BusyLine(f"Building {name}") if new_base else nullcontext():
        image = build(
            name,
            base=base or "host",
            packages=wanted,
            preload=preload,
            system_packages=system,
            suite=(suite or _own_suite()) if new_base else None,
            tell=_tell,
        )
    _show(image, as_json)


def _by_recipe(name: str, image: str | None, apt: tuple[str, ...], suite: str | None) -> Image:
    from tidebox.cli.progress import BusyLine
    from tidebox.embedded import build_recipe
    from tidebox.model.recipes import recipe_named

    recipe = recipe_named(name).with_packages(apt)
    with BusyLine(f"Building {image or recipe.image}"):
        return build_recipe(recipe, image, suite=suite or _own_suite() if recipe.apt else "", tell=_tell)


@command.command("list")
@json_option
def list_images(as_json: bool) -> None:
    """Show the images."""
    import time

    images = _store().list()
    if as_json:
        _print_json({"items": [_described(image) for image in images]})
        return
    rows = []
    for image in images:
        imported = time.strftime("%Y-%m-%d %H:%M", time.localtime(image.imported_at))
        packages = " ".join([*image.packages.python, *image.packages.node])
        rows.append((image.name, _short(image), size_text(image.size or 0), imported, image.base or "", packages))
    print_table(("NAME", "DIGEST", "SIZE", "IMPORTED", "BASE", "PACKAGES"), rows)


@command.command("show")
@_name
@json_option
def show_image(name: str, as_json: bool) -> None:
    """Show what an image consists of."""
    image = _store().resolve(name)
    if as_json:
        _print_json(_described(image))
        return
    rows = [("name", image.name), ("digest", image.digest), ("base", image.base or "")]
    rows += [("size", size_text(image.size or 0)), ("preloads", " ".join(image.preload))]
    for layer in image.layers:
        rows += [("layer", f"{layer.lock.language} {layer.digest} {size_text(layer.size)}")]
        rows += [("", package.shown) for package in layer.lock.packages]
    for key, value in rows:
        click.echo(f"{key:<10}{one_line(value)}".rstrip())


@command.command("prune")
@json_option
def prune_images(as_json: bool) -> None:
    """Remove packages that no image of a name has."""
    removed = _store().prune()
    size = sum(layer.size for layer in removed)
    if as_json:
        _print_json({"removed": [f"sha256:{layer.digest}" for layer in removed], "size": size})
    else:
        click.echo(f"removed {len(removed)} layers, {size_text(size)}")


@command.command("remove")
@_name
@json_option
def remove_image(name: str, as_json: bool) -> None:
    """Forget an image and delete its files."""
    _store().remove(name)
    if as_json:
        _print_json({"removed": [name]})


def _text_of(path: str) -> str:
    from tidebox.errors import InvalidRequest

    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise InvalidRequest(f"{path}: {reason}", field="requirements") from error


def _tell(event: Preparing) -> None:
    if sys.stderr.isatty():
        note(event.message)


def _described(image: Image) -> dict[str, object]:
    layers = [
        {
            "language": layer.lock.language,
            "digest": f"sha256:{layer.digest}",
            "size": layer.size,
            "target": dict(layer.lock.target),
            "lock": [
                {"name": package.name, "version": package.version, "digest": package.digest}
                for package in layer.lock.packages
            ],
        }
        for layer in image.layers
    ]
    return {
        "name": image.name,
        "digest": image.digest,
        "base": image.base,
        "size": image.size,
        "imported_at": image.imported_at,
        "preload": list(image.preload),
        "packages": {"python": list(image.packages.python), "node": list(image.packages.node)},
        "layers": layers,
    }


def _print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2))


def _store() -> ImageStore:
    """The store of this installation."""
    from tidebox.embedded import image_store

    return image_store()


def _own_suite() -> str:
    import platform

    from tidebox.errors import InvalidRequest

    suite = platform.freedesktop_os_release().get("VERSION_CODENAME")
    if not suite:
        raise InvalidRequest("this machine is not of a Debian release; name one with --suite", field="suite")
    return suite


def _short(image: Image) -> str:
    return image.digest[: len("sha256:") + 12]


def _show(image: Image, as_json: bool = False) -> None:
    if as_json:
        _print_json(_described(image))
        return
    click.echo(f"{image.name} {_short(image)} {size_text(image.size or 0)}")
