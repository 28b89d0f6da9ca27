"""``tidebox image``: root file systems for boxes, imported, built, listed and removed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidebox.cli.output import one_line, print_table

if TYPE_CHECKING:
    from tidebox.embedded import Image, ImageStore

_name = click.argument("name", help="What to call it, like debian:12 or my/app.")


class _InOrder(click.Group):
    """Shows its commands in the order in which one needs them."""

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
def import_image(name: str, source: Path) -> None:
    """Take a root file system from a tar archive or an OCI layout."""
    if sys.stderr.isatty():
        click.echo(f"Unpacking {one_line(str(source))}", err=True)
    _show(_store().import_(name, Path("/dev/stdin") if str(source) == "-" else source))


@command.command("build")
@_name
@click.argument("packages", nargs=-1, help="Packages, like python3 or nodejs.")
@click.option("--suite", metavar="NAME", help="Release to take them from.", show_default="this machine's own")
def build_image(name: str, packages: tuple[str, ...], suite: str | None) -> None:
    """Make an image of Debian or Ubuntu packages."""
    _show(_store().build(name, list(packages), suite or _own_suite()))


@command.command("list")
def list_images() -> None:
    """Show the imported images."""
    import time

    rows = []
    for image in _store().list():
        imported = time.strftime("%Y-%m-%d %H:%M", time.localtime(image.imported_at))
        rows.append((image.name, _short(image), _size_text(image.size or 0), imported))
    print_table(("NAME", "DIGEST", "SIZE", "IMPORTED"), rows)


@command.command("remove")
@_name
def remove_image(name: str) -> None:
    """Forget an image and delete its files."""
    _store().remove(name)


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


def _size_text(size: float) -> str:
    """A number of bytes as disks are sold."""
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def _show(image: Image) -> None:
    click.echo(f"{image.name} {_short(image)} {_size_text(image.size or 0)}")
